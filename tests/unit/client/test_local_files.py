"""Local files in a job's input are found at any depth, and their references go back to the same places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.client.answers import ClientError
from penstock.client.local_files import (
    UsageProblem,
    assign_files,
    files_beside,
    media_fields,
    split_files,
    with_beside,
    with_media,
)
from penstock.processors.geo.request import SegmentationRequest

SCENES = SegmentationRequest.model_json_schema()
LISTS = {"properties": {"scene": {"format": "media"}, "all": {"items": {"format": "media"}}}}


def test_local_files_of_a_change_its_masks_and_mosaics_are_found_by_the_schema() -> None:
    document = {
        "mosaic": {
            "scenes": [
                {"scene": "north.tif", "mask": {"media": "scl.tif", "kind": "scl"}},
                {"files": [{"media": Path("b2.tif")}, {"media": "https://host/b3.tif"}]},
                {"stac": {"type": "Feature", "id": "a.tif"}},
            ]
        },
        "change": {"before": {"scene": "before.tif", "sidecar": "s3://b/MTL.json"}, "of": ["water"]},
        "outputs": ["classes"],
    }
    kept, files = split_files(document, SCENES)
    assert files == {
        "mosaic.scenes.0.scene": "north.tif",
        "mosaic.scenes.0.mask.media": "scl.tif",
        "mosaic.scenes.1.files.0.media": Path("b2.tif"),
        "change.before.scene": "before.tif",
    }
    assert kept["change"] == {"before": {"sidecar": "s3://b/MTL.json"}, "of": ["water"]}
    for place, file in files.items():
        kept = with_media(kept, place, f"media://1/{Path(file).name}")
    assert kept["change"]["before"]["scene"] == "media://1/before.tif"
    assert kept["mosaic"]["scenes"] == [
        {"scene": "media://1/north.tif", "mask": {"media": "media://1/scl.tif", "kind": "scl"}},
        {"files": [{"media": "media://1/b2.tif"}, {"media": "https://host/b3.tif"}]},
        {"stac": {"type": "Feature", "id": "a.tif"}},
    ]


def test_a_list_keeps_the_order_of_files_and_references() -> None:
    kept, files = split_files({"all": ["a.tif", "media://1/b", Path("c.tif")]}, LISTS)
    assert (kept, files) == ({"all": [None, "media://1/b", None]}, {"all.0": "a.tif", "all.2": Path("c.tif")})
    kept = with_media(with_media(kept, "all.0", "media://1/a"), "all.2", "media://1/c")
    assert kept == {"all": ["media://1/a", "media://1/b", "media://1/c"]}


@pytest.mark.parametrize("value", [{"file": Path("a.tif")}, [{"file": Path("a.tif")}]])
def test_a_path_inside_another_field_is_refused_in_words(value: Any) -> None:
    with pytest.raises(ClientError, match=r"a\.tif.*upload it first"):
        split_files({"scene": Path("b.tif"), "all": value}, LISTS)


def test_media_goes_into_its_field_and_nothing_else_changes() -> None:
    document = {"a": {"x": 1}}
    assert with_media(document, "a.b", "media://1/x") == {"a": {"x": 1, "b": "media://1/x"}}
    assert document == {"a": {"x": 1}}


@pytest.mark.parametrize("place", ["all.1", "all.scene"])
def test_a_file_for_an_item_that_a_list_lacks_is_refused(place: str) -> None:
    with pytest.raises(ClientError, match=rf"'{place}' has no place in the input"):
        with_media({"all": [None]}, place, "media://1/x")


def test_the_mask_the_metadata_and_the_world_file_beside_a_local_file_are_sent_with_it(tmp_path: Path) -> None:
    for name in ("a.tif", "a.tif.msk", "a.tif.aux.xml", "a.tfw", "a.prj", "b.TIF", "b.TFW", "c.jp2", "c.j2w", "d.tif"):
        (tmp_path / name).touch()
    a, b, c, d = (str(tmp_path / name) for name in ("a.tif", "b.TIF", "c.jp2", "d.tif"))
    files_before = [{"media": each} for each in (b, c, d, "media://1/a.tif")]
    document = {"scene": a, "change": {"before": {"files": files_before}, "of": ["water"]}}
    kept, files = split_files(with_beside(document, SCENES), SCENES)
    assert {place: Path(file).name for place, file in files.items()} == {
        "scene": "a.tif",
        "beside.0": "a.tif.msk", "beside.1": "a.tif.aux.xml", "beside.2": "a.tfw",
        "change.before.files.0.media": "b.TIF", "change.before.files.0.beside.0": "b.TFW",
        "change.before.files.1.media": "c.jp2", "change.before.files.1.beside.0": "c.j2w",
        "change.before.files.2.media": "d.tif",
    }  # fmt: skip
    for place, file in files.items():
        kept = with_media(kept, place, f"media://1/{Path(file).name}")
    assert kept["beside"] == ["media://1/a.tif.msk", "media://1/a.tif.aux.xml", "media://1/a.tfw"]
    assert SegmentationRequest(**kept).parts()[0].beside == kept["beside"]
    given = {"scene": a, "beside": []}
    assert with_beside(given, SCENES) == given
    assert with_beside({"all": [a]}, LISTS) == {"all": [a]}


@pytest.mark.parametrize("text", ["", "/", ".", "..", "x" * 250, "x" * 5000, "a\0b"])
def test_a_text_that_can_be_no_file_has_no_files_beside_it(text: str) -> None:
    assert files_beside(Path(text)) == []
    assert with_beside({"scene": text}, SCENES) == {"scene": text}


def test_a_field_that_is_given_twice() -> None:
    with pytest.raises(ClientError, match="twice"):
        with_media({"scene": "media://a/b"}, "scene", "media://c/d")
    assert with_media({"a": {"c": 1}}, "a.b", "media://c/d") == {"a": {"c": 1, "b": "media://c/d"}}


def test_media_fields_are_found_behind_references_and_unions() -> None:
    media = {"type": "string", "format": "media"}
    schema = {
        "properties": {
            "scene": media,
            "mask": {"anyOf": [media, {"type": "null"}]},
            "images": {"type": "array", "items": {"$ref": "#/$defs/Image"}},
            "outputs": {"type": "array", "items": {"type": "string"}},
        },
        "$defs": {"Image": media},
    }
    assert media_fields(schema) == {"scene": False, "mask": False, "images": True}


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
