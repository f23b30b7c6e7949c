"""Files beside a dropped object: its parameters, and the mask, metadata and world file of a raster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config import DropRule
from penstock.processors.geo.request import SegmentationRequest
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.workers.keeper.drop_parameters import input_beside

SCENES = SegmentationRequest.model_json_schema()


def reference(info: ObjectInfo) -> str:
    return f"s3://bucket/{info.key}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name in ("a.tif", "a.tif.aux.xml", "a.tif.msk", "a.tfw", "a.tif.ovr", "a.prj", "ab.tif.msk", "b.tif"):
        (tmp_path / "in" / name).touch()
    return tmp_path


def found(folder: Path, key: str, *, bucket: str = "", field: str = "scene", schema: Any = SCENES) -> dict[str, Any]:
    rule = DropRule(
        name="inbox", bucket=bucket or folder.as_uri(), prefix="in/", model="toy", field=field, output_prefix="out/"
    )
    return dict(input_beside(LocalStore(folder), rule, key, schema, reference))


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
