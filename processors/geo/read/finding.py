"""Notes on a scene's radiometry that the first attempt of a shared job found, for the attempt that joins the parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from penstock.processors.base import MAX_FINDING_CHARS, finding_name

_FILE = "notes on a scene"


def findings_of(digest: str, doubts: tuple[str, ...]) -> dict[str, str]:
    """Return the notes as text by their plan; nothing if they are too long, so that they are found again."""
    text = json.dumps({"file": _FILE, "plan": digest, "doubts": list(doubts)})
    return {digest: text} if len(text) <= MAX_FINDING_CHARS else {}


def read_finding(files: Mapping[str, Path], digest: str) -> tuple[str, ...] | None:
    """Return the notes of a plan from a job's checkpoints; None if there are none, or none of this plan."""
    path = files.get(finding_name(digest))
    if path is None or path.stat().st_size > MAX_FINDING_CHARS:
        return None
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    match found:
        case {"file": "notes on a scene", "plan": str(plan), "doubts": list(doubts)} if plan == digest:
            return tuple(doubts) if all(isinstance(doubt, str) for doubt in doubts) else None
        case _:
            return None
