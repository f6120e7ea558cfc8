"""Turns run directories into tables and charts; needs no GPU, torch or compiled module."""
