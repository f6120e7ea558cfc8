"""`python -m kvbench`: the command of the environment that this interpreter belongs to."""

from kvbench.cli.main import main

if __name__ == "__main__":
    main()
