"""What the driver really does with a batched copy: one file a probe, each run in a process of its own."""
