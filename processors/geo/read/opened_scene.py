"""One opened scene: its files, their bands, the radiometry of each band, and a provider's mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from penstock.errors import InputError, InvalidInput, MissingBands
from penstock.json_body import shown
from penstock.models import Limits
from penstock.processors.base import Media
from penstock.processors.geo.mask_kinds import MaskKind, MaskKindName
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.read.band_identity import SceneBand
from penstock.processors.geo.read.band_names import named_sensor
from penstock.processors.geo.read.bands import Selection, select_bands
from penstock.processors.geo.read.beside import beside_notes, read_beside, with_beside
from penstock.processors.geo.read.encodings import request_text
from penstock.processors.geo.read.input_file import InputBand, InputFile
from penstock.processors.geo.read.opened_parts import OpenedParts
from penstock.processors.geo.read.products.product_files import read_product
from penstock.processors.geo.read.radiometry import (
    BandRadiometry,
    Declaration,
    Source,
    from_request,
    resolve_radiometry,
)
from penstock.processors.geo.read.raster import read_scene
from penstock.processors.geo.read.sensors import Sensor
from penstock.processors.geo.read.sidecar import Sidecar, read_sidecar
from penstock.processors.geo.read.stac_assets import choose_assets, mask_address, metadata_address
from penstock.processors.geo.read.stac_bands import unclear_bands
from penstock.processors.geo.read.stac_grid import asset_grid, grid_notes, on_the_grid
from penstock.processors.geo.read.stac_item import SHOWN_CHARS, StacItem, file_name, item_notes, read_stac_item
from penstock.processors.geo.read.stac_masks import find_mask, mask_kind
from penstock.processors.geo.read.tiff_ranges import open_partial
from penstock.processors.geo.request import SceneRequest
from penstock.processors.geo.scene_request import MaskRequest, RadiometryRequest, SceneFile, SingleScene

#: Variables that a message names, at most.
_MOST_UNREAD: Final = 5


@dataclass(frozen=True, slots=True)
class OpenedMask:
    """The opened file of a provider's mask."""

    file: InputFile
    kind_name: MaskKindName
    kind: MaskKind
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
    #: Notes on what was taken from the STAC item to open the files.
    notes: tuple[str, ...] = ()
    #: Sentences on variables of the files that are no scene.
    unread: tuple[str, ...] = ()

    def times(self) -> Iterator[tuple[Source, datetime | None]]:
        """Yield the acquisition time from each source, in the order of precedence."""
        if self.sidecar is not None:
            yield "sidecar", self.sidecar.acquired
        if self.item is not None:
            yield "stac", self.item.acquired
        for file in self.files:
            yield "file", file.scene.acquired

    def item_notes(self, bands: Sequence[InputBand], radiometry: Sequence[BandRadiometry]) -> Iterator[str]:
        """Yield notes on what was assumed from the STAC item for the used bands, and on its contradictions."""
        pairs = zip(bands, radiometry, strict=True)
        used = [] if self.item is None else [_of_item(self.item, band) for band, one in pairs if one.source == "stac"]
        own = () if self.item is None else item_notes(self.item, used)
        yield from (self._labelled(note) for note in (*dict.fromkeys(self.notes), *own))

    def _labelled(self, note: str) -> str:
        return f"{self.label}: {note}" if self.label else note

    def time_notes(self) -> Iterator[str]:
        """Yield a note on each time in the STAC item that cannot be read."""
        for name, value in () if self.item is None else self.item.unread.items():
            said = str(value)[:SHOWN_CHARS]
            yield self._labelled(
                f"The `{name}` of the STAC item is {said!r}, which is no time with a time zone such as "
                "2026-01-31T12:00:00Z. It was not used."
            )

    def bands(
        self,
        request: SceneRequest,
        needed: Sequence[Band],
        defaults: Sequence[DefaultRadiometry],
        radiometry: RadiometryRequest | None,
        unit: float,
    ) -> tuple[tuple[InputBand, ...], tuple[BandRadiometry, ...], tuple[str, ...]]:
        """Return the bands of the scene in the model's order, their radiometry, and notes on their choice.

        `radiometry` is that of the scene's date; `unit` is the model's number for reflectance 1.
        """
        with naming(self.label):
            selection = self._selected(request, needed)
            pairs = zip(needed, selection.bands, strict=True)
            used = tuple(InputBand(need, band, self.files[band.file], self.date) for need, band in pairs)
            wide = (radiometry, request.radiometry)
            radiometries = tuple(_radiometry(band, used, self, wide, defaults, unit) for band in used)
        return used, radiometries, selection.notes

    def _selected(self, request: SceneRequest, needed: Sequence[Band]) -> Selection:
        try:
            return select_bands(needed, self.present, request.bands, self.sensor)
        except MissingBands as error:
            if not self.unread:
                raise
            more = len(self.unread) - _MOST_UNREAD
            listed = "; ".join(self.unread[:_MOST_UNREAD]) + (f"; and {more} more" if more > 0 else "")
            raise MissingBands(
                f"{error.detail} These variables are not read: {listed}.", errors=error.errors
            ) from error

    @property
    def sensor(self) -> Sensor | None:
        """The sensor that the scene's metadata name."""
        documents = [one for one in (self.item, self.sidecar) if one is not None]
        return named_sensor(name for one in documents for name in one.platforms)


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
            requested = single.parts() or self._fetch_assets(item, single)
            opened = OpenedParts()
            for at, part in enumerate(requested):
                name = f"File {at + 1} ({file_name(part.media)})" if len(requested) > 1 else ""
                with naming(name):
                    self._open_part(part, name or label or "The scene", item, opened)
            sidecar = sidecar or opened.sidecar
            files, notes = opened.files, opened.notes
            if sidecar is None and item is not None and not single.parts():
                sidecar = self._own_sidecar(item, single, date, files)
            mask = None if single.mask is None else self._mask(single, item, opened.masks, label, mask_place)
        return OpenedScene(
            date, label, single, tuple(opened.parts), tuple(files), tuple(opened.present), sidecar, item, mask,
            tuple(notes), tuple(opened.unread),
        )  # fmt: skip

    def _open_part(self, part: SceneFile, label: str, item: StacItem | None, opened: OpenedParts) -> None:
        """Open a file of the scene, with all rasters that it has."""
        path = self.media.path(part.media)
        product = None if self.media.is_partial(part.media) else read_product(path, self.limits)
        if product is not None:
            if part.bands is not None:
                raise InvalidInput(
                    "`bands` of a file names the bands of one raster; this file has several, with names of their own. "
                    "Choose among them with the `bands` of the request."
                )
            if part.beside:
                opened.notes.append("The files beside the scene were not used: they belong to raster files.")
            etag = self.media.etag(part.media)
            for raster in product.rasters:
                own = f"{shown(raster.name)} in {file_name(part.media)}"
                opened.add(part, InputFile(part.media, path, etag, raster.scene, own), None)
            opened.take(part.media, path, etag, product)
            return
        file = _on_the_grid(self._with_beside(part, self._file(part.media, label)), item, opened.notes)
        file = replace(file, notes=(*file.notes, *beside_notes(file.scene, named=bool(part.beside))))
        opened.add(part, file, item)

    def _file(self, reference: str, label: str) -> InputFile:
        """Open a file."""
        path, ranges = self.media.path(reference), open_partial(self.media, reference)
        return InputFile(reference, path, self.media.etag(reference), read_scene(path, self.limits), label, ranges)

    def _with_beside(self, part: SceneFile, file: InputFile) -> InputFile:
        """Return a file with the masks and metadata that the request names beside it."""
        paths = {reference: self.media.path(reference) for reference in part.beside or ()}
        if not paths:
            return file
        named = [(file_name(reference), path) for reference, path in paths.items()]
        scene, notes = with_beside(file.scene, read_beside(named, self.limits))
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

    def _own_sidecar(
        self, item: StacItem, single: SingleScene, date: int, files: Sequence[InputFile]
    ) -> Sidecar | None:
        """Have the product's metadata fetched that the item names, if its assets declare no scale, and read it.

        They are not needed where the request gives the scale, request or files Landsat's nodata number 0, and request
        or item the acquisition time.
        """
        address = metadata_address(item, _base(single), [file.reference for file in files])
        of_date = self.request.acquisitions()[date - 1]
        given = [one for one in (single.radiometry, of_date.radiometry, self.request.radiometry) if one is not None]
        scaled = any(one.scale is not None for one in given)
        empty = any(one.nodata is not None for one in given) or all(
            number == 0 for file in files for number in file.scene.nodata
        )
        dated = item.acquired is not None or of_date.datetime is not None or self.request.datetime is not None
        if address is None or (scaled and empty and dated):
            return None
        self.media.fetch(address)
        return read_sidecar(self.media.path(address))

    def _mask(
        self,
        single: SingleScene,
        item: StacItem | None,
        own: Mapping[MaskKindName, InputFile],
        label: str,
        place: str,
    ) -> OpenedMask:
        assert single.mask is not None  # noqa: S101  (the caller has checked)
        mask = single.mask
        with naming("The mask"):
            name, address = mask.kind, mask.media
            if address is None and name is not None and name in own:
                return OpenedMask(own[name], name, mask_kind(name, mask, None), mask, place, label)
            asset = None if item is None or address is None else item.asset_of(address)
            if name is None or address is None:
                name, key = find_mask(item, mask)
                assert item is not None  # noqa: S101  (a mask was found in it)
                asset, address = item.assets[key], mask_address(item, _base(single), key)
                self.media.fetch(address, by_range=self.request.area is not None)
            kind = mask_kind(name, mask, asset)
            file = _on_the_grid(self._file(address, "The mask"), item, [])
            return OpenedMask(file, name, kind, mask, place, label)


def _on_the_grid(file: InputFile, item: StacItem | None, notes: list[str]) -> InputFile:
    """Return a file with the georeference of its asset where it has none, and append notes on what was taken.

    The files beside it come first: they are its own georeference, with which the asset is compared.
    """
    asset = None if item is None else item.asset_of(file.reference)
    if item is None or asset is None:
        return file
    grid = asset_grid(asset, item.properties)
    placed = on_the_grid(file.scene, grid)
    notes += grid_notes(file.scene, placed, grid)
    return replace(file, scene=placed)


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


def _radiometry(
    band: InputBand,
    used: Sequence[InputBand],
    opened: OpenedScene,
    wide: Sequence[RadiometryRequest | None],
    defaults: Sequence[DefaultRadiometry],
    unit: float,
) -> BandRadiometry:
    """Return the radiometry of one band. The file's tags are read for all used bands of the file together."""
    part = opened.parts[band.band.file]
    requests = (part.radiometry, opened.request.radiometry, *wide)
    found: list[tuple[Source, Declaration]] = [("request", from_request(one)) for one in requests if one is not None]
    if opened.sidecar is not None:
        found.append(("sidecar", opened.sidecar.of((*band.band.names, band.need.name, *band.need.synonyms))))
    if opened.item is not None:
        settled = any(declared.scale is not None for _, declared in found)
        found.append(("stac", _of_item(opened.item, band, unit, settled=settled)))
    of_file, scene = [one for one in used if one.file is band.file], band.file.scene
    found.append(("file", scene.declared([one.band for one in of_file])[of_file.index(band)]))
    if opened.item is not None and all(declared.scale is None for _, declared in found):
        _check_scale(opened.item, band, unit)
    trusted = any(one is not None and one.trust for one in requests)
    resolved = resolve_radiometry(found, scene.dtype, defaults, mask=scene.mask, unit=unit)
    resolved = replace(resolved, trusted=trusted)
    return resolved.in_decibels() if any(one is not None and one.to_decibels for one in requests) else resolved


def _of_item(item: StacItem, band: InputBand, unit: float = 1.0, *, settled: bool = False) -> Declaration:
    """Return an item's declaration for a band; what it leaves unclear is refused unless it is `settled` elsewhere."""
    example = _example(item, band, unit)
    try:
        declared = item.declared(band.file.in_item, band.band.index, example)
        if declared is not None:
            return declared
        return item.of_band(band.band.names, (band.need.name, *band.need.synonyms), example)
    except InvalidInput:
        if settled:
            return Declaration()
        raise


def _check_scale(item: StacItem, band: InputBand, unit: float) -> None:
    """Raise `InvalidInput` for a band without a scale in an item that gives the scale of other bands of its asset."""
    names = (band.need.name, *band.need.synonyms)
    lacking = item.lacking(band.file.in_item, band.band.index, band.band.names, names)
    if lacking is not None:
        raise unclear_bands(lacking, _example(item, band, unit))


def _example(item: StacItem, band: InputBand, unit: float) -> str:
    """Return the `radiometry` of a request in the model's unit, with the scale that the item gives for the file."""
    one = item.scaling_of(band.file.in_item) or Declaration(1e-4)
    return request_text((one.scale or 1e-4) * unit, one.offset * unit)


@contextmanager
def naming(prefix: str) -> Iterator[None]:
    """Prefix the message of an `InputError` with the name of the file or the scene."""
    try:
        yield
    except InputError as error:
        if not prefix:
            raise
        raise type(error)(f"{prefix}: {error.detail}", errors=error.errors) from error
