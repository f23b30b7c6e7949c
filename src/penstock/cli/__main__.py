"""Run the command line as `python -m penstock.cli`."""

from penstock.cli.main import main

if __name__ == "__main__":
    main()
