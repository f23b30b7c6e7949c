"""Inputs that do not fit a model's schema: each issue names the place and what that very value lacks."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.models import CatalogueEntry, Limits
from penstock.processors.geo.request import SegmentationRequest
from penstock.storage.submissions import check_input

SCENE = "media://u/scene.tif"
MODEL = CatalogueEntry(
    name="csmask",
    title="Clouds",
    revision="1",
    queue="default",
    input_schema=SegmentationRequest.model_json_schema(),
    outputs=(),
    limits=Limits(),
    execution_timeout_s=600,
    queue_ttl_s=3600,
    max_attempts=3,
)


def issues(document: dict[str, Any]) -> dict[str, str]:
    """Return what is told of the input, by place."""
    with pytest.raises(InvalidRequest) as refused:
        check_input(MODEL, {"scene": SCENE} | document)
    return {issue.pointer: issue.detail for issue in refused.value.errors}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"radiometry": {"scale": 0}}, {"/input/radiometry/scale": "must be greater than 0"}),
        ({"radiometry": {"offset": 1}}, {"/input/radiometry/scale": "is required with offset"}),
        ({"radiometry": {"scal": 1}}, {"/input/radiometry/scal": "is not known to this model"}),
        (
            {"radiometry": {"scale": -1, "nodata": "none"}},
            {
                "/input/radiometry/scale": "must be greater than 0",
                "/input/radiometry/nodata": "must be one of: number, null",
            },
        ),
        ({"radiometry": 0.0001}, {"/input/radiometry": "must be one of: object, null"}),
        ({"bands": [0, 1, 2, 3, 4, 5]}, {"/input/bands/0": "must be at least 1"}),
        ({"bands": [1, "", 3]}, {"/input/bands/1": "'' should be non-empty"}),
        ({"bands": [1, 2.5]}, {"/input/bands/1": "must be one of: string, integer"}),
        ({"bands": "red"}, {"/input/bands": "must be one of: array, null"}),
        ({"scene": 7}, {"/input/scene": "7 is not of type 'string'"}),
    ],
)
def test_the_alternative_that_the_values_type_fits_is_told_of(document: dict[str, Any], told: dict[str, str]) -> None:
    assert issues(document) == told


@pytest.mark.parametrize(
    "document", [{"radiometry": None}, {"radiometry": {"scale": 1, "offset": 2}}, {"bands": ["a"]}]
)
def test_what_fits_passes(document: dict[str, Any]) -> None:
    check_input(MODEL, {"scene": SCENE} | document)
