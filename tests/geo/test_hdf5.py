"""HDF5 files: none that names another file is read, and damaged ones are refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock.errors import InvalidInput, MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.geo.read.products.hdf5 import open_hdf5
from penstock.processors.geo.read.products.product_files import read_product
from tests.geo.test_product_files import UTM, mapped, square
from tests.support.geo.products import NAMES, source, write_hdf5, write_netcdf
from tests.support.geo.scenes import write_scene


def other(file: Any) -> Path:
    path = Path(file.filename).with_name("other.h5")
    with h5py.File(path, "w") as secret:
        secret["values"] = np.full((40, 50), 7, np.uint16)
    return path


def external_link(file: Any) -> None:
    file["nir2"] = h5py.ExternalLink(str(other(file)), "/values")


def external_link_to_nowhere(file: Any) -> None:
    file.create_group("deep/er")["far"] = h5py.ExternalLink("/etc/passwd", "/")


def external_data(file: Any) -> None:
    path = Path(file.filename).with_name("raw.bin")
    path.write_bytes(bytes(4000))
    file.create_dataset("raw", (40, 50), np.uint16, external=[(str(path), 0, h5py.h5f.UNLIMITED)])


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((40, 50), np.uint16)
    layout[...] = h5py.VirtualSource(str(other(file)), "values", (40, 50))
    file.create_virtual_dataset("view", layout)


@pytest.mark.parametrize("change", [external_link, external_link_to_nowhere, external_data, virtual])
@pytest.mark.parametrize("write", [write_hdf5, write_netcdf])
def test_a_file_that_names_another_file_is_refused(
    change: Callable[[Any], None], write: Callable[[Path, Any], Path], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.h5", square())
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(InvalidInput, match="The HDF5 file refers to other files, which are not read: the ") as error:
        read_product(path, Limits())
    assert str(tmp_path) not in str(error.value)


def test_a_soft_link_that_leads_in_a_circle_ends_nothing(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", square())
    with h5py.File(path, "a") as file:
        file["again"] = h5py.SoftLink("/again")
        file.create_group("round")["up"] = h5py.SoftLink("/")
    product = read_product(path, Limits())
    assert product is not None
    assert [raster.name for raster in product.rasters] == ["reflectance"]


def test_a_hard_link_that_leads_in_a_circle_is_refused(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", square())
    with h5py.File(path, "a") as file:
        group = file.create_group("round")
        group["self"] = group
    with pytest.raises(MediaTooLarge, match="groups 32 deep"):
        read_product(path, Limits())


@pytest.mark.parametrize("keep", [0.01, 0.5, 0.97])
@pytest.mark.parametrize("write", [write_hdf5, write_netcdf])
def test_a_cut_off_file_is_damaged(keep: float, write: Callable[[Path, Any], Path], tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 60_000, (6, 300, 300)).astype(np.uint16)
    tif = write_scene(tmp_path / "a.tif", noise, descriptions=NAMES, transform=UTM)
    path = write(tmp_path / "a.nc", source(tif))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(MediaUnreadable, match="it is damaged or incomplete"):
        mapped(path, tmp_path / "out")


def test_damaged_pixels_fail_where_they_are_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 60_000, (6, 300, 300)).astype(np.uint16)
    tif = write_scene(tmp_path / "a.tif", noise, descriptions=NAMES, transform=UTM)
    path = write_hdf5(tmp_path / "a.h5", source(tif))
    with h5py.File(path, "r") as file:
        chunk = file["reflectance"].id.get_chunk_info(40)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset : chunk.byte_offset + 64] = bytes(64)
    path.write_bytes(data)
    with pytest.raises(MediaUnreadable, match=r"rows \d+ to \d+ cannot be read; it is damaged or incomplete"):
        mapped(path, tmp_path / "out")


def test_compounds_and_enumerations_are_left_out(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["pairs"] = np.zeros((4, 5), [("a", "u2"), ("b", "f4")])
        file.create_dataset("kinds", (4, 5), h5py.enum_dtype({"a": 0, "b": 1}))
        file["numbers"] = np.zeros((4, 5), np.uint8)
        file["nothing"] = h5py.Empty("f4")
    variables = open_hdf5(tmp_path / "a.h5")
    assert [*variables.each] == ["numbers"]
    variables.close()


def test_blocks_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    def huge(file: Any) -> None:
        scale_x, scale_y = file["x"], file["y"]
        del file["reflectance"]
        file.create_dataset("x2", data=np.arange(20_000.0)).make_scale("x2")
        file.create_dataset("y2", data=np.arange(20_000.0)).make_scale("y2")
        data = file.create_dataset("blue", (20_000, 20_000), np.uint16, chunks=(20_000, 20_000), compression="gzip")
        for at, name in enumerate(("y2", "x2")):
            file[name].attrs["axis"] = name[0].upper()
            data.dims[at].attach_scale(file[name])
        assert scale_x.shape != scale_y.shape

    path = write_hdf5(tmp_path / "a.h5", square(), edit=huge)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(MediaUnreadable, match="blue is stored in blocks of 800,000,000 bytes; at most 268,435,456"):
        read_product(path, Limits())


def test_a_fill_below_unsigned_numbers_is_none_of_them(tmp_path: Path) -> None:
    numbers = np.full((6, 40, 50), 2**16 - 9999, np.uint16)
    path = write_hdf5(
        tmp_path / "a.h5", square(numbers), edit=lambda file: file["reflectance"].attrs.update(_FillValue=-9999.0)
    )
    classes, stats = mapped(path, tmp_path / "out")
    assert stats["radiometry"]["nodata"] == -9999
    assert (classes != 255).all()
