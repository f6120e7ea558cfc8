"""The report as one HTML file; page.py puts it together."""
