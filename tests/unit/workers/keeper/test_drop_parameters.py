"""Files beside a dropped object: its parameters, and the mask, metadata and world file of a raster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.config import DropRule
from penstock.errors import InvalidInput
from penstock.processors.geo.request import SegmentationRequest
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.workers.keeper.drop_parameters import object_input

SCENES = SegmentationRequest.model_json_schema()


def reference(info: ObjectInfo) -> str:
    return f"s3://bucket/{info.key}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name in ("a.tif", "a.tif.aux.xml", "a.tif.msk", "a.tfw", "a.tif.ovr", "a.prj", "ab.tif.msk", "b.tif"):
        (tmp_path / "in" / name).touch()
    return tmp_path


def found(
    folder: Path, key: str, *, bucket: str = "", field: str | None = "scene", schema: Any = SCENES
) -> dict[str, Any]:
    """Return the input of an object's job, without a dropped scene itself."""
    rule = DropRule(
        name="inbox", bucket=bucket or folder.as_uri(), prefix="in/", model="toy", field=field, output_prefix="out/"
    )
    store = LocalStore(folder)
    given = object_input(store, rule, store.head(key), schema, reference)
    assert field is None or given.pop(field) == f"s3://bucket/{key}"
    return given


@pytest.mark.parametrize("bucket", ["", "s3://bucket"])
def test_the_mask_the_metadata_and_the_world_file_are_sent_with_a_scene(bucket: str, folder: Path) -> None:
    assert found(folder, "in/a.tif", bucket=bucket) == {
        "beside": ["s3://bucket/in/a.tif.msk", "s3://bucket/in/a.tif.aux.xml", "s3://bucket/in/a.tfw"]
    }
    assert found(folder, "in/b.tif", bucket=bucket) == {}


def test_parameters_win_over_the_files_beside(folder: Path) -> None:
    for parameters in ({"beside": []}, {"outputs": ["stats"]}):
        (folder / "in" / "a.tif.json").write_text(json.dumps(parameters))
        assert set(found(folder, "in/a.tif")) == {"beside", *parameters}
    (folder / "in" / "a.tif.json").write_text('{"beside": []}')
    assert found(folder, "in/a.tif") == {"beside": []}


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    (folder / "in" / "b.tif.msk").symlink_to(tmp_path / "secret")
    assert found(folder, "in/b.tif") == {}


def test_a_model_without_a_field_for_them_gets_none(folder: Path) -> None:
    schema = {"properties": {"scene": {"format": "media"}}}
    assert found(folder, "in/a.tif", schema=schema) == {}


@pytest.mark.parametrize("bucket", ["", "s3://bucket"])
def test_the_files_beside_those_that_a_document_names_go_with_them(bucket: str, folder: Path) -> None:
    (folder / "in" / "more").mkdir()
    for name in ("c.jp2", "c.jp2.msk", "c.j2w", "c.jp2.aux.xml"):
        (folder / "in" / "more" / name).touch()
    document = {"files": [{"media": "more/c.jp2"}, {"media": "b.tif"}, {"media": "a.tif", "beside": []}]}
    (folder / "in" / "x.json").write_text(json.dumps({**document, "change": {"before": {"scene": "a.tif"}}}))
    in_more = ["s3://bucket/in/more/c.jp2.msk", "s3://bucket/in/more/c.jp2.aux.xml", "s3://bucket/in/more/c.j2w"]
    assert found(folder, "in/x.json", bucket=bucket, field=None) == {
        "files": [
            {"media": "s3://bucket/in/more/c.jp2", "beside": in_more},
            {"media": "s3://bucket/in/b.tif"},
            {"media": "s3://bucket/in/a.tif", "beside": []},
        ],
        "change": {"before": {"scene": "s3://bucket/in/a.tif", "beside": [
            "s3://bucket/in/a.tif.msk", "s3://bucket/in/a.tif.aux.xml", "s3://bucket/in/a.tfw"
        ]}},
    }  # fmt: skip


def test_parameters_of_a_document_win_over_the_files_beside(folder: Path) -> None:
    (folder / "in" / "x.json").write_text('{"scene": "a.tif"}')
    (folder / "in" / "x.json.json").write_text('{"beside": []}')
    assert found(folder, "in/x.json", field=None) == {"scene": "s3://bucket/in/a.tif", "beside": []}


@pytest.mark.parametrize("name", ["../a.tif", "/in/a.tif", "linked.tif", "lost.tif"])
def test_nothing_is_looked_for_beside_a_file_that_a_document_may_not_name(folder: Path, name: str) -> None:
    for each in ("a.tif", "a.tif.msk"):
        (folder / each).touch()
    for each in ("linked.tif.msk", "lost.tif.msk"):
        (folder / "in" / each).touch()
    (folder / "in" / "linked.tif").symlink_to(folder / "a.tif")
    (folder / "in" / "x.json").write_text(json.dumps({"scene": name}))
    read = list[str]()
    rule = DropRule(name="inbox", bucket=folder.as_uri(), prefix="in/", model="toy", output_prefix="out/")
    store = LocalStore(folder)

    def noted(info: ObjectInfo) -> str:
        read.append(info.key)
        return reference(info)

    with pytest.raises(InvalidInput, match=re.escape(f"in/x.json names {name}")):
        object_input(store, rule, store.head("in/x.json"), SCENES, noted)
    assert read == []


def test_a_named_file_whose_neighbours_would_have_names_too_long_has_none(folder: Path) -> None:
    name = "n" * 250 + ".tif"
    (folder / "in" / name).touch()
    (folder / "in" / "x.json").write_text(json.dumps({"scene": name}))
    assert found(folder, "in/x.json", field=None) == {"scene": f"s3://bucket/in/{name}"}
