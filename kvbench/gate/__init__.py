"""The gate: statements about one run (rules), and two builds compared over paired runs (judge). Pure: no GPU needed."""
