"""The keeper as a process of its own."""

import sys

from penstock.config import load_settings
from penstock.workers.keeper import main

if __name__ == "__main__":
    sys.exit(main(load_settings()))
