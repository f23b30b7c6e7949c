"""Files of a scene, and the bands that a model uses of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.processors.geo.options import Band
from penstock.processors.geo.read.band_identity import SceneBand
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.read.tiff_ranges import PartialTiff


@dataclass(frozen=True, slots=True, eq=False)
class InputFile:
    """One of the scene's files, or one of the rasters in it."""

    reference: str
    path: Path
    etag: str | None
    scene: Scene
    #: Name of the file in error messages.
    label: str
    #: Source of further ranges, if the file is partial.
    partial: PartialTiff | None = None
    #: Etag of each file beside it, or its path where it has none.
    beside: tuple[str | Path, ...] = ()
    #: Notes on the files beside it.
    notes: tuple[str, ...] = ()

    @property
    def in_item(self) -> str:
        """The reference by which a STAC item knows its bands; empty for a part of a product, whose names count."""
        return self.reference if self.scene.part is None else ""

    def digests(self) -> Iterator[str]:
        """Yield the etag, or else the SHA-256, of the file and of those beside it."""
        for each in (self.etag or self.path, *self.beside):
            if isinstance(each, str):
                yield each
            else:
                with each.open("rb") as opened:
                    yield hashlib.file_digest(opened, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class InputBand:
    """One input band of the network."""

    need: Band
    band: SceneBand
    file: InputFile
    #: Number of the date, from 1.
    date: int
