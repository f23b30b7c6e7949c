"""Zipped Zarr stores: codecs that run code are never reached, groups of several resolutions give the finest bands."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from penstock.errors import InvalidInput, MediaUnreadable, MissingBands
from penstock.models import Limits
from penstock.processors.geo.read.products.product_files import read_product
from penstock.processors.geo.read.products.zarr_store import open_zarr
from tests.geo.test_product_files import UTM, mapped, model, square
from tests.support.geo.products import NAMES, source, write_zarr, zipped
from tests.support.geo.scenes import write_scene


def with_metadata(path: Path, name: str, change: Any) -> Path:
    """Rewrite a document of a store in an archive."""
    with zipfile.ZipFile(path) as archive:
        contents = {each: archive.read(each) for each in archive.namelist()}
    document = json.loads(contents[name])
    change(document)
    contents[name] = json.dumps(document).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for each, content in contents.items():
            archive.writestr(each, content)
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda blue: blue.update(filters=[{"id": "pickle"}], dtype="|O"),
        lambda blue: blue.update(filters=[{"id": "json2"}], dtype="|O"),
        lambda blue: blue.update(compressor={"id": "imagecodecs_jpeg"}),
    ],
)
def test_a_codec_beyond_the_list_of_version_2_is_not_reached(change: Any, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zip", square(), version=2)
    with_metadata(path, "scene.zarr/blue/.zarray", change)
    variables = open_zarr(path)
    assert "blue" not in variables.each
    assert variables.unread[0].startswith("blue is stored with the codec ")
    with pytest.raises(Exception, match=r"blue is stored with the codec '.*', which is not read"):
        mapped(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda blue: blue["codecs"].insert(0, {"name": "numcodecs.pickle"}), "the codec 'numcodecs.pickle'"),
        (lambda blue: blue.update(storage_transformers=[{"name": "far"}]), "a storage transformer"),
        (lambda blue: blue.update(data_type={"name": "struct", "configuration": {}}), "the data type"),
        (lambda blue: blue.update(data_type="complex64"), "the data type"),
        (lambda blue: blue.update(chunk_grid={"name": "rectilinear"}), "the chunk grid 'rectilinear'"),
    ],
)
def test_what_version_3_may_have_beyond_numbers_in_chunks_is_not_reached(
    change: Any, sentence: str, tmp_path: Path
) -> None:
    path = write_zarr(tmp_path / "a.zip", square())
    with_metadata(path, "scene.zarr/blue/zarr.json", change)
    with pytest.raises(Exception, match=f"blue .*{sentence}"):
        mapped(path, tmp_path / "out")


def test_the_finest_of_the_groups_with_a_band_is_used(tmp_path: Path) -> None:
    """Groups as in the Sentinel-2 products of EOPF: r10m/b02, r20m/b02."""
    numbers = np.random.default_rng(3).integers(1, 9000, (6, 120, 80)).astype(np.uint16)
    tree = tmp_path / "tree"
    root = zarr.create_group(tree, attributes={"proj:epsg": 32633, "platform": "sentinel-2a"})
    for metres in (20, 10):
        group = root.create_group(f"measurements/r{metres}m")
        rows, columns = 1200 // metres, 800 // metres
        for name, size, start, step in (("x", columns, UTM.c, metres), ("y", rows, UTM.f, -metres)):
            array = group.create_array(name, shape=(size,), dtype="f8", dimension_names=[name])
            array[:] = start + step * (np.arange(size) + 0.5)
        for at, name in enumerate(NAMES):
            band = group.create_array(
                name, shape=(rows, columns), dtype="u2", chunks=(40, 40), dimension_names=["y", "x"],
                attributes={"scale_factor": 1e-4, "add_offset": -0.1, "_FillValue": 0},
            )  # fmt: skip
            band[:] = numbers[at] if metres == 10 else 7
    path = zipped(tmp_path / "a.zarr.zip", tree)
    classes, stats = mapped(path, tmp_path / "zarr")
    tif = write_scene(tmp_path / "a.tif", numbers, descriptions=NAMES, transform=UTM, nodata=0)
    expected, _ = mapped(tif, tmp_path / "tif", radiometry={"scale": 1e-4, "offset": -0.1})
    np.testing.assert_array_equal(classes, expected)
    assert stats["radiometry"]["source"] == "file"
    assert stats["scene"]["crs"]["name"] == "EPSG:32633"


def test_real_numbers_with_a_fill_in_base64_are_those_of_xarray(tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).random((6, 40, 50)).astype(np.float32)
    numbers[:, :5, :5] = np.nan

    def fill(root: Any) -> None:
        for name in NAMES:
            root[name].attrs.update({"_FillValue": "AAAAAAAA+H8=", "units": "1"})

    tif = write_scene(tmp_path / "a.tif", numbers, descriptions=NAMES, transform=UTM)
    path = write_zarr(tmp_path / "a.zip", source(tif), edit=fill)
    classes, stats = mapped(path, tmp_path / "out", model(default_radiometry=[]))
    assert stats["radiometry"]["nodata"] == "NaN"
    assert (stats["radiometry"]["scale"], stats["radiometry"]["source"]) == (1.0, "file")
    assert (classes[0, :5, :5] == 255).all()
    assert (classes[0, 6:, 6:] != 255).all()


def test_two_stores_in_one_archive_are_refused(tmp_path: Path) -> None:
    one, other = (write_zarr(tmp_path / f"{name}.zip", square(), folder=f"{name}.zarr") for name in "ab")
    with zipfile.ZipFile(one, "a") as archive, zipfile.ZipFile(other) as more:
        for name in more.namelist():
            archive.writestr(name, more.read(name))
    with pytest.raises(InvalidInput, match="has several Zarr stores: send one in each job"):
        read_product(one, Limits())


@pytest.mark.parametrize("name", ["scene.zarr/zarr.json", "scene.zarr/blue/zarr.json"])
@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b'{"node_type": "array", "shape": "a"}'])
def test_damaged_metadata_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zip", square())
    with zipfile.ZipFile(path) as archive:
        contents = {each: archive.read(each) for each in archive.namelist()} | {name: content}
    with zipfile.ZipFile(path, "w") as archive:
        for each, some in contents.items():
            archive.writestr(each, some)
    with pytest.raises(MediaUnreadable, match=r"Zarr store's scene.zarr/.*zarr.json"):
        read_product(path, Limits())


def test_a_damaged_chunk_fails_where_it_is_read(tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).integers(1, 9000, (6, 220, 80)).astype(np.uint16)
    tif = write_scene(tmp_path / "a.tif", numbers, descriptions=NAMES, transform=UTM)
    path = write_zarr(tmp_path / "a.zip", source(tif))
    with zipfile.ZipFile(path) as archive:
        contents = {each: archive.read(each) for each in archive.namelist()}
    contents["scene.zarr/red/c/1/0"] = b"no zstd"
    with zipfile.ZipFile(path, "w") as archive:
        for each, some in contents.items():
            archive.writestr(each, some)
    with pytest.raises(MediaUnreadable, match="rows 100 to 199 cannot be read; it is damaged or incomplete"):
        mapped(path, tmp_path / "out")


def test_metadata_that_were_not_checked_are_never_opened(tmp_path: Path) -> None:
    """Zarr takes the array `blue//` for `blue`: a harmless copy of the metadata would hide a codec that runs code."""
    path = write_zarr(tmp_path / "a.zip", square(), version=2)
    with zipfile.ZipFile(path) as archive:
        harmless = archive.read("scene.zarr/blue/.zarray")
    with_metadata(path, "scene.zarr/blue/.zarray", lambda blue: blue.update(filters=[{"id": "pickle"}]))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("scene.zarr/blue//.zarray", harmless)
    with pytest.raises(InvalidInput, match="a name with empty parts or dots"):
        open_zarr(path)


def test_the_index_of_a_deep_shard_has_no_other_codecs(tmp_path: Path) -> None:
    def deep(blue: dict[str, Any]) -> None:
        codec = {"name": "sharding_indexed", "configuration": {"index_codecs": [{"name": "numcodecs.pickle"}]}}
        for _ in range(2):
            codec = {"name": "sharding_indexed", "configuration": {"chunk_shape": [40, 50], "codecs": [codec]}}
        blue.update(codecs=[codec])

    path = write_zarr(tmp_path / "a.zip", square())
    variables = open_zarr(with_metadata(path, "scene.zarr/blue/zarr.json", deep))
    assert variables.unread == ("blue has shards inside shards inside shards, which are not read",)


@pytest.mark.parametrize("number", [10**400, "0.0001", [1.0, 2.0]])
def test_a_scale_that_is_not_one_number_is_refused(number: Any, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zip", square())
    with_metadata(path, "scene.zarr/blue/zarr.json", lambda blue: blue["attributes"].update(scale_factor=number))
    with pytest.raises(MissingBands, match="blue has a `scale_factor` that is not one number"):
        mapped(path, tmp_path / "out")


def test_a_fill_beyond_all_real_numbers_hides_nothing(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zip", square())
    with_metadata(path, "scene.zarr/blue/zarr.json", lambda blue: blue["attributes"].update(_FillValue=10**400))
    classes, _ = mapped(path, tmp_path / "out")
    assert (classes != 255).all()


def test_a_coordinate_in_blocks_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    def large(x: dict[str, Any]) -> None:
        x["chunk_grid"]["configuration"]["chunk_shape"] = [10**9]

    path = with_metadata(write_zarr(tmp_path / "a.zip", square()), "scene.zarr/x/zarr.json", large)
    with pytest.raises(MediaUnreadable, match="The variable x has blocks of 8,000,000,000 bytes; a coordinate"):
        read_product(path, Limits())
