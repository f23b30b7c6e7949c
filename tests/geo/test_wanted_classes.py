"""The classes of a change or a series are found by name."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidInput
from penstock.processors.geo.options import ClassLabel
from penstock.processors.geo.request import SeriesRequest
from penstock.processors.geo.wanted_classes import wanted_classes

LABELS = [ClassLabel(id=at, name=name, colour="#000000") for at, name in enumerate(("Land", "water", "ice", "cloud"))]


def test_classes_are_found_by_name_in_any_case() -> None:
    found = wanted_classes(SeriesRequest(of=["ICE", "water"], ignore=["Cloud"]), LABELS, "series")
    assert (found.of, found.ignored, found.name) == ({1, 2}, {3}, "water or ice")
    assert found.to_json() == {"of": ["water", "ice"], "ignored": ["cloud"]}
    assert found.undecided({"Land", "cloud"}) == ""


def test_classes_that_nobody_decided_on_are_those_that_occur() -> None:
    found = wanted_classes(SeriesRequest(of=["water"], name="wet"), LABELS, "series")
    assert (found.name, found.undecided({"cloud", "Land", "water"})) == ("wet", "Land, cloud")


def test_an_unknown_class_is_named_with_its_place() -> None:
    with pytest.raises(InvalidInput, match="no class 'mud'; its classes are Land, water, ice, cloud") as caught:
        wanted_classes(SeriesRequest(of=["water"], ignore=["cloud", "mud"]), LABELS, "series")
    assert [issue.pointer for issue in caught.value.errors] == ["/input/series/ignore/1"]
