"""The input of a job's processor as JSON, for sending to an IO process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock.intake.local_media import LocalMedia
from penstock.models import Model
from penstock.processors.base import Value
from penstock.workers.processing import Work


def work_to_json(work: Work) -> dict[str, Any]:
    """Return a job's work without its model as JSON."""
    media = {reference: [str(file.path), file.etag, file.partial] for reference, file in work.media.items()}
    part = None if work.part is None else list(work.part)
    return {"input": dict(work.input), "media": media, "folder": str(work.folder), "part": part}


def held_media(work: Work) -> dict[str, Value]:
    """Return the bytes of the media in memory by reference, each as uint8 (bytes,)."""
    return {
        reference: np.frombuffer(file.data, np.uint8)
        for reference, file in work.media.items()
        if file.data is not None
    }  # fmt: skip


def work_from_json(model: Model, data: Mapping[str, Any], held: Mapping[str, Value] = MappingProxyType({})) -> Work:
    """Return the work from JSON and the media in memory; raise `KeyError`, `TypeError` or `ValueError` if invalid."""
    media = {
        reference: LocalMedia(Path(path), etag, partial, held[reference].tobytes() if reference in held else None)
        for reference, (path, etag, partial) in data["media"].items()
    }
    part = data.get("part")
    return Work(
        model, dict(data["input"]), media, Path(data["folder"]), part=None if part is None else (part[0], part[1])
    )
