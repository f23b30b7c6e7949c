"""Encodings of reflectance against the check of radiometry: `python -m tests.support.geo.encodings`.

Writes every real scene of the shared data in every usual encoding, without tags, as users have them, and asks each
model with a declared unit of reflectance for its verdict. With csmask each map is computed twice, once as the model's
default reads the file and once rightly, and the share of labels that differ is the price of a silent error. Prints the
tables of `docs/explanation/radiometry.md`; takes about five minutes on two cores. `--fast` omits the maps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import penstock
from penstock.catalogue.records import read_catalogue
from penstock.errors import InvalidInput
from penstock.models import Model
from penstock.processors.geo.options import NODATA, SegmentationOptions, read_options
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.inputs import read_inputs
from penstock.processors.geo.read.radiometry_check import check_radiometry
from penstock.processors.geo.request import SegmentationRequest

Values = npt.NDArray[np.float64]
Outcome = Literal["refused", "noted", "accepted"]

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data" / "geo"
SIX = ("blue", "green", "red", "nir", "swir16", "swir22")
THIRTEEN = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12")
#: Share of labels from which an accepted map counts as a silent error.
SILENT = 0.005
#: Statistics of Prithvi-EO-2.0's training data, in units of 1e-4: its published `config.json`.
PRITHVI = {
    "mean": (1087.0, 1342.0, 1433.0, 2734.0, 1958.0, 1363.0),
    "std": (2248.0, 2179.0, 2178.0, 1850.0, 1242.0, 1049.0),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """An encoding of a file: number = (reflectance - offset) / scale, rounded for integers."""

    name: str
    dtype: str
    scale: float
    offset: float = 0.0
    #: Start of the name by which a message should call it; empty if the model's default is right.
    called: str = ""


def _sun(elevation: float) -> float:
    return float(np.sin(np.radians(elevation)))


STORED = (
    Stored("Sentinel-2 before 04.00, HLS, Landsat C1 level 2 (x 10000)", "uint16", 1e-4),
    Stored("reflectance", "float32", 1.0),
    Stored("Sentinel-2 since 04.00", "uint16", 1e-4, -0.1, "Sentinel-2 since"),
    Stored("Landsat C2 level 2", "uint16", 2.75e-5, -0.2, "Landsat Collection 2 level 2"),
    Stored("Landsat C1 or C2 level 1, sun at 50°", "uint16", 2e-5 / _sun(50), -0.1 / _sun(50), "Landsat level 1"),
    Stored("Landsat C1 or C2 level 1, sun at 28°", "uint16", 2e-5 / _sun(28), -0.1 / _sun(28), "Landsat level 1"),
    Stored("reflectance x 65535", "uint16", 1 / 65535, 0.0, "reflectance x 65535"),
    Stored("reflectance x 255", "uint16", 1 / 255, 0.0, "reflectance x 255"),
    Stored("percent", "uint16", 0.01, 0.0, "reflectance in percent"),
    Stored("reflectance x 10000", "float32", 1e-4, 0.0, "reflectance x 10000"),
    Stored("reflectance x 255", "float32", 1 / 255, 0.0, "reflectance x 255"),
    Stored("percent", "float32", 0.01, 0.0, "reflectance in percent"),
)


@dataclass(frozen=True, slots=True)
class RealScene:
    """A real scene as reflectance (bands, rows, columns), NaN without data."""

    name: str
    bands: tuple[str, ...]
    reflectance: Values


@dataclass(frozen=True, slots=True)
class Case:
    """A scene, stored in one encoding and read in another, and the verdict."""

    model: str
    scene: str
    stored: Stored
    #: Scale and offset of the request; None for the model's default.
    given: Stored | None
    outcome: Outcome
    #: The refusal or the notes.
    text: str
    #: True if the message names the right encoding first.
    named: bool
    #: Share of labels that differ from the right map; None if not computed.
    differ: float | None = None


@cache
def scenes() -> tuple[RealScene, ...]:
    """Return the real scenes of the shared data; the 13-band scene also as six bands."""
    found = [
        RealScene(name, SIX, _read(f"{name}.tif", slice(0, 6), 1 / 65535))
        for name in ("l8_betsiboka_20170118_6b", "l8_betsiboka_20200127_6b", "s2_l2a_aquileia_20190416_6b")
    ]
    found.append(RealScene("hls_tx", SIX, _read("hls_tx_10b_float32.tif", slice(1, 7), 1e-4)))
    with np.load(DATA / "s2cloudless_l1c_13b_with_expected.npz") as file:
        all_bands = np.moveaxis(file["s2_u16"].astype(np.float64), -1, 0) * 1e-4
    six = all_bands[[THIRTEEN.index(band) for band in ("B02", "B03", "B04", "B8A", "B11", "B12")]]
    return (*found, RealScene("s2_l1c", SIX, six), RealScene("s2_l1c_13b", THIRTEEN, all_bands))


def _read(name: str, bands: slice, scale: float) -> Values:
    with rasterio.open(DATA / name) as file:
        numbers, nodata = file.read()[bands].astype(np.float64), file.nodata
    return np.where((numbers == nodata).any(axis=0), np.nan, numbers * scale)


@cache
def models() -> Mapping[str, Model]:
    """Return the models with a declared unit: csmask, s2cloudless, and a record with Prithvi's statistics."""
    csmask = read_catalogue()["csmask"]
    s2cloudless = read_catalogue(ROOT / "src/penstock/catalogue/ready/s2cloudless.toml")["s2cloudless"]
    bands = [
        {**band, "mean": mean, "std": std, "range": None}
        for band, mean, std in zip(csmask.options["bands"], *PRITHVI.values(), strict=True)
    ]
    defaults = [
        {"dtypes": ["uint16", "int16"], "scale": 1.0, "nodata": 0.0},
        {"dtypes": ["float32"], "scale": 10_000.0},
    ]
    options = {**csmask.options, "bands": bands, "reflectance": 10_000.0, "default_radiometry": defaults}
    prithvi = csmask.model_copy(update={"name": "prithvi", "options": {**options, "plausible_mean": None}})
    return {"csmask": csmask, "prithvi": prithvi, "s2cloudless": s2cloudless}


def write(scene: RealScene, stored: Stored, path: Path) -> Path:
    """Write a scene in an encoding as a GeoTIFF without tags; pixels without data are 0, or NaN in floats."""
    numbers = (scene.reflectance - stored.offset) / stored.scale
    if stored.dtype != "float32":
        # 1 is the lowest valid number of the products, because 0 is fill.
        numbers = np.nan_to_num(np.rint(numbers).clip(1, np.iinfo(stored.dtype).max), nan=0)
    count, height, width = numbers.shape
    profile = {"driver": "GTiff", "count": count, "height": height, "width": width, "dtype": stored.dtype}
    place = {"crs": "EPSG:32633", "transform": rasterio.Affine(30, 0, 500_000, 0, -30, 5_000_000)}
    with rasterio.open(path, "w", photometric="MINISBLACK", **profile, **place) as file:
        file.write(numbers.astype(stored.dtype))
        file.descriptions = scene.bands
    return path


class _Files:
    """Media of local files."""

    def path(self, reference: str) -> Path:
        return Path(reference)

    def etag(self, reference: str) -> str | None:
        return reference

    def is_partial(self, _reference: str) -> bool:
        return False

    def fill(self, reference: str, ranges: Sequence[tuple[int, int]], *, later: bool = False) -> None:
        """Local files are whole."""

    def fetch(self, reference: str, *, by_range: bool = False) -> None:
        """Local files are there."""

    def checkpoints(self, _prefix: str) -> Mapping[str, Path]:
        return {}


def verdict(model: Model, scene: RealScene, path: Path, stored: Stored, given: Stored | None = None) -> Case:
    """Return the verdict on a written scene that is read by the model's default, or as the request gives."""
    options = read_options(model, SegmentationOptions)
    unit = options.reflectance or 1.0
    request = {} if given is None else {"scale": given.scale * unit, "offset": given.offset * unit}
    asked = SegmentationRequest.model_validate({"scene": str(path), **({"radiometry": request} if request else {})})
    inputs = read_inputs(asked, _Files(), options.bands, defaults=options.default_radiometry, reflectance=unit)
    outcome: Outcome = "accepted"
    try:
        text = " ".join(check_radiometry(inputs, options))
        outcome = "noted" if text else "accepted"
    except InvalidInput as error:
        outcome, text = "refused", error.detail
    _, _, after = text.partition("look like " if outcome == "refused" else "If the numbers are ")
    named = bool(stored.called) and after.startswith(stored.called)
    return Case(model.name, scene.name, stored, given, outcome, text, named)


def cases(folder: Path) -> Iterator[Case]:
    """Yield the verdicts on all scenes in all encodings: read by default, then as each encoding."""
    by_request = [stored for stored in STORED if stored.dtype == "uint16" or stored.name == "reflectance"]
    for scene in scenes():
        for at, stored in enumerate(STORED):
            path = write(scene, stored, folder / f"{scene.name}-{at}.tif")
            for model in models().values():
                if (model.name == "s2cloudless") == (scene.bands == THIRTEEN):
                    yield verdict(model, scene, path, stored)
                    for given in by_request:
                        yield verdict(model, scene, path, stored, given)


def right(case: Case) -> bool:
    """Return True if the file is read as it is stored."""
    given = case.given
    return not case.stored.called if given is None else (given.scale, given.offset) == _meaning(case.stored)


def _meaning(stored: Stored) -> tuple[float, float]:
    return stored.scale, stored.offset


def with_labels(case: Case, engine: penstock.Engine, folder: Path) -> Case:
    """Return the case with the share of csmask's labels that differ from the right map of the same file."""
    scene = next(scene for scene in scenes() if scene.name == case.scene)
    path = write(scene, case.stored, folder / "scene.tif")
    rightly = _labels(engine, path, folder, {"scale": case.stored.scale, "offset": case.stored.offset})
    given = {} if case.given is None else {"scale": case.given.scale, "offset": case.given.offset}
    read = _labels(engine, path, folder, given)
    return replace(case, differ=float((read != rightly)[rightly != NODATA].mean()))


def _labels(engine: penstock.Engine, path: Path, folder: Path, radiometry: Mapping[str, Any]) -> npt.NDArray[np.uint8]:
    request = {"radiometry": {**radiometry, "trust": True}, "outputs": ["classes"]}
    result = engine.run("csmask", scene=path, out=folder / "out", **request)
    with rasterio.open(result.artifacts["classes.tif"].path) as file:
        return np.asarray(file.read(1))


def default_table(found: list[Case]) -> str:
    """Return the table of files that are read by the model's default."""
    lines = [
        "| numbers in the file | type | cases | refused | noted | accepted | named first | labels that would differ |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for stored in STORED:
        of = [case for case in found if case.stored == stored and case.given is None]
        count = Counter(case.outcome for case in of)
        named = f"{sum(case.named for case in of)}" if stored.called else "-"
        shares = [case.differ for case in of if case.differ is not None]
        differ = f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %" if shares else "-"
        lines.append(
            f"| {stored.name} | {stored.dtype} | {len(of)} | {count['refused']} | {count['noted']} "
            f"| {count['accepted']} | {named} | {differ} |"
        )
    return "\n".join(lines)


def request_table(found: list[Case]) -> str:
    """Return the table of files whose request gives the right encoding, or a wrong one."""
    lines = [
        "| the request gives | cases | refused | noted | accepted | accepted, labels that differ |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for title, is_right in (("the right encoding", True), ("another encoding", False)):
        of = [case for case in found if case.given is not None and right(case) == is_right]
        count = Counter(case.outcome for case in of)
        shares = [case.differ for case in of if case.differ is not None and case.outcome == "accepted"]
        differ = f"at most {100 * max(shares):.2f} %" if shares else "-"
        lines.append(
            f"| {title} | {len(of)} | {count['refused']} | {count['noted']} | {count['accepted']} | {differ} |"
        )
    return "\n".join(lines)


def _counts(case: Case) -> bool:
    """Return True if the labels are needed: for the table of defaults, and of every accepted error in six bands."""
    accepted = not right(case) and case.outcome == "accepted" and not case.scene.endswith("_13b")
    return accepted or (case.model == "csmask" and case.given is None)


def silent(case: Case) -> bool:
    """Return True for a wrong map without a note."""
    return not right(case) and case.outcome == "accepted" and (case.differ is None or case.differ > SILENT)


def main(*, fast: bool) -> int:
    """Print the tables; return the number of silent errors and of refusals of right input."""
    with tempfile.TemporaryDirectory() as folder:
        found = list(cases(Path(folder)))
        if not fast:
            with penstock.Engine() as engine:
                found = [with_labels(case, engine, Path(folder)) if _counts(case) else case for case in found]
    silently = [case for case in found if silent(case)]
    wrongly = [case for case in found if right(case) and case.outcome == "refused"]
    sys.stdout.write(f"{default_table(found)}\n\n{request_table(found)}\n\n")
    for case in (*silently, *wrongly):
        given = case.given.name if case.given else "the default"
        differ = "" if case.differ is None else f", {100 * case.differ:.2f} % of the labels differ"
        sys.stdout.write(f"{case.outcome}: {case.model}, {case.scene}: {case.stored.name} as {given}{differ}\n")
    sys.stdout.write(f"silent errors: {len(silently)}, refusals of right input: {len(wrongly)}\n")
    return len(silently) + len(wrongly)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="omit the maps of csmask")
    sys.exit(1 if main(fast=parser.parse_args().fast) else 0)
