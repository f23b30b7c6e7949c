"""Scenes written as NetCDF, HDF5, Zarr and SAFE by the libraries of these formats, from a GeoTIFF."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.read.gdal import rasterio, without_georeference
from tests.support.geo.metadata import sentinel2

NAMES = ("blue", "green", "red", "nir", "swir16", "swir22")


@dataclass(frozen=True)
class Source:
    """A scene in memory: its numbers (bands, rows, columns), names and place."""

    numbers: npt.NDArray[Any]
    names: Sequence[str]
    crs: Any
    transform: Any
    nodata: float | None
    scale: float = 1.0

    @property
    def packed(self) -> dict[str, float]:
        """The attribute with the scale, if there is one."""
        return {} if self.scale == 1 else {"scale_factor": self.scale}

    @property
    def height(self) -> int:
        return int(self.numbers.shape[1])

    @property
    def width(self) -> int:
        return int(self.numbers.shape[2])

    @property
    def x(self) -> npt.NDArray[np.float64]:
        return np.asarray(self.transform.c + self.transform.a * (np.arange(self.width) + 0.5))

    @property
    def y(self) -> npt.NDArray[np.float64]:
        return np.asarray(self.transform.f + self.transform.e * (np.arange(self.height) + 0.5))

    @property
    def mapping(self) -> dict[str, Any]:
        """Attributes of the grid mapping as GDAL and rioxarray write them."""
        return {
            "crs_wkt": self.crs.to_wkt(),
            "GeoTransform": " ".join(map(repr, self.transform.to_gdal())),
            "grid_mapping_name": "latitude_longitude" if self.crs.is_geographic else "transverse_mercator",
        }

    @property
    def axes(self) -> tuple[dict[str, str], dict[str, str]]:
        """Attributes of the coordinates x and y."""
        if self.crs.is_geographic:
            return {"standard_name": "longitude", "units": "degrees_east"}, {
                "standard_name": "latitude",
                "units": "degrees_north",
            }
        return (
            {"standard_name": "projection_x_coordinate", "units": "m"},
            {"standard_name": "projection_y_coordinate", "units": "m"},
        )


def source(path: Path) -> Source:
    """Return a GeoTIFF in memory."""
    with without_georeference(), rasterio.open(path) as file:
        names = [name or f"band{at}" for at, name in enumerate(file.descriptions, 1)]
        return Source(file.read(), names, file.crs, file.transform, file.nodata, file.scales[0])


Attributes = Mapping[str, Any]
Edit = Callable[[Any], None]


def write_netcdf(
    path: Path,
    scene: Source,
    *,
    version: str = "NETCDF4",
    of_bands: Attributes | None = None,
    upside_down: bool = False,
    mapping: Attributes | None = None,
    edit: Edit | None = None,
) -> Path:
    """Write a variable for each band by netCDF4; `edit` changes the open file at the end."""
    import netCDF4

    x, y = scene.axes
    with netCDF4.Dataset(path, "w", format=version) as file:
        file.set_auto_maskandscale(False)
        file.createDimension("y", scene.height)
        file.createDimension("x", scene.width)
        for name, values, attributes in (("x", scene.x, x), ("y", scene.y, y)):
            file.createVariable(name, "f8", (name,)).setncatts(attributes)
            file[name][:] = values[::-1] if name == "y" and upside_down else values
        file.createVariable("crs", "i4").setncatts(scene.mapping if mapping is None else mapping)
        for name, numbers in zip(scene.names, scene.numbers, strict=True):
            classic = version != "NETCDF4"
            kind = numbers.dtype.str.replace("u", "i")[1:] if classic else numbers.dtype
            own = (
                scene.packed
                | dict(of_bands or {})
                | ({"_Unsigned": "true"} if classic and numbers.dtype.kind == "u" else {})
            )
            fill = own.pop("_FillValue", scene.nodata)
            options = {} if classic else {"zlib": True, "chunksizes": (min(96, scene.height), min(160, scene.width))}
            variable = file.createVariable(name, kind, ("y", "x"), fill_value=fill, **options)
            variable.set_auto_maskandscale(False)
            variable.setncatts({"grid_mapping": "crs", **own})
            rows = numbers[::-1] if upside_down else numbers
            variable[:] = rows.view(variable.dtype) if classic else rows
        if edit is not None:
            edit(file)
    return path


def write_hdf5(path: Path, scene: Source, *, edit: Edit | None = None) -> Path:
    """Write one dataset (bands, rows, columns) by h5py, with dimension scales and the bands' names."""
    import h5py

    x, y = scene.axes
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = scene.x, scene.y
        file["x"].attrs.update(x)
        file["y"].attrs.update(y)
        file["band"] = np.array(scene.names, dtype="S10")
        file["crs"] = 0
        file["crs"].attrs.update(scene.mapping)
        chunks = (1, min(64, scene.height), min(64, scene.width))
        data = file.create_dataset("reflectance", data=scene.numbers, chunks=chunks, compression="gzip")
        data.attrs.update({"grid_mapping": "crs", **scene.packed})
        if scene.nodata is not None:
            data.attrs["_FillValue"] = np.array([scene.nodata], scene.numbers.dtype)
        for at, name in enumerate(("band", "y", "x")):
            file[name].make_scale(name)
            data.dims[at].attach_scale(file[name])
        if edit is not None:
            edit(file)
    return path


def write_zarr(
    path: Path,
    scene: Source,
    *,
    version: int = 3,
    folder: str = "scene.zarr",
    edit: Edit | None = None,
    **options: Any,
) -> Path:
    """Write a zipped store with an array for each band by zarr-python; `options` are those of the arrays."""
    import zarr

    x, y = scene.axes
    tree = path.with_suffix(".tree")
    root = zarr.create_group(tree, zarr_format=version)

    def array(
        name: str, values: npt.NDArray[Any], dimensions: Sequence[str], attributes: Attributes, **more: Any
    ) -> None:
        if version == 3:
            more["dimension_names"] = list(dimensions)
        made = root.create_array(name, shape=values.shape, dtype=values.dtype, **more)
        made[...] = values
        named = {"_ARRAY_DIMENSIONS": list(dimensions)} if version == 2 else {}
        made.attrs.update({**named, **attributes})

    array("x", scene.x, ["x"], x)
    array("y", scene.y, ["y"], y)
    array("spatial_ref", np.zeros((), np.int32), [], scene.mapping)
    for name, numbers in zip(scene.names, scene.numbers, strict=True):
        fill = {} if scene.nodata is None else {"_FillValue": int(scene.nodata)} if version == 3 else {}
        chunks = (min(100, scene.height), min(120, scene.width))
        filled = {"fill_value": scene.nodata} if version == 2 and scene.nodata is not None else {}
        array(
            name,
            numbers,
            ["y", "x"],
            {"grid_mapping": "spatial_ref", **scene.packed, **fill},
            **{"chunks": chunks, **filled, **options},
        )
    if edit is not None:
        edit(root)
    return zipped(path, tree, folder)


def zipped(path: Path, tree: Path, folder: str = "") -> Path:
    """Write a folder as a zip archive, without compression, below a folder in it."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(each for each in tree.rglob("*") if each.is_file()):
            archive.write(file, Path(folder) / file.relative_to(tree))
    return path


#: Codes and resolutions of the bands that a SAFE product has, by common name.
CODES = {
    "blue": ("B02", 10),
    "green": ("B03", 10),
    "red": ("B04", 10),
    "nir": ("B8A", 20),
    "swir16": ("B11", 20),
    "swir22": ("B12", 20),
}


def write_safe(
    path: Path,
    bands: Mapping[str, tuple[npt.NDArray[Any], int]],
    crs: Any,
    transform: Any,
    *,
    level: str = "2A",
    metadata: str | None = None,
    compression: int = zipfile.ZIP_DEFLATED,
    others: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a zipped SAFE product: JPEG 2000 images (rows, columns) by code, each with its pixels in metres.

    `transform` is that of 10 m.
    """
    name = f"S2A_MSIL{level}_20240405T100601_N0510_R022_T33TUL_20240405T140000.SAFE"
    granule = f"{name}/GRANULE/L{level}_T33TUL_A045899_20240405T100601"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{name}/MTD_MSIL{level}.xml", metadata or sentinel2(level))
        archive.writestr(f"{name}/manifest.safe", "<a/>")
        for code, (numbers, metres) in bands.items():
            place = transform @ rasterio.Affine.scale(metres // 10)
            stem = f"T33TUL_20240405T100601_{code.partition('@')[0]}"
            if code.startswith("CLDPRB"):
                inner = f"{granule}/QI_DATA/MSK_CLDPRB_{metres}m.jp2"
            elif level == "1C":
                inner = f"{granule}/IMG_DATA/{stem}.jp2"
            else:
                inner = f"{granule}/IMG_DATA/R{metres}m/{stem}_{metres}m.jp2"
            archive.writestr(inner, jp2(numbers, crs, place))
        for inner, content in (others or {}).items():
            archive.writestr(f"{name}/{inner}", content)
    return path


def jp2(numbers: npt.NDArray[Any], crs: Any, transform: Any) -> bytes:
    """Return (rows, columns) as a lossless JPEG 2000 file."""
    height, width = numbers.shape
    profile = {"count": 1, "height": height, "width": width, "dtype": numbers.dtype, "crs": crs, "transform": transform}
    with tempfile.TemporaryDirectory() as folder:  # in a `MemoryFile`, rasterio leaves out the georeference
        path = Path(folder, "a.jp2")
        with rasterio.open(path, "w", driver="JP2OpenJPEG", QUALITY=100, REVERSIBLE="YES", **profile) as file:
            file.write(numbers, 1)
        return path.read_bytes()
