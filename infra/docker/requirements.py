"""Print the requirements of pyproject.toml: `python3 requirements.py [EXTRA,EXTRA...]`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """Return the requirements of a `[project]` table with these extras; raise `SystemExit` for an unknown one."""
    optional: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    unknown = [extra for extra in extras if extra not in optional]
    if unknown:
        raise SystemExit(f"no such extras: {', '.join(unknown)}; there are {', '.join(sorted(optional))}")
    always: list[str] = project["dependencies"]  # type: ignore[assignment]
    return [*always, *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    chosen = [extra for word in sys.argv[1:] for extra in word.split(",") if extra]
    table = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    sys.stdout.write("\n".join(requirements(table, chosen)) + "\n")
