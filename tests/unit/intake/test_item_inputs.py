"""The input of the job that a STAC item becomes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.intake.item_inputs import job_input, maps_classes
from penstock.models import LINKS
from penstock.processors.geo.request import SegmentationRequest
from tests.support.service import ECHO
from tests.support.stac_api import square, stac_item

ITEM = stac_item("a", 0)
SCENES = ECHO.model_copy(update={"input_schema": SegmentationRequest.model_json_schema()})
BARE = ECHO.model_copy(update={"input_schema": {"properties": {"stac": {LINKS: True}}}})


def test_a_model_of_scenes_gets_item_and_area_and_makes_a_stac_item_beside_its_usual_outputs() -> None:
    value = job_input(square(0, 0, 1), {"polygons": {"min_pixels": 3}}, ITEM, SCENES)
    assert value == {
        "stac": ITEM, "area": square(0, 0, 1), "polygons": {"min_pixels": 3},
        "outputs": ["classes", "preview", "stats", "item"],
    }  # fmt: skip
    SegmentationRequest.model_validate(value)
    assert maps_classes(value)


def test_what_is_given_counts() -> None:
    given: dict[str, Any] = {"outputs": ["stats"], "area": {"bbox": [0, 0, 2, 2]}, "stac": "another"}
    value = job_input(square(0, 0, 1), given, ITEM, SCENES)
    assert value == {**given, "stac": ITEM}
    assert not maps_classes(value)


def test_another_model_gets_the_item_alone() -> None:
    assert job_input(square(0, 0, 1), {}, ITEM, BARE) == {"stac": ITEM}
    with pytest.raises(InvalidInput):
        job_input(None, {}, ITEM, ECHO)
