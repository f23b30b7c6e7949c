"""Bands of an open raster file: descriptions, tags, wavelengths and colour interpretation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from penstock.processors.geo.read.band_identity import SceneBand
from penstock.processors.geo.read.band_names import named_sensor, wavelength_nm

#: Tags of a band with its name: of GDAL's Sentinel-2 and NetCDF drivers, and of other writers.
_NAMES: Final = ("BANDNAME", "BAND_NAME", "COMMON_NAME", "STANDARD_BAND_NAME", "LONG_NAME", "NETCDF_VARNAME", "NAME")
#: Tags of a file with the name of a platform, sensor or product: of Sentinel-2, Landsat, HLS, and GDAL's `IMAGERY`.
_SENSORS: Final = (
    "SPACECRAFT_NAME", "SPACECRAFT_ID", "DATATAKE_1_SPACECRAFT_NAME", "PRODUCT_URI", "PRODUCT_URI_1", "PLATFORM",
    "LANDSAT_PRODUCT_ID", "LANDSAT_SCENE_ID", "SENSOR", "SENSOR_ID", "SATELLITEID", "SHORTNAME",
)  # fmt: skip


def read_bands(dataset: Any, alphas: Collection[int]) -> tuple[SceneBand, ...]:
    """Return the bands of a dataset (rasterio), without those of the numbers `alphas`."""
    tags = _upper(dataset.tags(ns="IMAGERY") | dataset.tags())
    sensor = named_sensor(value for name in _SENSORS if (value := tags.get(name)))
    kept = [number for number in range(1, dataset.count + 1) if number not in alphas]
    descriptions, colours = dataset.descriptions, dataset.colorinterp  # each makes a list of all bands
    found = []
    for number in kept:
        own = _upper(dataset.tags(number))
        found.append(
            SceneBand(
                number,
                descriptions[number - 1],
                texts=tuple(dict.fromkeys(own[name] for name in _NAMES if own.get(name))),
                wavelength_nm=_wavelength(own, _upper(dataset.tags(number, ns="IMAGERY"))),
                colour=colours[number - 1].name,
                sensor=sensor,
                alone=len(kept) == 1,
            )
        )
    return tuple(found)


def _wavelength(tags: Mapping[str, str], imagery: Mapping[str, str]) -> float | None:
    """Return the centre wavelength in nm: GDAL's `CENTRAL_WAVELENGTH_UM`, or `wavelength` of ENVI and Sentinel-2."""
    if central := imagery.get("CENTRAL_WAVELENGTH_UM"):
        return wavelength_nm(central, "um")
    if number := tags.get("WAVELENGTH") or tags.get("CENTRAL_WAVELENGTH"):
        return wavelength_nm(number, tags.get("WAVELENGTH_UNITS") or tags.get("WAVELENGTH_UNIT") or "")
    return None


def _upper(tags: Mapping[str, str]) -> dict[str, str]:
    return {name.upper(): value for name, value in tags.items()}
