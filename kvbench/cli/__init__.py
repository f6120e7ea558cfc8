"""The command line, one file per command. No other package imports this one."""
