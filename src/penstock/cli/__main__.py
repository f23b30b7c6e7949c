"""Run the command line as `penstock` or `python -m penstock.cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without its packages, as beside the client alone, name the extra that has them."""
    try:
        from penstock.cli import main as commands
    except ModuleNotFoundError as error:
        if (error.name or "penstock").partition(".")[0] == "penstock":
            raise
        how = "pip install '.[service]' in a clone of the repository"
        sys.stderr.write(f"penstock: the command line needs {error.name}: {how}\n")
        sys.exit(2)
    commands.main()


if __name__ == "__main__":
    main()
