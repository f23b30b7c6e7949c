"""Processors report an input that does not fit: real JSON pointers and plain words, nothing of pydantic's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.workers.processing import Work, parse
from tests.support.geo.scenes import make_model

SCENE = {"scene": "media://u/a.tif"}


def told(document: dict[str, Any]) -> dict[str, str]:
    """Return what is told of the input, by place."""
    model = make_model()
    with pytest.raises(InvalidInput) as refused:
        parse(RasterSegmentation(model), Work(model, document, {}, Path("nowhere")))
    issues = refused.value.errors
    found = {issue.pointer: issue.detail for issue in issues}
    assert len(found) == len(issues)
    return found


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"files": [{"media": "media://u/a", "datetime": "x"}]}, {"/input/files/0/datetime": "is not known"}),
        ({"files": [{"media": "media://u/a"}, {}]}, {"/input/files/1/media": "is required"}),
        ({"files": 7}, {"/input/files": "must be an array"}),
        ({"dates": [{**SCENE, "when": "2020"}]}, {"/input/dates/0/when": "is not known"}),
        (
            {"dates": [{**SCENE, "datetime": "2020-01-01"}]},
            {"/input/dates/0/datetime": "must have a time zone, such as Z"},
        ),
        ({"dates": [{}]}, {"/input/dates/0": "exactly one of scene, files, mosaic is needed, not none"}),
        ({"scene": 7}, {"/input/scene": "must be a valid string"}),
        (
            {**SCENE, "bands": [1, 0, "", 2.5]},
            {
                "/input/bands/1": "must be greater than or equal to 1",
                "/input/bands/2": "must have at least 1 character",
                "/input/bands/3": "must be a valid integer, got a number with a fractional part",
            },
        ),
        ({**SCENE, "datetime": "2020-01-01"}, {"/input/datetime": "must have a time zone, such as Z"}),
        ({**SCENE, "datetime": "2020"}, {"/input/datetime": "must be a time such as 2026-01-31T12:00:00Z"}),
        (
            {"dates": [{**SCENE, "datetime": 1577836800}]},
            {"/input/dates/0/datetime": "must be a time such as 2026-01-31T12:00:00Z"},
        ),
        ({**SCENE, "radiometry": {"offset": 1, "none": 2}}, {"/input/radiometry/none": "is not known"}),
        ({**SCENE, "radiometry": {"offset": 1}}, {"/input/radiometry": "offset requires scale"}),
    ],
)
def test_places_and_words(document: dict[str, Any], expected: dict[str, str]) -> None:
    assert told(document) == expected
