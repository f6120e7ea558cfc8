"""What the driver really does with a batched copy: each probe runs in a process of its own."""
