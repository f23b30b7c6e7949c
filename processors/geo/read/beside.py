"""Files beside a raster file: an external mask (`.msk`), GDAL's metadata (`.aux.xml`), and a world file (`.tfw`).

GDAL's own search for such files is off (`gdal`): the request names them, and each is opened alone. What a file is, its
contents tell. As in GDAL, the metadata replace those of the raster file, and a world file is only used where neither
has a georeference.

Sources: https://gdal.org/user/pam.html, https://gdal.org/drivers/raster/wld.html,
https://gdal.org/development/rfc/rfc15_nodatabitmask.html.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from penstock.errors import InputError, InvalidInput, MediaUnreadable
from penstock.models import Limits
from penstock.processors.geo.read.bands import bands_in_words
from penstock.processors.geo.read.gdal import CPLE_BaseError, CRSError, rasterio
from penstock.processors.geo.read.metadata import parse_number, parse_xml, read_text
from penstock.processors.geo.read.raster import Scene, is_tiff, read_scene

#: Elements of `.aux.xml` that place a raster and are not read.
_UNREAD = {"GCPList": "ground control points", "GeodataXform": "transformations of ArcGIS"}


#: Code of a CRS, also as a URN.
_CODE = re.compile(r"(?:urn:ogc:def:crs:)?([A-Za-z]{2,12}):(?:[0-9.]*:)?([0-9A-Za-z]{1,16})")


@dataclass(frozen=True, slots=True)
class Beside:
    """Contents of the files beside a raster file."""

    #: Path and header of the mask: one band for all bands, or a band for each.
    mask: tuple[Path, Scene] | None = None
    #: Root of the metadata.
    aux: ElementTree.Element | None = None
    #: Affine transform of the world file.
    world: Any | None = None
    #: Name of the `mask` and of the `aux` file.
    names: Mapping[str, str] = field(default_factory=dict)
    #: Notes on what was not used.
    notes: tuple[str, ...] = field(default=())


def read_beside(files: Sequence[tuple[str, Path]], limits: Limits) -> Beside:
    """Read the files beside a raster file, each with its name. Raises an `InputError` for a file of no such kind."""
    found = Beside()
    for name, path in files:
        with _naming(name):
            if is_tiff(path):
                found = replace(found, mask=(path, read_scene(path, limits)), names={**found.names, "mask": name})
                continue
            if name.lower().endswith(".msk"):
                raise MediaUnreadable("The mask is damaged or incomplete: it is not a TIFF file.")
            text = read_text(path, "file")
            if text.lstrip().startswith("<") or name.lower().endswith(".xml"):
                found = replace(found, aux=_aux(parse_xml(text, "file")), names={**found.names, "aux": name})
            else:
                found = replace(found, world=_world(text))
    return found


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name a file beside the scene in errors, and the request without it."""
    try:
        yield
    except InputError as error:
        raise type(error)(
            f'{name}, beside the scene: {error.detail} "beside": [] reads the scene without the files beside it.',
            errors=error.errors,
        ) from error


def _aux(root: ElementTree.Element) -> ElementTree.Element:
    if root.tag != "PAMDataset":
        raise MediaUnreadable(
            f"The XML file is a {root.tag[:40]!r}; it must be GDAL's .aux.xml, a PAMDataset. Product "
            "metadata belong into `sidecar`."
        )
    return root


def _world(text: str) -> Any:
    """Return the affine transform of a world file: A, D, B, E, and the centre C, F of the upper left pixel."""
    numbers = text.split()
    if len(numbers) != 6:
        raise MediaUnreadable(f"The text file has {len(numbers)} words; it must be a world file (.tfw) of six numbers.")
    a, d, b, e, c, f = (parse_number(number, "world file's number") for number in numbers)
    transform = rasterio.Affine(a, b, c - (a + b) / 2, d, e, f - (d + e) / 2)
    if not all(map(math.isfinite, tuple(transform))) or transform.determinant == 0:
        raise InvalidInput("The world file is not usable: its six numbers must be finite and not 0.")
    return transform


def with_beside(scene: Scene, beside: Beside) -> tuple[Scene, tuple[str, ...]]:
    """Return the header of a scene with what the files beside it say, and notes on what was not used.

    Raises an `InputError` for a file that does not fit the scene.
    """
    notes: tuple[str, ...] = ()
    if beside.mask is not None:
        with _naming(beside.names["mask"]):
            _check_mask(beside.mask[1], scene)
        scene = replace(scene, outer_mask=beside.mask)
    if beside.aux is not None:
        with _naming(beside.names["aux"]):
            scene = _with_bands(_placed(scene, beside.aux), beside.aux)
        unread = [words for name, words in _UNREAD.items() if beside.aux.find(f".//{name}") is not None]
        notes = tuple(f"The .aux.xml beside the scene has {words}, which were not used." for words in unread)
    if beside.world is not None and scene.transform is None and not scene.gcps:
        scene = replace(scene, transform=beside.world)
    elif beside.world is not None and _differs(scene, beside.world):
        notes += ("The world file beside the scene has another place than the scene's own. It was not used.",)
    return scene, notes


def beside_notes(scene: Scene, *, named: bool) -> Iterator[str]:
    """Yield a note for a scene that files beside it may place, but give no CRS, nor does its STAC item."""
    if named and scene.crs is None and scene.transform is not None:
        yield (
            "The scene has a place but no CRS, and a world file gives none: the results have no CRS. Write it into the "
            "file (e.g. gdal_edit.py -a_srs EPSG:32633 FILE; a .prj is not read) or into its .aux.xml."
        )


def _check_mask(mask: Scene, scene: Scene) -> None:
    if (mask.height, mask.width) != (scene.height, scene.width) or mask.count not in (1, scene.count):
        raise InvalidInput(
            f"The mask has {mask.width} x {mask.height} pixels ({bands_in_words(mask.count)}); the "
            f"scene has {scene.width} x {scene.height} ({bands_in_words(scene.count)}). A .msk file has the scene's "
            "pixels, and one band or as many as the scene."
        )


def _differs(scene: Scene, transform: Any) -> bool:
    """Return True if a transform places the scene's corners more than half a pixel away."""
    if scene.transform is None:
        return True
    corners = [(u, v) for u in (0, scene.width) for v in (0, scene.height)]
    return max(math.dist(~scene.transform @ (transform @ corner), corner) for corner in corners) > 0.5


def _placed(scene: Scene, aux: ElementTree.Element) -> Scene:
    """Return a scene with the CRS and the transform of its metadata."""
    crs, numbers = aux.findtext("SRS"), aux.findtext("GeoTransform")
    if crs and crs.strip():
        scene = replace(scene, crs=_crs(crs.strip()))
    if numbers:
        given = [parse_number(number, ".aux.xml's GeoTransform") for number in numbers.split(",")]
        if len(given) != 6 or not all(map(math.isfinite, given)) or given[1] * given[5] == given[2] * given[4]:
            raise MediaUnreadable("Its GeoTransform is not six usable numbers.")
        scene = replace(scene, transform=rasterio.Affine.from_gdal(*given), gcps=(), gcps_crs=None)
    return scene


def _crs(text: str) -> Any:
    """Return the CRS of a text: WKT or, as GDAL reads it too, the code of an authority."""
    code = _CODE.fullmatch(text)
    try:
        return rasterio.crs.CRS.from_authority(code[1], code[2]) if code else rasterio.crs.CRS.from_wkt(text)
    except (CRSError, CPLE_BaseError) as error:
        raise MediaUnreadable(
            f"Its SRS is {text[:60]!r}, which is neither WKT nor a known code such as EPSG:32633."
        ) from error


def _with_bands(scene: Scene, aux: ElementTree.Element) -> Scene:
    """Return a scene with the names, scales, offsets and nodata numbers of its metadata."""
    bands, each = list(scene.bands), {}
    for element in aux.findall("PAMRasterBand"):
        number = element.get("band", "")
        if number.isdecimal() and 1 <= int(number) <= scene.count:
            each[int(number)] = element
    bands = [
        replace(band, name=name) if band.index in each and (name := each[band.index].findtext("Description")) else band
        for band in bands
    ]

    def values(name: str, own: Sequence[Any]) -> tuple[Any, ...]:
        given = {at: text for at, element in each.items() if (text := element.findtext(name))}
        return tuple(
            parse_number(given[at], f".aux.xml's {name}") if at in given else value for at, value in enumerate(own, 1)
        )

    return replace(
        scene, bands=tuple(bands), scales=values("Scale", scene.scales), offsets=values("Offset", scene.offsets),
        nodata=values("NoDataValue", scene.nodata),
    )  # fmt: skip
