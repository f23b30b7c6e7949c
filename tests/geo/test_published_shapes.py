"""Scenes in shapes that people have: each gives the right map, or a refusal whose message alone leads to it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.catalogue.records import read_catalogue
from penstock.errors import InputError
from penstock.models import Model
from penstock.processors.base import Result
from penstock.processors.geo.regression import RasterRegression
from penstock.processors.numbers import as_floats
from tests.support.geo.scenes import Files, one_hot, read, segment

DATA = Path(__file__).parents[3] / "shared" / "data" / "round3"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")

MODEL = read_catalogue()["csmask"]
Map = npt.NDArray[np.uint8]


def strongest(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return as the class the strongest of five bands, each of which has a weight of its own."""
    weights = np.array([1.0, 1.1, 1.3, 0.7, 0.9], np.float32)[:, None, None]
    return one_hot((pixels[:5] * weights).argmax(axis=0))


def mapped(name: str, folder: Path, **request: Any) -> tuple[Map, Result]:
    sink, result = segment(DATA / name, folder, model=MODEL, network=strongest, **request)
    return read(sink.artifacts["classes.tif"])[0], result


def remedies(message: str) -> dict[str, Any]:
    """Return the fields of the request that a message gives as JSON, such as `"bands": [...]`."""
    found: dict[str, Any] = {}
    for at in re.finditer(r'"(\w+)": (?=[\[{])', message):
        try:
            value, _ = json.JSONDecoder().raw_decode(message, at.end())
        except ValueError:
            continue
        found.setdefault(at[1], value)
    return found


def mapped_by_the_message(name: str, folder: Path, **request: Any) -> Map:
    """Return the map of a scene; if it is refused, that of the request with what the message says."""
    try:
        return mapped(name, folder / "first", **request)[0]
    except InputError as refused:
        said = refused.detail
    given = remedies(said)
    assert given, said
    return mapped(name, folder / "second", **request | given)[0]


@pytest.fixture
def right(tmp_path: Path) -> Map:
    found, _ = mapped("right.tif", tmp_path / "right")
    assert len(np.unique(found)) == 6  # five classes and nodata
    return found


def test_bands_that_are_described_by_landsats_names_in_reverse(right: Map, tmp_path: Path) -> None:
    np.testing.assert_array_equal(mapped_by_the_message("names_sr_b.tif", tmp_path), right)


def test_zeros_beside_a_declared_nodata_of_nan_are_named_as_suspected_nodata(right: Map, tmp_path: Path) -> None:
    found, result = mapped("nodata_nan_zeros.tif", tmp_path / "out")
    numbers = read(DATA / "nodata_nan_zeros.tif")
    zeros = (numbers == 0).all(axis=0)
    assert result.data is not None
    (note,) = result.data["notes"]
    assert "% of the scene has the number 0 in all of" in note
    assert remedies(note) == {"radiometry": {"nodata": 0}}
    np.testing.assert_array_equal(found[~zeros], right[~zeros])
    declared, result = mapped("nodata_nan_zeros.tif", tmp_path / "declared", **remedies(note))
    np.testing.assert_array_equal(declared, np.where((numbers == 0).any(axis=0), 255, right))
    assert result.data is not None
    assert result.data["notes"] == []


def test_a_declared_scale_and_a_record_of_reflectance_10000_are_multiplied() -> None:
    [(name, record)] = tomllib.loads((DATA / "reflectance_10000.toml").read_text())["models"].items()
    processor = RasterRegression(Model(name=name, **record))
    request = processor.request(scene=str(DATA / "hls_scale_tag.tif"))
    bands = record["options"]["bands"]
    mean, std = (np.array([band[each] for band in bands])[:, None, None] for each in ("mean", "std"))
    expected = (read(DATA / "hls_scale_tag.tif") - mean) / std
    prompts = list(processor.pre_process(request, Files()).prompts)
    assert len(prompts) == 4
    whole = np.block([[[as_floats(prompts[2 * row + column]).data["pixels"] for column in (0, 1)] for row in (0, 1)]])
    np.testing.assert_allclose(np.squeeze(whole), expected, atol=1e-4)


def test_one_raster_band_for_six_bands_counts_for_all_or_is_refused(right: Map, tmp_path: Path) -> None:
    item = json.loads((DATA / "one_raster_band.json").read_text())
    found = mapped_by_the_message("stack.tif", tmp_path, stac=item)
    np.testing.assert_array_equal(found, right)
