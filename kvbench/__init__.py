"""kvbench measures how KV-cache blocks move between host memory and a GPU, on the machine at hand."""

__version__ = "0.1.0"
