"""Tracebacks as one line: the error, and the place in the author's own code that raised it. Pure."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

#: A frame of a traceback as Python prints it: file, line and function.
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>\S+)', re.M)
#: Folders of code that is not the author's: Penstock, Python's library, installed packages.
_FOREIGN = (f"{Path(__file__).parents[1]}/", f"{sysconfig.get_paths()['stdlib']}/")
_INSTALLED = ("/site-packages/", "/dist-packages/", "<")


def error_of(traceback: str) -> str:
    """Return the last line of a traceback, which names the error; empty without one."""
    lines = [line for line in traceback.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def place_of(traceback: str) -> str | None:
    """Return the place of an error, such as `mine.py:12 in prepare`: the innermost frame of the author's own code.

    Without such a frame, the innermost of all. The folder is left out: it shows the installation.
    """
    frames = list(_FRAME.finditer(traceback))
    own = [frame for frame in frames if _is_own(frame["file"])]
    found = (own or frames)[-1:]
    return next((f"{Path(frame['file']).name}:{frame['line']} in {frame['name']}" for frame in found), None)


def _is_own(file: str) -> bool:
    return not file.startswith((*_FOREIGN, "<")) and not any(part in file for part in _INSTALLED)
