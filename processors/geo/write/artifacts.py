"""Artifacts of a scene: add finished files to the sink and record their metadata for the STAC item."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.processors.base import ArtifactSink

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class SceneArtifact:
    """Metadata of a finished artifact."""

    name: str
    media_type: str
    title: str
    #: STAC roles: `data`, `metadata`, `overview`, ...
    roles: tuple[str, ...]
    size_bytes: int
    #: SHA-256 in hexadecimal digits; empty if `hashed` is off.
    sha256: str
    #: Further fields of the STAC asset.
    fields: Mapping[str, Any]


@dataclass(slots=True)
class ArtifactWriter:
    """Writer of artifacts that records the metadata of each file."""

    sink: ArtifactSink
    #: True to compute the SHA-256 of each file.
    hashed: bool
    done: list[SceneArtifact] = field(default_factory=list)

    def add(
        self,
        name: str,
        path: Path,
        media_type: str,
        *,
        title: str,
        roles: tuple[str, ...],
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a finished file; the sink may move it."""
        digest = ""
        if self.hashed:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.done.append(SceneArtifact(name, media_type, title, roles, path.stat().st_size, digest, fields or {}))
        self.sink.add(name, path, media_type=media_type)

    def add_json(
        self, name: str, data: Mapping[str, Any], *, title: str, roles: tuple[str, ...], media_type: str = JSON_TYPE
    ) -> None:
        """Write an indented JSON file and add it."""
        path = self.sink.path(name)
        path.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        self.add(name, path, media_type, title=title, roles=roles)
