"""One opened scene: its files, their bands, the radiometry of each band, and a provider's mask."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from penstock.errors import InputError, InvalidInput
from penstock.models import Limits
from penstock.processors.base import Media
from penstock.processors.geo.mask_kinds import MaskKindName
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.read.bands import SceneBand, bands_in_words, select_bands
from penstock.processors.geo.read.beside import read_beside, with_beside
from penstock.processors.geo.read.radiometry import (
    BandRadiometry,
    Declaration,
    Source,
    from_request,
    resolve_radiometry,
)
from penstock.processors.geo.read.raster import Scene, read_scene
from penstock.processors.geo.read.sidecar import Sidecar, read_sidecar
from penstock.processors.geo.read.stac_assets import choose_assets, choose_mask
from penstock.processors.geo.read.stac_item import StacItem, file_name, read_stac_item
from penstock.processors.geo.read.tiff_ranges import PartialTiff, open_partial
from penstock.processors.geo.request import SceneRequest
from penstock.processors.geo.scene_request import MaskRequest, RadiometryRequest, SceneFile, SingleScene

#: Characters of a value in a note, at most.
_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True, eq=False)
class InputFile:
    """One of the scene's files."""

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


@dataclass(frozen=True, slots=True)
class OpenedMask:
    """The opened file of a provider's mask."""

    file: InputFile
    kind: MaskKindName
    request: MaskRequest
    #: JSON pointer to the mask in the request.
    place: str
    #: Name of its scene in error messages; empty for a single one.
    scene_label: str


@dataclass(frozen=True, slots=True)
class OpenedScene:
    """The opened files and metadata of one scene."""

    #: Number of the date, from 1.
    date: int
    #: Name of the scene in error messages; empty for a single one.
    label: str
    request: SingleScene
    #: Files of the scene as requested, or chosen from its STAC item.
    parts: tuple[SceneFile, ...]
    files: tuple[InputFile, ...]
    present: tuple[SceneBand, ...]
    sidecar: Sidecar | None
    item: StacItem | None
    mask: OpenedMask | None

    def times(self) -> Iterator[tuple[Source, datetime | None]]:
        """Yield the acquisition time from each source, in the order of precedence."""
        if self.sidecar is not None:
            yield "sidecar", self.sidecar.acquired
        if self.item is not None:
            yield "stac", self.item.acquired
        for file in self.files:
            yield "file", file.scene.acquired

    def time_notes(self) -> Iterator[str]:
        """Yield a note on each time in the STAC item that cannot be read."""
        for name, value in () if self.item is None else self.item.unread.items():
            label = f"{self.label}: " if self.label else ""
            said = str(value)[:_SHOWN_CHARS]
            yield (
                f"{label}The `{name}` of the STAC item is {said!r}, which is no time with a time zone such as "
                "2026-01-31T12:00:00Z. It was not used."
            )

    def bands(
        self,
        request: SceneRequest,
        needed: Sequence[Band],
        defaults: Sequence[DefaultRadiometry],
        radiometry: RadiometryRequest | None,
    ) -> tuple[tuple[InputBand, ...], tuple[BandRadiometry, ...]]:
        """Return the bands of the scene in the model's order, and their radiometry.

        `radiometry` is that of the scene's date.
        """
        with naming(self.label):
            found = select_bands(needed, self.present, request.bands)
            used = tuple(InputBand(n, b, self.files[b.file], self.date) for n, b in zip(needed, found, strict=True))
            wide = (radiometry, request.radiometry)
            return used, tuple(_radiometry(band, used, self, wide, defaults) for band in used)


@dataclass(frozen=True, slots=True)
class SceneOpener:
    """Opens the scenes of a request."""

    request: SceneRequest
    media: Media
    needed: Sequence[Band]
    #: Limits of each file.
    limits: Limits

    def open(self, single: SingleScene, date: int, label: str, mask_place: str) -> OpenedScene:
        """Open a scene, and have the assets of its STAC item fetched. Raises an `InputError` that names the scene.

        `mask_place` is the JSON pointer to its mask in the request.
        """
        with naming(label):
            sidecar = None if single.sidecar is None else read_sidecar(self.media.path(single.sidecar))
            item = _item(single, self.media)
            parts = single.parts() or self._fetch_assets(item, single)
            files, present = list[InputFile](), list[SceneBand]()
            for at, part in enumerate(parts):
                name = f"File {at + 1} ({file_name(part.media)})" if len(parts) > 1 else ""
                with naming(name):
                    file = self._with_beside(part, self._file(part.media, name or label or "The scene"))
                    before = sum(file.scene.count for file in files)
                    present += _present(part, file.scene, item, file=at, before=before)
                files.append(file)
            mask = None if single.mask is None else self._mask(single.mask, item, single, label, mask_place)
        return OpenedScene(date, label, single, parts, tuple(files), tuple(present), sidecar, item, mask)

    def _file(self, reference: str, label: str) -> InputFile:
        path, ranges = self.media.path(reference), open_partial(self.media, reference)
        return InputFile(reference, path, self.media.etag(reference), read_scene(path, self.limits), label, ranges)

    def _with_beside(self, part: SceneFile, file: InputFile) -> InputFile:
        """Return a file with the masks and metadata that the request names beside it."""
        paths = {reference: self.media.path(reference) for reference in part.beside or ()}
        if not paths:
            return file
        scene, notes = with_beside(file.scene, read_beside(list(paths.values()), self.limits))
        beside = tuple(self.media.etag(reference) or path for reference, path in paths.items())
        return replace(file, scene=scene, beside=beside, notes=notes)

    def _fetch_assets(self, item: StacItem | None, single: SingleScene) -> tuple[SceneFile, ...]:
        """Have the files of a STAC item fetched that hold the needed bands, and return them."""
        if item is None:
            return ()
        addresses = choose_assets(item, _base(single), self.needed, self.request.bands)
        for address in addresses:
            self.media.fetch(address, by_range=self.request.area is not None)
        return tuple(SceneFile(media=address) for address in addresses)

    def _mask(
        self, mask: MaskRequest, item: StacItem | None, single: SingleScene, label: str, place: str
    ) -> OpenedMask:
        with naming("The mask"):
            kind, address = mask.kind, mask.media
            if kind is None or address is None:
                kind, address = choose_mask(item, _base(single), mask.kind)
                self.media.fetch(address, by_range=self.request.area is not None)
            return OpenedMask(self._file(address, "The mask"), kind, mask, place, label)


def _base(single: SingleScene) -> str | None:
    return single.stac if isinstance(single.stac, str) else None


def _item(single: SingleScene, media: Media) -> StacItem | None:
    match single.stac:
        case None:
            return None
        case str(reference):
            return read_stac_item(media.path(reference))
        case document:
            return read_stac_item(document)


def _present(part: SceneFile, scene: Scene, item: StacItem | None, *, file: int, before: int) -> Iterator[SceneBand]:
    """Yield the bands of a file with their names from all sources."""
    if part.bands is not None and len(part.bands) != len(scene.bands):
        raise InvalidInput(f"`bands` names {bands_in_words(len(part.bands))}, but the file has {len(scene.bands)}.")
    asset = item.of_file(part.media) if item else ()
    for at, band in enumerate(scene.bands):
        aliases = asset[band.index - 1].names if band.index <= len(asset) else ()
        name = part.bands[at] if part.bands is not None else band.name
        yield replace(band, name=name, aliases=aliases, file=file, before=before)


def _radiometry(
    band: InputBand,
    used: Sequence[InputBand],
    opened: OpenedScene,
    wide: Sequence[RadiometryRequest | None],
    defaults: Sequence[DefaultRadiometry],
) -> BandRadiometry:
    """Return the radiometry of one band. The file's tags are read for all used bands of the file together."""
    part = opened.parts[band.band.file]
    requests = (part.radiometry, opened.request.radiometry, *wide)
    found: list[tuple[Source, Declaration]] = [("request", from_request(one)) for one in requests if one is not None]
    if opened.sidecar is not None:
        found.append(("sidecar", opened.sidecar.of((*band.band.names, band.need.name, *band.need.synonyms))))
    if opened.item is not None:
        found.append(("stac", _of_item(opened.item, band)))
    of_file, scene = [one for one in used if one.file is band.file], band.file.scene
    found.append(("file", scene.declared([one.band for one in of_file])[of_file.index(band)]))
    trusted = any(one is not None and one.trust for one in requests)
    return replace(resolve_radiometry(found, scene.dtype, defaults, mask=scene.mask), trusted=trusted)


def _of_item(item: StacItem, band: InputBand) -> Declaration:
    asset = item.of_file(band.file.reference)
    if not asset:
        return item.of_band(band.band.names, (band.need.name, *band.need.synonyms))
    return asset[band.band.index - 1].declared if band.band.index <= len(asset) else Declaration()


@contextmanager
def naming(prefix: str) -> Iterator[None]:
    """Prefix the message of an `InputError` with the name of the file or the scene."""
    try:
        yield
    except InputError as error:
        if not prefix:
            raise
        raise type(error)(f"{prefix}: {error.detail}", errors=error.errors) from error
