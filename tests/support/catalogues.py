"""Catalogues of small models for the tests of `penstock run`, `penstock models` and `penstock.Engine`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: A raster model without a network: the runner answers at once, class 0 where the band is brighter.
TOY = """
[models.toy]
title = "A toy"
runner = "fake"
processor = "raster-segmentation"
source = "."
revision = "1"
aliases = ["plaything"]
limits = {{ max_bytes = {max_bytes}, max_pixels = 100_000 }}

[models.toy.options]
halo_px = 0
tile_px = 32
bands = [{{ name = "blue", mean = 0.0, std = 1.0 }}, {{ name = "green", mean = 0.0, std = 1.0 }}]
classes = [{{ id = 0, name = "a", colour = "#000000" }}, {{ id = 1, name = "b", colour = "#ffffff" }}]
default_radiometry = [{{ dtypes = ["uint16"], scale = 1e-4, nodata = 0.0 }}]
"""

BROKEN = """
[models.no-processor]
title = "Names a processor that nobody installed"
runner = "fake"
processor = "telepathy"
source = "."
revision = "1"

[models.no-weights]
title = "Its file is not there"
runner = "torch"
processor = "raster-segmentation"
source = "gone.onnx"
revision = "1"

[models.no-runner]
title = "Names a runner that there is not"
runner = "abacus"
processor = "text-generation"
source = "."
revision = "1"

[models.other-bytes]
title = "Its file is not the one that was pinned"
runner = "fake"
processor = "raster-segmentation"
source = "weights.bin"
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
revision = "1"
"""

STORIES = """
[models.stories]
title = "Short stories"
runner = "transformers"
processor = "text-generation"
source = "{source}"
revision = "1"
"""


def toy(folder: Path, *, max_bytes: int = 10_000_000) -> Path:
    """Write the toy's catalogue."""
    path = folder / "toy.toml"
    path.write_text(TOY.format(max_bytes=max_bytes))
    return path


def broken(folder: Path) -> Path:
    """Write a catalogue of models that cannot be used, each for another reason."""
    (folder / "weights.bin").write_bytes(b"not these")
    path = folder / "broken.toml"
    path.write_text(BROKEN)
    return path


def stories(folder: Path, source: Path) -> Path:
    """Write the catalogue of a text generation directory."""
    path = folder / "stories.toml"
    path.write_text(STORIES.format(source=source))
    return path


def penstock(folder: Path, *words: str, typed: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder, with this on its standard input."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words], cwd=folder, env=kept | {"COLUMNS": "200"} | env, input=typed,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
