"""A keeper of whichever release comes first on the path."""

from __future__ import annotations

import sys

from penstock.config import load_settings
from penstock.workers.keeper.keeper import main

if __name__ == "__main__":
    sys.exit(main(load_settings()))
