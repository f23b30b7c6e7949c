"""The start of a fork server: `python -m penstock.workers.io.start <descriptor> <log descriptor>`, by `forks.py`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

#: Packages that structlog imports for colours where they are there: 5 MB, and each fork copies what is imported.
_UNUSED: dict[str, Any] = {"rich": None}


def lean_server() -> ModuleType:
    """Import the fork server without what only terminals need; processors may import that later."""
    sys.modules |= _UNUSED
    from penstock.workers.io import server

    for name in _UNUSED:
        del sys.modules[name]
    return server


if __name__ == "__main__":
    lean_server().main(int(sys.argv[1]), int(sys.argv[2]))
