"""Scenes in the shape in which catalogues and programs publish them, against the ready records.

`python -m tests.support.geo.catalogues` prints the table of `docs/explanation/radiometry.md`. Each shape names its
source: a published item or the provider's documentation. All hold the same reflectance, so that every decoded value is
known.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.catalogue.records import read_catalogue
from penstock.errors import InputError
from penstock.processors.geo.options import EmbeddingOptions, SceneOptions, SegmentationOptions, read_options
from penstock.processors.geo.read.inputs import read_inputs
from penstock.processors.geo.read.radiometry_check import check_radiometry
from penstock.processors.geo.request import SceneRequest
from tests.support.geo.catalogue_shapes import SHAPES, Shape
from tests.support.geo.scenes import Files, write_scene

Values = npt.NDArray[np.float64]
Outcome = Literal["read", "noted", "refused"]

READY = Path(__file__).parents[3] / "src/penstock/catalogue/ready"
#: Reflectance of crops, forest, ocean, red soil and cloud in the six bands.
SURFACES = (
    (0.03, 0.07, 0.03, 0.55, 0.2, 0.1),
    (0.02, 0.04, 0.02, 0.3, 0.12, 0.05),
    (0.06, 0.04, 0.025, 0.012, 0.006, 0.004),
    (0.08, 0.1, 0.2, 0.3, 0.4, 0.35),
    (0.72, 0.7, 0.7, 0.74, 0.62, 0.5),
)
#: Largest difference from the right reflectance: half a step of the coarsest encoding.
TOLERANCE = 6e-5


@cache
def reflectance() -> Values:
    """Return (6, 64, 64) reflectance of a usual scene."""
    rng = np.random.default_rng(7)
    surface = np.array(SURFACES)[rng.integers(0, len(SURFACES), (16, 16))].repeat(4, 0).repeat(4, 1)
    shaded = surface * (1 + 0.06 * rng.normal(size=(64, 64, 1))) + rng.normal(0, 0.002, (64, 64, 6))
    return np.moveaxis(shaded.clip(0.001, 1.2), -1, 0)


@dataclass(frozen=True, slots=True)
class Case:
    """A shape, read by a record."""

    shape: Shape
    record: str
    outcome: Outcome
    #: The refusal or the notes.
    text: str
    #: Largest difference from the right reflectance; None if refused.
    error: float | None

    @property
    def silent(self) -> bool:
        """True for wrong values without a note."""
        return self.outcome == "read" and (self.error is None or self.error > TOLERANCE)

    @property
    def wrongly_refused(self) -> bool:
        """True for the refusal of a scene that can be read as it is."""
        return self.shape.complete and (self.error is None or self.error > TOLERANCE)


def records() -> dict[str, SceneOptions]:
    """Return the options of a record of each unit of reflectance; both have the six bands."""
    prithvi = read_catalogue(READY / "prithvi-embeddings.toml")["prithvi-embeddings"]
    return {
        "csmask": read_options(read_catalogue()["csmask"], SegmentationOptions),
        "prithvi-embeddings": read_options(prithvi, EmbeddingOptions),
    }


class Web(Files):
    """Files at addresses."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        super().__init__()
        self._files = dict(files)

    def path(self, reference: str) -> Path:
        return self._files.get(reference) or Path(reference)


def case(shape: Shape, record: str, options: SceneOptions, folder: Path) -> Case:
    """Return the outcome of a shape with a record; only as many of its bands are used as the shape has."""
    used = options.model_copy(update={"bands": options.bands[: len(shape.names)]})
    request, files = _published(shape, folder)
    try:
        inputs = read_inputs(
            SceneRequest.model_validate(request),
            Web(files),
            used.bands,
            defaults=used.default_radiometry,
            reflectance=used.reflectance,
        )
        notes = [*inputs.notes, *check_radiometry(inputs, used)]
    except InputError as error:
        return Case(shape, record, "refused", error.detail, None)
    unit, wrong = used.reflectance or 1.0, 0.0
    numbers = _numbers(shape)
    for at, (band, one) in enumerate(zip(inputs.bands, inputs.radiometry.bands, strict=True)):
        name = shape.names.index(Path(band.file.reference).name) if shape.document else band.band.index - 1
        right = numbers[at] * shape.stored.scale + shape.stored.offset
        wrong = max(wrong, float(np.abs((numbers[name] * one.scale + one.offset) / unit - right).max()))
    return Case(shape, record, "noted" if notes else "read", " ".join(notes), wrong)


def _numbers(shape: Shape) -> npt.NDArray[Any]:
    stored = shape.stored
    numbers = (reflectance()[: len(shape.names)] - stored.offset) / stored.scale
    if stored.dtype.startswith("float"):
        return numbers.astype(stored.dtype)
    return np.rint(numbers).clip(1, np.iinfo(stored.dtype).max).astype(stored.dtype)


def _published(shape: Shape, folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """Write the files of a shape; return the request and the files by address."""
    numbers, stored = _numbers(shape), shape.stored
    if shape.document is None:
        profile = {"nodata": stored.nodata, "descriptions": shape.names}
        return {"scene": str(write_scene(folder / "stack.tif", numbers, **profile)), **shape.request}, {}
    document = shape.document(shape.names)
    tags = {"nodata": stored.nodata, "scales": None if stored.tag is None else (stored.tag,)}
    paths = {
        name: write_scene(folder / name, band[None], **tags) for name, band in zip(shape.names, numbers, strict=True)
    }
    addresses = (asset["href"] for asset in document["assets"].values())
    files = {address: paths[name] for address in addresses if (name := Path(address).name) in paths}
    for at, (address, content) in enumerate(shape.documents.items()):
        files[address] = folder / f"document-{at}.json"
        files[address].write_text(json.dumps(content))
    return {"stac": document, **shape.request}, files


def cases(folder: Path) -> list[Case]:
    """Return the outcomes of all shapes with all records."""
    found = []
    for at, shape in enumerate(SHAPES):
        for record, options in records().items():
            (own := folder / f"{at}-{record}").mkdir()
            found.append(case(shape, record, options, own))
    return found


def table(found: Sequence[Case]) -> str:
    """Return the table of the documentation."""
    names = list(records())
    lines = [f"| published by | scene | {' | '.join(names)} |", f"| --- | --- |{' --- |' * len(names)}"]
    for shape in SHAPES:
        outcomes = {one.record: one.outcome for one in found if one.shape is shape}
        lines.append(f"| {shape.catalogue} | {shape.what} | {' | '.join(outcomes[name] for name in names)} |")
    silent, wrong = sum(one.silent for one in found), sum(one.wrongly_refused for one in found)
    lines += ["", f"{len(found)} cases; silent errors: {silent}, refusals of right input: {wrong}."]
    return "\n".join(lines)


def main() -> int:
    """Print the table, and each fault; return the number of faults."""
    with tempfile.TemporaryDirectory() as folder:
        found = cases(Path(folder))
    sys.stdout.write(f"{table(found)}\n\n")
    for one in found:
        if "-v" in sys.argv or one.silent or one.wrongly_refused:
            place = f"{one.shape.catalogue}, {one.shape.what}, {one.record}"
            sys.stdout.write(f"{place}: {one.outcome}, error {one.error}: {one.text}\n")
    return sum(one.silent or one.wrongly_refused for one in found)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
