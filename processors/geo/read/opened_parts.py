"""The files of a scene while they are opened, with the rasters of products and the names of all bands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.errors import InvalidInput, Issue
from penstock.processors.geo.mask_kinds import MaskKindName
from penstock.processors.geo.read.band_identity import SceneBand, contradicted
from penstock.processors.geo.read.band_names import named_sensor
from penstock.processors.geo.read.bands import bands_in_words
from penstock.processors.geo.read.input_file import InputFile
from penstock.processors.geo.read.products.product import Product
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.read.sidecar import Sidecar
from penstock.processors.geo.read.stac_item import StacItem, file_name
from penstock.processors.geo.scene_request import SceneFile


@dataclass(frozen=True, slots=True)
class OpenedParts:
    """The contents of a scene's files, while they are opened."""

    #: The request's file of each of `files`.
    parts: list[SceneFile] = field(default_factory=list)
    files: list[InputFile] = field(default_factory=list)
    present: list[SceneBand] = field(default_factory=list)
    masks: dict[MaskKindName, InputFile] = field(default_factory=dict)
    sidecars: list[Sidecar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def sidecar(self) -> Sidecar | None:
        """The metadata that lie in the files of the scene."""
        return self.sidecars[0] if len(self.sidecars) == 1 else None

    def add(self, part: SceneFile, file: InputFile, item: StacItem | None) -> None:
        """Add a raster with its bands. Raises `InvalidInput` if the request or the item contradict it."""
        before = sum(each.scene.count for each in self.files)
        bands = list(_present(part, file.scene, item, file=len(self.files), before=before))
        if item is not None:
            _check_names(bands, item)
        self.parts.append(part)
        self.files.append(file)
        self.present.extend(bands)

    def take(self, reference: str, path: Path, etag: str | None, product: Product) -> None:
        """Add what a product says about its rasters."""
        for kind, raster in product.masks.items():
            self.masks[kind] = InputFile(reference, path, etag, raster.scene, "The mask")
        self.sidecars.extend(filter(None, (product.sidecar,)))
        self.notes.extend(product.notes)
        self.unread.extend(product.unread)


def _present(part: SceneFile, scene: Scene, item: StacItem | None, *, file: int, before: int) -> Iterator[SceneBand]:
    """Yield the bands of a file with their names from all sources."""
    if part.bands is not None and len(part.bands) != len(scene.bands):
        raise InvalidInput(f"`bands` names {bands_in_words(len(part.bands))}, but the file has {len(scene.bands)}.")
    asset = item.names_of(part.media) if item else ()
    for at, band in enumerate(scene.bands):
        aliases = asset[band.index - 1] if band.index <= len(asset) else ()
        name = part.bands[at] if part.bands is not None else band.name
        own = file_name(part.media)
        sensor = band.sensor or named_sensor([own])
        yield replace(band, name=name, aliases=aliases, file=file, before=before, file_name=own, sensor=sensor)


def _check_names(bands: Sequence[SceneBand], item: StacItem) -> None:
    """Raise `InvalidInput` if the item has the bands of a file in another order than the file's names say."""
    found = contradicted(bands, named_sensor(item.platforms))
    if found is not None:
        band, own, given = found
        shown = f"{band.index} {band.name!r}" if band.name else str(band.index)
        raise InvalidInput(
            f"The STAC item contradicts the file: band {shown} is {own} in the file, and {given} in the item "
            f"({', '.join(band.aliases)}). List the item's bands in the file's order, or leave out `stac` and give "
            "`radiometry`.",
            errors=[Issue("/input/stac", "has the bands in another order than the file")],
        )
