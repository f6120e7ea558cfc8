"""What every folder may import: errors, text and files."""
