"""The works that every peer does: inputs, programs, and Penstock's records of them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.scenery import MEAN, STD, cheap_network, export, pins, record
from benchmarks.turns import NOOP, PREPARATION, write_image
from penstock.catalogue.records import read_catalogue
from penstock.processors.geo.sample import write_sample
from penstock.processors.geo.tiling.plan import Box, make_plan
from penstock.workers.engine.torch.csmask import load_csmask
from penstock.workers.engine.weights import read_weights

CUTS = {"csmask": (768, 96, 16), "convolutions": (768, 96, 16), "prithvi": (128, 0, 128)}
SIDE_PX, CLASSES = 224, 10

PICTURE = """
[models.picture]
title = "A tiny vision transformer with random weights"
runner = "torch"
processor = "image-classification"
source = "{source}"
revision = "1"
max_batch = 8
device = "cpu"
options = {{ threads = 1 }}
files = {{ {files} }}
"""


@dataclass(frozen=True, slots=True)
class Work:
    """A work: what one job is, how many there are, and how long a peer may take."""

    name: str
    title: str
    #: The folder with `work.json` for the peers' servers.
    folder: Path
    #: Penstock's record.
    record: str
    #: Jobs of the run without faults, and of the run with a kill.
    jobs: int
    kill_jobs: int
    in_flight: int
    #: Jobs in a batch, for peers that batch.
    batch: int
    #: Seconds after which a job without an answer is lost.
    patience_s: int
    #: Seconds after which brokers send an unacknowledged task again: more than the longest job takes.
    visibility_s: int
    #: Seconds between two questions for a job's status, where a peer must be asked.
    poll_s: float
    #: The file of a job: a picture or scene.
    media: Path | None = None
    numbers: Any = field(default_factory=lambda: count())

    @property
    def model(self) -> str:
        """The name of Penstock's record: `csmask` is a model that every installation has."""
        return f"{self.name}-scene" if self.name in CUTS else self.name

    def job(self) -> dict[str, Any]:
        """Return a job for a peer's server; scenes have an output path of their own."""
        if self.media is None:
            return {"text": "nothing"}
        if self.name == "picture":
            return {"image": base64.b64encode(self.media.read_bytes()).decode()}
        return {"scene": str(self.media), "out": str(self.folder / f"out-{next(self.numbers)}.tif")}


class Vit(nn.Module):
    """A vision transformer: 192 channels, 12 blocks, patches of 16 px, as ViT-tiny, and a few classes."""

    def __init__(self) -> None:
        """Fill the weights at random."""
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 16, 16)
        self.place = nn.Parameter(torch.randn(1, (SIDE_PX // 16) ** 2, 192) * 0.02)
        block = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 12, enable_nested_tensor=False)
        self.head = nn.Linear(192, CLASSES)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, classes)."""
        tokens = self.patches(pixels).flatten(2).transpose(1, 2) + self.place
        logits: torch.Tensor = self.head(self.blocks(tokens).mean(dim=1))
        return logits


def make_work(folder: Path, name: str, *, quick: bool, size_px: int, terratorch: Callable[[], Path]) -> Work:
    """Write the inputs and the program of a work; `terratorch` gives the Python that builds a Prithvi."""
    at, size_px = folder / name, 512 if quick else size_px
    at.mkdir()
    match name:
        case "noop":
            return noop(at, quick)
        case "picture":
            return picture(at, quick)
        case "csmask":
            return scene(at, quick, size_px, name, csmask_program(at), classes=5)
        case "convolutions":
            return scene(at, quick, size_px, name, cheap_network(at), classes=2)
        case _:
            program = prithvi_program(at, terratorch())
            return scene(at, quick, size_px, name, program, classes=3, options="threads = 1")


def noop(folder: Path, quick: bool) -> Work:
    """Return the work that does nothing."""
    order(folder, kind="noop")
    jobs = 100 if quick else 1000
    return Work(
        "noop", "No-op: a text in, the same text out", folder, NOOP, jobs, jobs // 2, 8, 8, 90, 20, 0.01
    )  # fmt: skip


def picture(folder: Path, quick: bool) -> Work:
    """Return the work with pictures of 224 px for a ViT-tiny."""
    torch.manual_seed(1)
    source = folder / "model"
    source.mkdir()
    free = {0: torch.export.Dim("batch", min=1, max=64)}
    program = torch.export.export(Vit().eval(), (torch.zeros(2, 3, SIDE_PX, SIDE_PX),), dynamic_shapes=(free,))
    torch.export.save(program, source / "program.pt2")
    description = f'[inputs.pixels]\ndtype = "float32"\nshape = [3, {SIDE_PX}, {SIDE_PX}]\n[outputs.logits]\n'
    (source / "penstock.toml").write_text(description)
    (source / "preprocessor_config.json").write_text(json.dumps(PREPARATION))
    labels = {str(number): f"class {number}" for number in range(CLASSES)}
    (source / "config.json").write_text(json.dumps({"id2label": labels}))
    order(folder, kind="picture", program="model/program.pt2")
    jobs = 40 if quick else 160
    title = "Pictures of 224 px, a ViT-tiny with random weights"
    return Work(
        "picture", title, folder, PICTURE.format(source=source, files=pins(source)), jobs, jobs // 2,
        8, 8, 90, 20, 0.01, write_image(folder),
    )  # fmt: skip


def scene(folder: Path, quick: bool, size_px: int, name: str, source: Path, *, classes: int, options: str = "") -> Work:
    """Return the work with one scene a job; the options are those of Penstock's record."""
    path = folder / "scene.tif"
    write_sample(path, size_px=size_px)
    tile_px, halo_px, stride_px = CUTS[name]
    plan = make_plan(
        size_px, size_px, tile_px=tile_px, halo_px=halo_px, stride_px=stride_px, pixel_bytes=1, strip_bytes=2**40
    )
    tiles = [(corners(tile.window), corners(tile.core)) for strip in plan.strips() for tile in strip.tiles]
    program = str((source / "program.pt2").relative_to(folder))
    order(folder, kind="scene", program=program, tiles=tiles, mean=[MEAN] * 6, std=[STD] * 6)
    cut = f"tile_px = {tile_px}\nhalo_px = {halo_px}\nstride_px = {stride_px}\n"
    title = f"{name}, a scene of {size_px} px, {len(tiles)} tiles of {tile_px} px with a halo of {halo_px} px"
    told = record(f"{name}-scene", runner="torch", source=source, options=options, cut=cut, classes=classes)
    return Work(
        name, title, folder, told,
        8 if quick else 3, 3, 2, 1, 45 if quick else 420, 20 if quick else 180, 0.1, path,
    )  # fmt: skip


def csmask_program(folder: Path) -> Path:
    """Export the U-Net of csmask."""
    published = load_csmask(read_weights(read_catalogue()["csmask"])).module
    return export(published, folder, reduce="none")


def prithvi_program(folder: Path, python: Path) -> Path:
    """Build a tiny Prithvi in TerraTorch's environment and export it."""
    source = folder / "model"
    script = Path(__file__).parent / "servers" / "prithvi_model.py"
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, "-P", script, source], capture_output=True, text=True, check=False, env=environment
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"TerraTorch could not export the network: {done.stderr[-500:]}")
    return source


def order(folder: Path, **told: Any) -> None:
    """Write `work.json`."""
    (folder / "work.json").write_text(json.dumps({"threads": os.cpu_count(), **told}))


def corners(box: Box) -> tuple[int, int, int, int]:
    """Return a box as numbers: top, left, bottom, right."""
    return box.top, box.left, box.bottom, box.right
