"""Handing over finished files, and what the STAC item will say of each."""

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
class Artifact:
    """A file that was handed over."""

    name: str
    media_type: str
    title: str
    #: STAC's: `data`, `metadata`, `overview`, ...
    roles: tuple[str, ...]
    size_bytes: int
    #: Empty where it was not asked for.
    sha256: str
    #: Further fields of its STAC asset.
    fields: Mapping[str, Any]


@dataclass(slots=True)
class Handover:
    """Hands files to a sink and notes what they are."""

    sink: ArtifactSink
    #: Whether anybody will ask for the files' hashes.
    hashed: bool
    done: list[Artifact] = field(default_factory=list)

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
        """Hand over a finished file; after this it may be gone."""
        digest = ""
        if self.hashed:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.done.append(Artifact(name, media_type, title, roles, path.stat().st_size, digest, fields or {}))
        self.sink.add(name, path, media_type=media_type)

    def add_json(
        self, name: str, data: Mapping[str, Any], *, title: str, roles: tuple[str, ...], media_type: str = JSON_TYPE
    ) -> None:
        """Write JSON for people and programs, and hand it over."""
        path = self.sink.path(name)
        path.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        self.add(name, path, media_type, title=title, roles=roles)
