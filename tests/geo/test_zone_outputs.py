"""Quantities, objects and vectors of zones, and the table of zones."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from penstock.processors.geo.write.percentiles import PERCENTILES, statistics_of
from tests.geo.test_detection import detect, harbour
from tests.geo.test_embedding import embed, vector_model
from tests.geo.test_regression import TWO, estimate, value_model
from tests.support.geo.scenes import NORTH_UP, pattern, read, write_scene
from tests.support.geo.shares import SHAPES, UTM, collection, on_the_map, pixel_m2, shares_of, zones

SIDE = 121


def rows_of(path: Path) -> list[dict[str, str]]:
    assert path.read_bytes().startswith(b"\xef\xbb\xbfzone,")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


@given(
    numbers=st.lists(st.tuples(st.floats(-100, 100, width=32), st.integers(1, 1000)), min_size=1, max_size=60),
    cut=st.integers(0, 60),
)
def test_weighted_percentiles_are_those_of_numpy(numbers: list[tuple[float, int]], cut: int) -> None:
    values = np.array([value for value, _ in numbers], np.float32)
    weights = np.array([weight for _, weight in numbers]) / 1024  # sums are exact
    found = statistics_of(lambda: [(values[:cut], weights[:cut]), (values[cut:], weights[cut:])])
    ranks = np.quantile(values, np.array(PERCENTILES) / 100, weights=weights, method="inverted_cdf")
    assert [*found.percentiles.values()] == ranks.tolist()
    mean = np.average(values.astype(np.float64), weights=weights)
    assert found.count == weights.sum()
    assert found.mean == pytest.approx(mean, abs=1e-9)
    assert found.deviation == pytest.approx(np.sqrt(np.average((values - mean) ** 2, weights=weights)), abs=1e-6)


def test_quantities_have_the_statistics_of_their_covered_pixels(tmp_path: Path) -> None:
    numbers = pattern(SIDE, SIDE)
    numbers[0, 40:60, 30:50] = 0
    scene = write_scene(tmp_path / "scene.tif", numbers, nodata=0)
    sink, result = estimate(scene, tmp_path / "out", value_model(), zones=zones())
    assert result.data is not None
    bands, m2 = read(sink.artifacts["values.tif"]), pixel_m2(SIDE, SIDE)
    for zone in result.data["zones"]:
        share = shares_of(SHAPES[zone["name"]], SIDE, SIDE)
        assert zone["pixels"] == pytest.approx(share.sum(), abs=1e-4)
        assert zone["area_m2"] == pytest.approx((share * m2).sum(), rel=1e-6, abs=1e-3)
        assert [each["name"] for each in zone["values"]] == [each["name"] for each in TWO]
        for band, found in zip(bands.astype(np.float64), zone["values"], strict=True):
            here = (share > 1e-9) & np.isfinite(band)
            values, weights = band[here], share[here]
            assert found["count"] == pytest.approx(weights.sum())
            if not len(values):
                assert (found["mean"], found["percentiles"]) == (None, {})
                continue
            mean = np.average(values, weights=weights)
            assert (found["min"], found["max"]) == (values.min(), values.max())
            assert found["mean"] == pytest.approx(mean)
            assert found["std"] == pytest.approx(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
            ranks = np.quantile(values, np.array(PERCENTILES) / 100, weights=weights, method="inverted_cdf")
            assert [*found["percentiles"].values()] == ranks.tolist()
    rows = rows_of(sink.artifacts["zones.csv"])
    assert [row["zone"] for row in rows] == [*SHAPES]
    assert float(rows[0]["depth p50"]) == result.data["zones"][0]["values"][0]["percentiles"]["50"]
    assert (rows[-1]["depth mean"], rows[-1]["depth p50"]) == ("", "")


def test_a_zone_of_the_whole_scene_has_the_statistics_of_the_scene(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(SIDE, SIDE), nodata=0)
    _, result = estimate(scene, tmp_path / "out", value_model(), zones=zones({"all": shapely.box(-9, -9, 200, 200)}))
    assert result.data is not None
    [zone] = result.data["zones"]
    for found, whole in zip(zone["values"], result.data["values"], strict=True):
        for key in ("count", "min", "max", "percentiles"):
            assert found[key] == whole[key]
        assert found["mean"] == pytest.approx(whole["mean"], rel=1e-12)


@pytest.mark.parametrize("cut", [False, True], ids=["scene", "area"])
def test_objects_count_in_the_zones_that_have_their_centres(cut: bool, tmp_path: Path) -> None:
    numbers, boxes = harbour(2, SIDE, SIDE)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    area = shapely.box(20, 30, 110, 115)
    asked = {"area": {"geometry": json.loads(shapely.to_geojson(on_the_map(area))), "crs": UTM}} if cut else {}
    sink, result = detect(scene, tmp_path / "out", zones=zones(), **asked)
    assert result.data is not None
    found = json.loads(sink.artifacts["objects.geojson"].read_text())["features"]
    centres = [
        (each["properties"]["label"], shapely.Point((left + right) / 2, (top + bottom) / 2))
        for each in found
        for left, top, right, bottom in [each["properties"]["pixels"]]
    ]
    assert len(centres) == result.data["objects"]["count"]
    assert cut or len(centres) == len(boxes)
    for zone in result.data["zones"]:
        expected = [label for label, point in centres if SHAPES[zone["name"]].intersects(point)]
        assert zone["objects"]["count"] == len(expected)
        assert {each["label"]: each["count"] for each in zone["objects"]["labels"]} == {
            label: expected.count(label) for label in set(expected)
        }
    assert max(zone["objects"]["count"] for zone in result.data["zones"]) > 5
    rows = rows_of(sink.artifacts["zones.csv"])
    for row, zone in zip(rows, result.data["zones"], strict=True):
        assert int(row["objects"]) == zone["objects"]["count"]
        assert sum(int(row[name]) for name in row if name in ("boat objects", "ship objects")) == int(row["objects"])


@pytest.mark.parametrize("patch", [{"tile_px": 16}, {"tile_px": 32, "patch_px": 8}], ids=["tiles", "patches"])
@pytest.mark.parametrize("cut", [False, True], ids=["scene", "area"])
def test_vectors_have_a_mean_by_the_covered_shares_of_their_cells(
    cut: bool, patch: dict[str, int], tmp_path: Path
) -> None:
    numbers, side = pattern(SIDE, SIDE), patch.get("patch_px", patch["tile_px"])
    numbers[0, 32:64, 32:64] = 0
    scene = write_scene(tmp_path / "scene.tif", numbers, nodata=0)
    box = shapely.box(21, 35, 99, 115) if cut else shapely.box(0, 0, SIDE, SIDE)
    area = {"area": {"geometry": json.loads(shapely.to_geojson(on_the_map(box))), "crs": UTM}} if cut else {}
    sink, result = embed(scene, tmp_path / "out", vector_model(**patch), zones=zones(), **area)
    assert result.data is not None
    vectors = read(sink.artifacts["embeddings.tif"]).astype(np.float64)
    top, left = (int(edge) // side for edge in (box.bounds[1], box.bounds[0]))
    for zone in result.data["zones"]:
        inside = shapely.transform(shapely.intersection(SHAPES[zone["name"]], box), lambda xy: xy / side - [left, top])
        weights = np.where(np.isnan(vectors[0]), 0, shares_of(inside, *vectors.shape[1:]))
        assert zone["embeddings"]["count"] == pytest.approx(weights.sum(), abs=1e-4)
        if weights.sum():
            mean = (np.nan_to_num(vectors) * weights).sum((1, 2)) / weights.sum()
            assert zone["embeddings"]["mean"] == pytest.approx(mean.tolist(), rel=1e-6)
        else:
            assert zone["embeddings"]["mean"] is None
    assert (
        float(rows_of(sink.artifacts["zones.csv"])[0]["dimension 1"])
        == result.data["zones"][0]["embeddings"]["mean"][1]
    )


def test_too_many_mean_vectors_are_left_out_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.processors.geo.write.zone_outputs._MOST_NUMBERS", 17)
    scene = write_scene(tmp_path / "scene.tif", pattern(SIDE, SIDE))
    _, result = embed(scene, tmp_path / "out", vector_model(tile_px=16), zones=zones())
    assert result.data is not None
    assert {zone["embeddings"]["mean"] is None for zone in result.data["zones"]} == {True}
    assert result.data["zones"][0]["embeddings"]["count"] > 0
    assert result.data["notes"][-1].startswith("The zones have no mean vectors")


def test_no_name_becomes_a_formula_of_a_spreadsheet(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(SIDE, SIDE))
    names = ["=1+1", "@x", "Łódź", "a,b"]
    given = collection({name: on_the_map(SHAPES["east"], NORTH_UP) for name in names})
    sink, result = estimate(scene, tmp_path / "out", value_model(), zones=given)
    assert [row["zone"] for row in rows_of(sink.artifacts["zones.csv"])] == ["'=1+1", "'@x", "Łódź", "a,b"]
    assert result.data is not None
    assert [zone["name"] for zone in result.data["zones"]] == names


def test_the_table_is_an_output_of_stats_alone(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(SIDE, SIDE))
    kinds: Any = [
        (estimate, value_model(), "values"),
        (detect, None, "objects"),
        (embed, vector_model(tile_px=16), "embeddings"),
    ]
    for at, (run, model, output) in enumerate(kinds):
        sink, result = run(scene, tmp_path / str(at), model, zones=zones(), outputs=(output,))
        assert "zones.csv" not in sink.artifacts
        assert len(result.data["zones"]) == len(SHAPES)
