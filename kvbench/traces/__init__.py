"""Traces: from the requests that an engine served to the swaps that it makes; needs no GPU."""
