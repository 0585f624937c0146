"""`python -m ctsattn` is the command line `ctsattn`."""

from ctsattn.cli import main

if __name__ == "__main__":
    main()
