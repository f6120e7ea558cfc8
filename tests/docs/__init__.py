"""What the documents take from the code and from committed runs, between HTML comments: `make docs` writes it."""
