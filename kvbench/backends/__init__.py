"""The built-in backends. Backends are found through the entry-point group `kvbench.backends`."""
