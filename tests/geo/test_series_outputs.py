"""The sums of a series, pixel by pixel, and their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penstock.processors.geo.options import ClassLabel
from penstock.processors.geo.wanted_classes import WantedClasses
from penstock.processors.geo.write.series_outputs import (
    EVER,
    NEVER,
    Sums,
    SumsFile,
    first_seen_labels,
    series_csv,
)
from tests.support.geo.scenes import write_scene

SHAPE = (3, 4)
MAPS = st.lists(arrays(np.uint8, SHAPE, elements=st.sampled_from([0, 1, 2, 3, 4, 255])), max_size=6)


def of_pixel(classes: list[int]) -> tuple[int, float | None, int, int]:
    """Return the first date, the frequency, the extent and the clear dates of one pixel, without numpy."""
    clear = [number for number, each in enumerate(classes, 1) if each not in (4, 255)]
    seen = [number for number in clear if classes[number - 1] in (1, 3)]
    if not clear:
        return 255, None, 255, 0
    return (seen[0] if seen else 0), len(seen) / len(clear), (EVER if seen else NEVER), len(clear)


@given(maps=MAPS)
def test_each_pixel_has_its_first_date_frequency_extent_and_clear_dates(maps: list[Any]) -> None:
    sums = Sums(*np.zeros((3, *SHAPE), np.uint8))
    for number, classes in enumerate(maps, 1):
        sums = sums.with_date(number, classes, of={1, 3}, ignored={4})
    found = zip(*(each.flat for each in (sums.first_seen(), sums.frequency(), sums.extent(), sums.clear)), strict=True)
    for at, (first, share, extent, clear) in enumerate(found):
        expected = of_pixel([int(classes.flat[at]) for classes in maps])
        assert (first, extent, clear) == (expected[0], *expected[2:])
        assert np.isnan(share) if expected[1] is None else share == np.float32(expected[1])


def test_sums_in_a_file_are_those_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    maps = rng.choice(np.uint8([0, 1, 3, 4, 255]), (4, 2100, 2050))  # more than one strip
    labels = tuple(ClassLabel(id=each, name=f"class {each}", colour="#000000") for each in range(5))
    wanted = WantedClasses(labels, frozenset({1, 3}), "water", frozenset({4}), decided=True)
    sums = Sums(*np.zeros((3, *maps.shape[1:]), np.uint8))
    with SumsFile(tmp_path / "sums", *maps.shape[1:]) as file:
        for number, classes in enumerate(maps, 1):
            file.add(number, write_scene(tmp_path / "map.tif", classes[None], nodata=255), wanted)
            sums = sums.with_date(number, classes, wanted.of, wanted.ignored)
        strips = list(file.strips())
    assert len(strips) == 2
    for at, expected in enumerate(sums):
        np.testing.assert_array_equal(np.concatenate([each[at] for _, each in strips]), expected)
    assert not (tmp_path / "sums").exists()


def test_the_first_dates_have_names_and_colours_from_dark_to_light() -> None:
    labels = first_seen_labels("water", ["2020-01-01", "2020-02-01", "date 3"])
    assert [(label.id, label.name) for label in labels] == [
        (0, "never water"), (1, "2020-01-01"), (2, "2020-02-01"), (3, "date 3"),
    ]  # fmt: skip
    sums = [sum(label.rgb) for label in labels[1:]]
    assert sums == sorted(sums)
    assert len({label.colour for label in labels}) == 4


def test_the_table_leaves_unknown_values_empty() -> None:
    row = {"id": 0, "name": "a, b", "pixels": 0, "area_m2": None, "percent": None}
    table = series_csv([{"date": 1, "time": None, "classes": [row], "valid_pixels": 0, "nodata_pixels": 9}])
    assert table.splitlines()[1] == '1,,0,"a, b",0,,,0,9'
