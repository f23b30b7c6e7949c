"""The input of a job's processor as JSON, for sending to an IO process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.intake.local_media import LocalMedia
from penstock.models import Model
from penstock.workers.processing import Work


def work_to_json(work: Work) -> dict[str, Any]:
    """Return a job's work without its model as JSON."""
    media = {reference: [str(file.path), file.etag, file.partial] for reference, file in work.media.items()}
    part = None if work.part is None else list(work.part)
    return {"input": dict(work.input), "media": media, "folder": str(work.folder), "part": part}


def work_from_json(model: Model, data: Mapping[str, Any]) -> Work:
    """Return the work from JSON; raise `KeyError`, `TypeError` or `ValueError` for invalid data."""
    media = {reference: LocalMedia(Path(path), *more) for reference, (path, *more) in data["media"].items()}
    part = data.get("part")
    return Work(
        model, dict(data["input"]), media, Path(data["folder"]), part=None if part is None else (part[0], part[1])
    )
