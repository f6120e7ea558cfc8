"""The command line: one file a command; nobody imports this package."""
