"""The gate: rules about one run, and the comparison of two builds over paired runs. Needs no GPU."""
