"""A job's work as JSON, for its way to an IO process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.models import Model
from penstock.storage.media import LocalMedia
from penstock.workers.processing import Work


def work_to_json(work: Work) -> dict[str, Any]:
    """Return everything of a work but its model."""
    media = {reference: [str(file.path), file.etag] for reference, file in work.media.items()}
    return {"input": dict(work.input), "media": media, "folder": str(work.folder)}


def work_from_json(model: Model, data: Mapping[str, Any]) -> Work:
    """Return the work again; raise `KeyError`, `TypeError` or `ValueError` for what is none."""
    media = {reference: LocalMedia(Path(path), etag) for reference, (path, etag) in data["media"].items()}
    return Work(model, dict(data["input"]), media, Path(data["folder"]))
