"""`python -m kvbench`: run the command line with this interpreter."""

from kvbench.cli.main import main

if __name__ == "__main__":
    main()
