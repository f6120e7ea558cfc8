"""The code of installed engines: one file for each engine."""
