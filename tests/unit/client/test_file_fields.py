"""Files without names go to the media fields of a model's schema."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.local_files import UsageProblem, assign_files
from penstock.processors.geo.request import SegmentationRequest

SEGMENTATION = SegmentationRequest.model_json_schema()
MEDIA = {"type": "string", "format": "media"}


def schema(required: list[str], **fields: Any) -> dict[str, Any]:
    return {"properties": {**fields, "text": {"type": "string"}}, "required": required}


def test_one_file_goes_into_the_one_field() -> None:
    assert assign_files(["a.tif"], SEGMENTATION) == {"scene": "a.tif"}


def test_files_go_into_their_fields_in_order_the_required_ones_first() -> None:
    fields = schema(["before", "after"], mask=MEDIA, before=MEDIA, after=MEDIA)

    assert assign_files(["a", "b"], fields) == {"before": "a", "after": "b"}
    assert assign_files(["a", "b", "m"], fields) == {"before": "a", "after": "b", "mask": "m"}
    assert assign_files(["b"], fields, taken=["before"]) == {"after": "b"}


def test_a_list_takes_all_files() -> None:
    fields = schema(["images"], images={"type": "array", "items": MEDIA})

    assert assign_files(["a", "b"], fields) == {"images": ["a", "b"]}


def test_a_model_without_media_takes_no_files() -> None:
    assert assign_files([], schema([])) == {}
    with pytest.raises(UsageProblem, match="takes no files"):
        assign_files(["a"], schema([]))


@pytest.mark.parametrize("files", [[], ["a", "b"]])
def test_another_number_of_files_is_said(files: list[str]) -> None:
    with pytest.raises(UsageProblem, match="the model's files are: scene"):
        assign_files(files, SEGMENTATION)


def test_no_file_is_missed_where_the_media_were_given_otherwise() -> None:
    assert assign_files([], SEGMENTATION, taken=["files"]) == {}


def test_a_file_goes_beside_the_document_that_describes_it() -> None:
    assert assign_files(["a.tif"], SEGMENTATION, taken=["stac"]) == {"scene": "a.tif"}
    assert assign_files([], SEGMENTATION, taken=["stac"]) == {}


def test_a_list_takes_what_the_required_fields_around_it_leave() -> None:
    listed = {"type": "array", "items": MEDIA}
    fields = schema(["before", "after"], before=MEDIA, images=listed, mask=MEDIA, after=MEDIA)

    assert assign_files(["a", "z"], fields) == {"before": "a", "after": "z"}
    assert assign_files(["a", "b", "c", "z"], fields) == {"before": "a", "images": ["b", "c"], "after": "z"}
    with pytest.raises(UsageProblem, match="1 file given"):
        assign_files(["a"], fields)


def test_where_no_file_is_required_none_is_needed() -> None:
    listed = {"type": "array", "items": MEDIA}
    fields = schema([], image=MEDIA, images=listed)

    assert assign_files([], fields) == {}
    assert assign_files(["a"], fields) == {"images": ["a"]}
    with pytest.raises(UsageProblem, match="2 files given"):
        assign_files(["a", "b"], schema([], images=listed, others=listed))
