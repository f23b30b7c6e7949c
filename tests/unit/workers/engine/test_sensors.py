"""The sensors of a record and their bands, in the order of a prompt's bands."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.models import Model
from penstock.workers.engine.sensors import in_words, length_of, sensors_of


def record(**options: Any) -> Model:
    return Model(
        name="m", title="M", runner="fake", processor="raster-embedding", source="x", revision="1", options=options
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"bands": [{}] * 6}, {"": 6}),
        ({"modality": "S2L2A", "bands": [{}] * 12}, {"S2L2A": 12}),
        (
            {"modality": "S2", "bands": [{}], "modalities": [{"name": "DEM", "bands": [{}]}, {"name": "S1"}]},
            {"S2": 1, "DEM": 1, "S1": 0},
        ),
        ({"modalities": "wrong", "bands": "wrong"}, {"": 0}),
    ],
)
def test_each_sensor_has_its_number_of_bands(options: dict[str, Any], expected: dict[str, int]) -> None:
    found = sensors_of(record(**options))
    assert list(found.items()) == list(expected.items())


def test_sensors_are_told_in_words() -> None:
    assert in_words({"S2": 12, "": 1}) == "S2 (12 bands), (no name) (1 bands)"
    assert in_words({}) == "none"
    assert (length_of([1, 2]), length_of((1,)), length_of("ab"), length_of(None)) == (2, 1, 0, 0)
