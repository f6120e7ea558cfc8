"""The ways to run a swap, each a backend found through the entry-point group `kvbench.backends`."""
