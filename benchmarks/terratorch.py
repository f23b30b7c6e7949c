"""Scenes beside TerraTorch's `tiled_inference`: `python -m benchmarks.terratorch --python ENV/bin/python [PART ...]`.

Both map the same file with the same exported program, tiles, overlap and threads, one tile per batch, from the file to
a COG of classes, each in its own process (`library_scene`, `tiled_scene`) and in turns. Then the class maps are
compared with each other and with that of the whole image in one forward pass.

`halo`: tiles with a margin that is discarded. `hann`: averaged windows that overlap by half. `windows`: the same, but
TerraTorch also reads each window on demand. `defaults`: TerraTorch's default crops, overlap and batch, which is
different work. `benchmarks/README.md` describes how to create ENV.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.scenery import CUT, MEAN, STD, cheap_network, export, record, write_scene
from penstock.models import read_catalogue
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.sample import write_sample
from penstock.processors.geo.tiling.plan import make_plan
from penstock.workers.engine.torch.csmask import load_csmask
from penstock.workers.engine.weights import read_weights

PARTS = ("halo", "hann", "windows", "defaults")
NETWORKS = ("cheap", "csmask")
TILE_PX, HALO_PX, STRIDE_PX, HANN_PX = 768, 96, 16, 512
HANN_CUT = f'tile_px = {HANN_PX}\noverlap = "hann"\nstride_px = {STRIDE_PX}\n'
#: Maximum side in pixels for a forward pass of the whole image; more needs too much memory.
WHOLE_PX = 2048
NODATA = 255

Classes = npt.NDArray[np.uint8]
Told = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """Paths and parameters of the benchmark."""

    folder: Path
    python: Path
    rounds: int
    threads: int

    @property
    def catalogue(self) -> Path:
        """The file of the models."""
        return self.folder / "models.toml"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of both sides: the same threads and GDAL cache (GDAL's own default is larger)."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        return kept | threads | {"GDAL_CACHEMAX": "128", "HF_HUB_OFFLINE": "1", "PENSTOCK_CONFIG": ""}


@dataclass(frozen=True, slots=True)
class Case:
    """One scene for both sides."""

    part: str
    network: str
    size_px: int

    @property
    def model(self) -> str:
        """Name of the model record."""
        return f"{self.network}-{'hann' if self.part in ('hann', 'windows') else 'halo'}"

    @property
    def title(self) -> str:
        """Title in the tables."""
        return f"{self.network}, {self.size_px} px, {self.part}"

    def how(self) -> dict[str, object]:
        """Return TerraTorch's arguments: the same tiles as in our plan."""
        match self.part:
            case "halo":
                rows = make_plan(
                    self.size_px, self.size_px, tile_px=TILE_PX, halo_px=HALO_PX, stride_px=STRIDE_PX,
                    pixel_bytes=1, strip_bytes=2**40,
                ).rows  # fmt: skip
                tile = rows[0].stop
                return {"crop": tile + 2 * HALO_PX, "stride": tile, "delta": HALO_PX, "batch_size": 1}
            case "defaults":
                return {}
            case _:
                # The default margin of 8 px would need one more window along each side.
                return {"crop": HANN_PX, "stride": HANN_PX // 2, "delta": 0, "padding": False, "batch_size": 1}


def main(arguments: Sequence[str]) -> None:
    """Measure and print tables in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.terratorch", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to measure (default: all)")
    parser.add_argument("--python", type=Path, required=True, help="Python of the environment with TerraTorch")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=(2048, 4096), help="sizes of the scenes, multiples of 16 px"
    )
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS, help="networks to measure")
    parser.add_argument("--rounds", type=int, default=3, help="rounds")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of torch")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-terratorch-") as folder:
        bench = Bench(Path(folder), chosen.python, chosen.rounds, chosen.threads)
        cases = [
            Case(part, network, size)
            for network in chosen.networks
            for part in chosen.parts or PARTS
            for size in chosen.sizes
        ]
        write_catalogue(bench, chosen.networks, chosen.sizes)
        say(f"{bench.rounds} rounds, {bench.threads} threads, tables at the end; load {load()}")
        lines = [measure(bench, case) for case in cases]
    say("\n| network, scene, tiles | seconds, best / median | ratio | processor | peak | ratio | above idle | load |")
    say("| --- | --- | --- | --- | --- | --- | --- | --- |")
    say("\n".join(measured for measured, _ in lines))
    say("\n| class maps | differ from each other | at the border / inside | ours, theirs beside the whole image |")
    say("| --- | --- | --- | --- |")
    say("\n".join(compared for _, compared in lines))


def write_catalogue(bench: Bench, networks: Sequence[str], sizes: Sequence[int]) -> None:
    """Export the networks; write a record for each tiling, and one with the whole image as its tile."""
    whole = f"tile_px = {max(sizes)}\nhalo_px = 0\nstride_px = {STRIDE_PX}\n"
    text = ""
    for network in networks:
        source, classes = exported(bench, network, min(sizes)), 2 if network == "cheap" else 5
        new = partial(record, runner="torch", source=source, classes=classes)
        cuts = {"halo": CUT, "hann": HANN_CUT, "whole": whole}
        text += "".join(new(f"{network}-{name}", cut=cut) for name, cut in cuts.items())
    bench.catalogue.write_text(text)


def exported(bench: Bench, network: str, size_px: int) -> Path:
    """Export a network into the folder of its name."""
    if network == "cheap":
        folder = cheap_network(bench.folder, balanced_on=scene(bench, Case("", network, size_px)))
    else:
        published = load_csmask(read_weights(read_catalogue()["csmask"])).module
        folder = export(published, bench.folder, reduce="none")
    return folder.rename(bench.folder / network)


def scene(bench: Bench, case: Case) -> Path:
    """Return a scene, created once: fields of noise, or a scene with land, shadow and clouds for csmask."""
    path = bench.folder / f"{case.network}-{case.size_px}.tif"
    if not path.exists():
        if case.network == "cheap":
            write_scene(path, case.size_px)
        else:
            write_sample(path, size_px=case.size_px)
    return path


def measure(bench: Bench, case: Case) -> tuple[str, str]:
    """Return a line of figures and a line about the class maps."""
    ours: list[Told] = []
    theirs: list[Told] = []
    for turn in range(bench.rounds):
        ours.append(run_ours(bench, case))
        theirs.append(run_theirs(bench, case))
        told = [f"{name} {json.dumps(side[-1])}" for name, side in (("ours", ours), ("theirs", theirs))]
        say(f"<!-- {case.title}, round {turn + 1}, load {load()}: {'; '.join(told)} -->")
    return figures(case, ours, theirs), maps(bench, case)


def run_ours(bench: Bench, case: Case, model: str = "") -> Told:
    """Return the figures of `library_scene`; the map is `ours/classes.tif`, or that of another model."""
    paths = (scene(bench, first(case)), scene(bench, case), bench.folder / (model or "ours"))
    return told(bench, [sys.executable, "-m", "benchmarks.library_scene", bench.catalogue, model or case.model, *paths])


def run_theirs(bench: Bench, case: Case) -> Told:
    """Return the figures of `tiled_scene`; the map is `theirs.tif`."""
    order = {
        "program": str(bench.folder / case.network / "program.pt2"), "first": str(scene(bench, first(case))),
        "scene": str(scene(bench, case)), "out": str(bench.folder / "theirs.tif"), "how": case.how(),
        "windows": case.part == "windows", "mean": MEAN, "std": STD,
    }  # fmt: skip
    script = Path(__file__).with_name("tiled_scene.py")
    return told(bench, [bench.python, "-I", script, json.dumps(order)])


def first(case: Case) -> Case:
    """Return the small scene that is mapped before the measured one."""
    return Case(case.part, case.network, 512)


def told(bench: Bench, command: Sequence[object]) -> Told:
    """Run a process and return the JSON that it prints."""
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=bench.environment)
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: Told = json.loads(done.stdout.splitlines()[-1])
    return answer


def figures(case: Case, ours: Sequence[Told], theirs: Sequence[Told]) -> str:
    """Return a line of the first table: ours, theirs, and the ratio."""

    def both(name: str) -> tuple[float, float]:
        return median(told[name] for told in ours), median(told[name] for told in theirs)

    best_s = tuple(min(told["seconds"] for told in side) for side in (ours, theirs))
    seconds, processor, peak, idle, tiles = map(both, ("seconds", "processor_s", "peak_mb", "idle_mb", "tiles"))
    above = tuple(most - least for most, least in zip(peak, idle, strict=True))
    return (
        f"| {case.title}, {tiles[0]:.0f} / {tiles[1]:.0f} tiles "
        f"| {best_s[0]:.1f} / {seconds[0]:.1f}, {best_s[1]:.1f} / {seconds[1]:.1f} "
        f"| {best_s[0] / best_s[1]:.2f} / {seconds[0] / seconds[1]:.2f} "
        f"| {processor[0]:.1f}, {processor[1]:.1f} s "
        f"| {peak[0]:.0f}, {peak[1]:.0f} MB | {peak[0] / peak[1]:.2f} "
        f"| {above[0]:.0f}, {above[1]:.0f} MB: {above[0] / above[1]:.2f} | {load()} |"
    )


def maps(bench: Bench, case: Case) -> str:
    """Return a line of the second table: shares of the valid pixels."""
    ours, theirs = read(bench.folder / "ours" / "classes.tif"), read(bench.folder / "theirs.tif")
    valid = ours != NODATA
    if not np.array_equal(valid, theirs != NODATA):
        raise RuntimeError(f"{case.title}: the maps hold data at different places")
    differ, count = ours != theirs, valid.sum()
    border = differ & at_border(ours.shape)
    parts = f"{border.sum() / count:.1e} / {(differ & ~border).sum() / count:.1e}"
    whole = "not taken: too large"
    if case.size_px <= WHOLE_PX:
        run_ours(bench, case, f"{case.network}-whole")
        expected = read(bench.folder / f"{case.network}-whole" / "classes.tif")
        whole = f"{(ours != expected).sum() / count:.1e}, {(theirs != expected).sum() / count:.1e}"
    found = ", ".join(f"{(ours == label).sum() / count:.0%}" for label in np.unique(ours[valid]))
    return f"| {case.title} (classes {found}) | {differ.sum() / count:.1e} | {parts} | {whole} |"


def at_border(shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Return the mask of pixels within a halo of the scene's border."""
    border = np.ones(shape, bool)
    border[HALO_PX:-HALO_PX, HALO_PX:-HALO_PX] = False
    return border


def read(path: Path) -> Classes:
    """Return a class map."""
    with rasterio.open(path) as file:
        classes: Classes = file.read(1)
    return classes


def load() -> str:
    """Return the load average of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def say(line: str) -> None:
    """Print a line immediately, because the benchmark takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
