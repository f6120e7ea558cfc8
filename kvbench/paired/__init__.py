"""Two sides measured in turn on one machine: what a side is, whose turn it is, one turn, all of them, A/A floors."""
