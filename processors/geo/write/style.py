"""Style of a class raster for QGIS, which reads `<name>.qml` beside `<name>.tif` when it opens the raster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from xml.etree import ElementTree

from penstock.processors.geo.options import ClassLabel

QML_TYPE = "application/xml"

#: Format of the style; later versions of QGIS read it, too.
_VERSION = "3.22.0"
_DOCTYPE = b"<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"


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
