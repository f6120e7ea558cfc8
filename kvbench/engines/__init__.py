"""Engines' own code, called out of their installed packages: one file an engine."""
