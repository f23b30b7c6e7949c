"""The style for QGIS beside a class raster: names and colours of the classes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from penstock.processors.geo.options import ClassLabel
from penstock.processors.geo.write.class_files import write_style
from tests.support.geo.scenes import make_model, pattern, segment, write_scene

#: Opens a raster and prints its renderer, its legend, and the colours of an image of it.
SCRIPT = """
import os, sys
from qgis.core import QgsApplication, QgsRasterLayer, QgsVectorLayer
app = QgsApplication([], False)
app.initQgis()
layer = QgsRasterLayer(sys.argv[1], "classes")
assert layer.isValid()
print(type(layer.renderer()).__name__)
for part in layer.renderer().classes():
    print(part.value, part.label, part.color.name(), part.color.alpha())
block = layer.renderer().block(1, layer.extent(), layer.width(), layer.height())
print(",".join(str(block.color(0, column) & 0xFFFFFFFF) for column in range(layer.width())))
vector = QgsVectorLayer(sys.argv[2], "polygons")
assert vector.isValid() and vector.featureCount() > 0
sys.stdout.flush()
os._exit(0)  # exitQgis crashes without a display
"""


def test_names_are_escaped_and_hidden_classes_are_transparent(tmp_path: Path) -> None:
    labels = [
        ClassLabel(id=0, name='no <water> & "ice"', colour="#F0F0F0"),
        ClassLabel(id=1, name="été", colour="#e08214"),
    ]
    write_style(path := tmp_path / "change.qml", labels, hidden=[0])
    entries = [entry.attrib for entry in ElementTree.parse(path).iter("paletteEntry")]
    assert entries == [
        {"value": "0", "label": 'no <water> & "ice"', "color": "#f0f0f0", "alpha": "0"},
        {"value": "1", "label": "été", "color": "#e08214", "alpha": "255"},
    ]


def python_with_qgis() -> str | None:
    """Return the system's Python if it has QGIS (Debian's package python3-qgis)."""
    python = shutil.which("python3", path="/usr/bin")
    if (
        python is None
        or subprocess.run([python, "-c", "import qgis.core"], capture_output=True, check=False).returncode
    ):
        return None
    return python


def test_qgis_opens_the_results_with_names_and_colours(tmp_path: Path) -> None:
    python = python_with_qgis()
    if python is None:
        pytest.skip("needs QGIS: apt-get install python3-qgis")
    scene = write_scene(tmp_path / "scene.tif", pattern(20, 30))
    sink, _ = segment(scene, tmp_path / "out", outputs=("classes", "polygons"))
    done = subprocess.run(
        [python, "-c", SCRIPT, str(sink.artifacts["classes.tif"]), str(sink.artifacts["polygons.fgb"])],
        env={"QT_QPA_PLATFORM": "offscreen", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    renderer, *classes, pixels = done.stdout.split("\n")[:7]
    labels = make_model().options["classes"]
    assert renderer == "QgsPalettedRasterRenderer"
    assert classes == [f"{float(one['id'])} {one['name']} {one['colour']} 255" for one in labels] or classes == [
        f"{one['id']} {one['name']} {one['colour']} 255" for one in labels
    ]
    colours = [int(f"ff{labels[int(value)]['colour'][1:]}", 16) for value in pattern(20, 30)[0, 0] % 5]
    assert [int(text) for text in pixels.split(",")] == colours
    assert np.unique(colours).size == 5
