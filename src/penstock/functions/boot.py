"""Run a module of Penstock in any environment: `python -P boot.py MODULE ARGUMENT...`.

The environment of a model has its own packages and not Penstock. This file makes `penstock` importable there, and
nothing else of the worker's environment.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

_OLDEST = (3, 11)


def main() -> None:
    """Import `penstock` from around this file, and run the module as `python -m` does."""
    if sys.version_info < _OLDEST:
        sys.exit(f"the environment has Python {sys.version.split()[0]}; models need 3.11 or newer")
    package = Path(__file__).parent.parent
    file, folders = package / "__init__.py", [str(package)]
    if (spec := importlib.util.spec_from_file_location("penstock", file, submodule_search_locations=folders)) is None:
        sys.exit(f"{file} cannot be imported")
    sys.modules["penstock"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
