"""Files made from a raster of classes: the COG with its names, the preview, and the polygons."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from penstock.processors.geo.options import ClassLabel
from penstock.processors.geo.request import PolygonRequest
from penstock.processors.geo.write.area import PixelArea
from penstock.processors.geo.write.cog import write_category_names
from penstock.processors.geo.write.geoparquet import GEOPARQUET_TYPE, MISSING, is_available, write_geoparquet
from penstock.processors.geo.write.lonlat import NoLonLat
from penstock.processors.geo.write.outlines import TooRagged
from penstock.processors.geo.write.preview import write_preview
from penstock.processors.geo.write.raster_set import RasterSet
from penstock.processors.geo.write.stac import classes_fields
from penstock.processors.geo.write.vector import (
    FLATGEOBUF_TYPE,
    GEOJSON_TYPE,
    find_polygons,
    write_flatgeobuf,
    write_geojson,
)

QML_TYPE = "application/xml"
#: Format of the style; later versions of QGIS read it, too.
_VERSION = "3.22.0"
_DOCTYPE = b"<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"


def add_class_raster(
    rasters: RasterSet,
    name: str,
    labels: Sequence[ClassLabel],
    *,
    preview: str | None,
    cog: bool = True,
    hidden: Collection[int] = (),
) -> None:
    """Add the COG of a closed raster with its class names and style, and a preview of this name.

    Classes that are `hidden` in the style are transparent.
    """
    artifacts = rasters.artifacts
    if cog:
        rasters.add_cog(name, "MODE", classes_fields(labels))
        write_category_names(path := artifacts.sink.path(f"{name}.tif.aux.xml"), labels)
        artifacts.add(path.name, path, "application/xml", title="class names", roles=("metadata",))
        write_style(path := artifacts.sink.path(f"{name}.qml"), labels, hidden=hidden)
        artifacts.add(path.name, path, QML_TYPE, title="style for QGIS", roles=("metadata",))
    if preview is not None:
        write_preview(rasters.path(name), path := artifacts.sink.path(preview), labels)
        artifacts.add(path.name, path, "image/png", title="preview", roles=("overview",))


def add_polygons(
    rasters: RasterSet,
    name: str,
    labels: Sequence[ClassLabel],
    area: PixelArea | None,
    request: PolygonRequest,
    *,
    stem: str | None = None,
    without: int | None = None,
) -> dict[str, Any]:
    """Add the polygon files `<stem>.fgb` and `<stem>.geojson` of a closed raster, without those of one class.

    Return their entry of the statistics: counts, and reasons for missing files.
    """
    artifacts, scene, stem = rasters.artifacts, rasters.scene, stem or name
    if scene.transform is None:
        return _no_polygons(stem, "The scene has no geotransform.")
    try:
        polygons = find_polygons(rasters.path(name), area, request, without=without)
    except TooRagged as error:
        return _no_polygons(stem, str(error))
    write_flatgeobuf(path := artifacts.sink.path(f"{stem}.fgb"), stem, polygons, scene, labels)
    artifacts.add(path.name, path, FLATGEOBUF_TYPE, title=stem, roles=("data",))
    path, notes = artifacts.sink.path(f"{stem}.geojson"), list[str]()
    if request.geoparquet and not is_available():
        notes.append(f"{stem}.parquet was not created: {MISSING}.")
    elif request.geoparquet:
        write_geoparquet(parquet := artifacts.sink.path(f"{stem}.parquet"), polygons, scene, labels)
        artifacts.add(parquet.name, parquet, GEOPARQUET_TYPE, title=stem, roles=("data",))
    try:
        write_geojson(path, polygons, scene, labels)
    except NoLonLat as error:
        path.unlink(missing_ok=True)
        notes.append(f"{stem}.geojson was not created: {error}.")
    else:
        artifacts.add(path.name, path, GEOJSON_TYPE, title=f"{stem}, EPSG:4326", roles=("data",))
    return {"count": len(polygons.classes), "left_out": polygons.dropped, "connectedness": 4, "notes": notes}


def _no_polygons(stem: str, why: str) -> dict[str, Any]:
    note = f"{stem}.fgb and {stem}.geojson were not created. {why}"
    return {"count": None, "left_out": None, "connectedness": 4, "notes": [note]}


def write_style(path: Path, labels: Sequence[ClassLabel], *, hidden: Collection[int] = ()) -> None:
    """Write a style with the name and the colour of each class; `hidden` ones are transparent."""
    root = ElementTree.Element("qgis", version=_VERSION, styleCategories="Symbology")
    renderer = ElementTree.SubElement(
        ElementTree.SubElement(root, "pipe"),
        "rasterrenderer",
        {"type": "paletted", "band": "1", "opacity": "1", "alphaBand": "-1", "nodataColor": ""},
    )
    palette = ElementTree.SubElement(renderer, "colorPalette")
    for label in labels:
        alpha = "0" if label.id in hidden else "255"
        entry = {"value": str(label.id), "label": label.name, "color": label.colour.lower(), "alpha": alpha}
        ElementTree.SubElement(palette, "paletteEntry", entry)
    ElementTree.SubElement(root, "blendMode").text = "0"
    ElementTree.indent(root)
    path.write_bytes(_DOCTYPE + ElementTree.tostring(root, encoding="utf-8") + b"\n")
