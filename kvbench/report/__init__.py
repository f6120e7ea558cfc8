"""Reports from run directories: no GPU, no torch, no compiled module needed."""
