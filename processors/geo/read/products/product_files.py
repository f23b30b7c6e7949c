"""Files of several rasters, told by their first bytes."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import MediaUnreadable
from penstock.models import Limits
from penstock.processors.geo.read.products.archive import opened_archive
from penstock.processors.geo.read.products.cf import read_variables
from penstock.processors.geo.read.products.hdf5 import open_hdf5
from penstock.processors.geo.read.products.netcdf3 import open_netcdf3
from penstock.processors.geo.read.products.product import Product
from penstock.processors.geo.read.products.safe import is_safe, read_safe
from penstock.processors.geo.read.products.variable_raster import OpenVariables
from penstock.processors.geo.read.products.zarr_store import is_zarr, open_zarr

_HDF5 = b"\x89HDF\r\n\x1a\n"
_CLASSIC = (b"CDF\x01", b"CDF\x02")
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


def read_product(path: Path, limits: Limits) -> Product | None:
    """Return the rasters of a NetCDF, HDF5 or zip file; None for any other file.

    Raises an `InputError` for a file of which nothing is a scene.
    """
    with path.open("rb") as file:
        head = file.read(8)
    if head == _HDF5:
        return _of_variables(path, "HDF5", open_hdf5)
    if head.startswith(_CLASSIC):
        return _of_variables(path, "NetCDF", open_netcdf3)
    if not head.startswith(_ZIP):
        return None
    with opened_archive(path) as archive:
        if is_safe(archive):
            return read_safe(path, archive, limits)
        zarr = is_zarr(archive)
    if not zarr:
        raise MediaUnreadable(
            "The zip archive holds neither a Sentinel-2 product in SAFE nor a Zarr store. `unzip -l` lists its files; "
            "send a GeoTIFF by itself."
        )
    return _of_variables(path, "Zarr", open_zarr)


def _of_variables(path: Path, driver: str, open_variables: OpenVariables) -> Product:
    variables = open_variables(path)
    if "_NCProperties" in variables.attributes.get("", {}):  # netCDF-4 writes it into its HDF5 files
        driver = "NetCDF"
    try:
        return read_variables(variables, driver, open_variables)
    finally:
        variables.close()
