"""Shapes in which catalogues and programs publish scenes, each with its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.geo.metadata import item, landsat

COLOURS = ("blue", "green", "red", "nir", "swir16", "swir22")
SENTINEL2 = ("B02", "B03", "B04", "B8A", "B11", "B12")


@dataclass(frozen=True, slots=True)
class Stored:
    """Encoding of the files: number = (reflectance - offset) / scale, rounded for integers."""

    dtype: str = "uint16"
    scale: float = 1e-4
    offset: float = 0.0
    nodata: float | None = None
    #: Scale tag of the files.
    tag: float | None = None


HARMONISED, SINCE_04 = Stored(nodata=0), Stored(offset=-0.1, nodata=0)
LANDSAT_C2 = Stored(scale=2.75e-5, offset=-0.2, nodata=0)
HLS = Stored("int16", nodata=-9999, tag=1e-4)


@dataclass(frozen=True, slots=True)
class Shape:
    """One way in which scenes are published."""

    catalogue: str
    what: str
    #: Published item or documentation.
    source: str
    stored: Stored
    #: Function from the addresses of the band files, in the order of COLOURS, to a STAC item; None for one stack.
    document: Callable[[Sequence[str]], dict[str, Any]] | None = None
    #: Addresses of the band files, or the descriptions of the stack's bands.
    names: tuple[str, ...] = SENTINEL2
    #: Further files at addresses.
    documents: Mapping[str, Any] = field(default_factory=dict)
    #: Further fields of the request.
    request: Mapping[str, Any] = field(default_factory=dict)
    #: False if the scene cannot be read rightly as it is: then a note or a refusal is right.
    complete: bool = True


def _item(
    base: str,
    keys: Sequence[str],
    bands: Callable[[int], dict[str, Any]],
    extra: Mapping[str, Any] | None = None,
    **properties: Any,
) -> Callable[[Sequence[str]], dict[str, Any]]:
    """Return a function that builds an item with one asset for each file."""

    def document(files: Sequence[str]) -> dict[str, Any]:
        assets = {
            key: {"href": f"{base}/{name}", **bands(at)} for at, (key, name) in enumerate(zip(keys, files, strict=True))
        }
        return item({**(extra or {}), **assets}, **properties)

    return document


def _eo(names: Sequence[str], **fields: Any) -> Callable[[int], dict[str, Any]]:
    return lambda at: {"eo:bands": [{"name": names[at], "common_name": COLOURS[at]}], **fields}


_TIF = {"type": "image/tiff; application=geotiff; profile=cloud-optimized"}
_E84 = "https://sentinel-cogs.s3.us-west-2.amazonaws.com/sentinel-s2-l2a-cogs/33/T/UL/2024/4/S2A_33TUL_20240405_0_L2A"
_V0, _V1 = "https://earth-search.aws.element84.com/v0", "https://earth-search.aws.element84.com/v1"
_V1_BAND = {"nodata": 0, "data_type": "uint16", "bits_per_sample": 15, "spatial_resolution": 10, "scale": 0.0001}
_V1_NAMES = ("blue", "green", "red", "nir08", "swir16", "swir22")
_PC = "https://planetarycomputer.microsoft.com/api/stac/v1/collections"
_PC_FILES = "https://sentinel2l2a01.blob.core.windows.net/sentinel2-l2/33/T/UL"
_PC_VISUAL = {
    "visual": {
        "href": f"{_PC_FILES}/TCI.tif",
        "roles": ["data"],
        "eo:bands": [{"name": name} for name in ("B04", "B03", "B02")],
    }
}
_LANDSAT_FILES = tuple(f"LC09_L2SP_191029_20240405_20240411_02_T1_SR_B{number}.TIF" for number in range(2, 8))
_USGS = "https://landsatlook.usgs.gov/data/collection02/level-2/standard/oli-tirs/2024/191/029"
_C2_BAND = {"raster:bands": [{"nodata": 0, "data_type": "uint16", "scale": 2.75e-05, "offset": -0.2}]}
_SR_NAMES = tuple(f"SR_B{number}" for number in range(2, 8))
_MTL = f"{_USGS}/LC09_L2SP_191029_20240405_20240411_02_T1_MTL.json"
_MTL_ASSET = {"MTL.json": {"href": _MTL, "type": "application/json", "roles": ["metadata"]}}
_MTL_FILE = {_MTL: landsat("L2SP", dict.fromkeys(range(1, 8), ("2.75e-05", "-0.2")), spacecraft="LANDSAT_9")}
_LP = "https://data.lpdaac.earthdatacloud.nasa.gov/lp-prod-protected/HLSS30.020"
_LP_TWINS = {f"s3_{name}": {"href": f"s3://lp-prod-protected/HLSS30.020/{name}.tif"} for name in SENTINEL2}
_MODIS = ("sur_refl_b03", "sur_refl_b04", "sur_refl_b01", "sur_refl_b02", "sur_refl_b06", "sur_refl_b07")
_GEE = "https://developers.google.com/earth-engine/datasets/catalog"
_GEE_S2 = ("B2", "B3", "B4", "B8A", "B11", "B12")
_STACTOOLS = "github.com/stactools-packages"
_QGIS = (
    "https://docs.qgis.org/latest/en/docs/user_manual/managing_data_source/create_layers.html (Save raster layer as)"
)
_SNAP = "https://step.esa.int/docs/v9.0/apidoc/engine/ (GeoTIFF writer)"
_ORDER = {"bands": [1, 2, 3, 4, 5, 6]}


def _cdse(names: Sequence[str]) -> Callable[[Sequence[str]], dict[str, Any]]:
    def band(at: int) -> dict[str, Any]:
        return {
            "type": "image/jp2",
            "bands": [{"name": SENTINEL2[at], "eo:common_name": COLOURS[at]}],
            "nodata": 0,
            "data_type": "uint16",
            "raster:scale": 0.0001,
            "raster:offset": -0.1,
            "proj:code": "EPSG:32633",
        }

    return _item("s3://eodata/Sentinel-2/MSI/L2A", names, band, **{"processing:version": "05.10"})


def _v1(names: Sequence[str], offset: float, **properties: Any) -> Callable[[Sequence[str]], dict[str, Any]]:
    def band(at: int) -> dict[str, Any]:
        return {**_eo(SENTINEL2)(at), **_TIF, "raster:bands": [{**_V1_BAND, "offset": offset}]}

    return _item(_E84, names, band, **{"proj:epsg": 32633, **properties})


def _tifs(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name}.tif" for name in names)


_FLAG, _BASELINE = "earthsearch:boa_offset_applied", "s2:processing_baseline"
_BY_INDEX = {
    "eo:bands": [{"name": name, "common_name": colour} for name, colour in zip(_SR_NAMES, COLOURS, strict=True)]
}

SHAPES = (
    Shape(
        "Earth Search v0",
        "Sentinel-2 L2A, baseline 04.00, offset applied",
        "github.com/cirrus-geo/cirrus-earth-search/issues/21",
        HARMONISED,
        _item(
            _E84,
            SENTINEL2,
            _eo(SENTINEL2, **_TIF),
            **{"sentinel:processing_baseline": "04.00", "sentinel:boa_offset_applied": True},
        ),
        _tifs(SENTINEL2),
    ),
    Shape(
        "Earth Search v0",
        "Sentinel-2 L2A before 2022",
        f"{_V0}/collections/sentinel-s2-l2a-cogs",
        HARMONISED,
        _item(_E84, SENTINEL2, _eo(SENTINEL2, **_TIF)),
        _tifs(SENTINEL2),
    ),
    Shape(
        "Earth Search v1",
        "Sentinel-2 L2A, offset -0.1 declared and applied",
        "github.com/Element84/earth-search/issues/9",
        HARMONISED,
        _v1(_V1_NAMES, -0.1, **{_FLAG: True, _BASELINE: "05.10"}),
        _tifs(SENTINEL2),
    ),
    Shape(
        "Earth Search v1",
        "Sentinel-2 L2A, offset -0.1 not applied",
        "github.com/Element84/earth-search/issues/66",
        SINCE_04,
        _v1(_V1_NAMES, -0.1, **{_FLAG: False, _BASELINE: "04.00"}),
        _tifs(SENTINEL2),
    ),
    Shape(
        "Earth Search v1",
        "Sentinel-2 L2A before 04.00",
        f"{_V1}/collections/sentinel-2-l2a",
        HARMONISED,
        _v1(_V1_NAMES, 0, **{_FLAG: False, _BASELINE: "03.01"}),
        _tifs(SENTINEL2),
    ),
    Shape(
        "Earth Search v1",
        "Sentinel-2 L2A whose flag is wrong: applied, but said not to be",
        "github.com/Element84/earth-search/issues/71",
        HARMONISED,
        _v1(_V1_NAMES, -0.1, **{_FLAG: False, _BASELINE: "05.11"}),
        _tifs(SENTINEL2),
        complete=False,
    ),
    Shape(
        "Earth Search v1",
        "Sentinel-2 L2A whose flag is wrong: not applied, but said to be",
        "github.com/cirrus-geo/cirrus-earth-search/issues/33",
        SINCE_04,
        _v1(_V1_NAMES, -0.1, **{_FLAG: True, _BASELINE: "05.11"}),
        _tifs(SENTINEL2),
        complete=False,
    ),
    Shape(
        "Earth Search c1",
        "Sentinel-2 Collection 1 L2A",
        f"{_V1}/collections/sentinel-2-c1-l2a",
        SINCE_04,
        _v1(_V1_NAMES, -0.1, **{_BASELINE: "05.00"}),
        _tifs(SENTINEL2),
    ),
    Shape(
        "Earth Search v1",
        "Landsat Collection 2 L2",
        f"{_V1}/collections/landsat-c2-l2",
        LANDSAT_C2,
        _item(_USGS, _V1_NAMES, lambda at: {**_eo(_SR_NAMES)(at), **_TIF, **_C2_BAND}),
        _LANDSAT_FILES,
    ),
    Shape(
        "Planetary Computer",
        "Sentinel-2 L2A since 04.00, no scale",
        "github.com/microsoft/PlanetaryComputer/issues/134",
        SINCE_04,
        _item(_PC_FILES, SENTINEL2, _eo(SENTINEL2, **_TIF), _PC_VISUAL, **{_BASELINE: "05.10", "proj:epsg": 32633}),
        _tifs(SENTINEL2),
    ),
    Shape(
        "Planetary Computer",
        "Sentinel-2 L2A before 04.00, no scale",
        f"{_PC}/sentinel-2-l2a",
        HARMONISED,
        _item(_PC_FILES, SENTINEL2, _eo(SENTINEL2, **_TIF), _PC_VISUAL, **{_BASELINE: "02.12"}),
        _tifs(SENTINEL2),
    ),
    Shape(
        "Planetary Computer",
        "Landsat Collection 2 L2",
        f"{_STACTOOLS}/landsat: examples/landsat-c2-l2/LC09_L2SP_010065_20220129_02_T1",
        LANDSAT_C2,
        _item(_USGS, _V1_NAMES, lambda at: {**_eo(_SR_NAMES)(at), **_TIF, **_C2_BAND, "roles": ["reflectance"]}),
        _LANDSAT_FILES,
    ),
    Shape(
        "Planetary Computer",
        "HLS S30 v2, scale in the file",
        f"{_PC}/hls2-s30",
        HLS,
        _item(
            "https://hlssa.blob.core.windows.net/hls2/S30",
            SENTINEL2,
            _eo(SENTINEL2, **_TIF),
            **{"proj:code": "EPSG:32633"},
        ),
        _tifs(SENTINEL2),
    ),
    Shape(
        "CDSE",
        "Sentinel-2 L2A (STAC 1.1)",
        "https://stac.dataspace.copernicus.eu/v1/collections/sentinel-2-l2a",
        SINCE_04,
        _cdse([f"{name}_{20 if at > 2 else 10}m" for at, name in enumerate(SENTINEL2)]),
        _tifs(SENTINEL2),
    ),
    Shape(
        "USGS",
        "Landsat Collection 2 L2, scale in its MTL JSON",
        "https://landsatlook.usgs.gov/stac-server/collections/landsat-c2l2-sr",
        LANDSAT_C2,
        _item(_USGS, _V1_NAMES, _eo([f"B{number}" for number in range(2, 8)]), _MTL_ASSET),
        _LANDSAT_FILES,
        _MTL_FILE,
    ),
    Shape(
        "USGS",
        "the same before STAC 1.0, bands by index",
        f"{_STACTOOLS}/landsat: tests/data-files/oli-tirs/LC08_L2SP_047027_20201204_20210313_02_T1_SR_stac.json",
        LANDSAT_C2,
        _item(_USGS, [f"{name}.TIF" for name in _SR_NAMES], lambda at: {"eo:bands": [at]}, _MTL_ASSET, **_BY_INDEX),
        _LANDSAT_FILES,
        _MTL_FILE,
    ),
    Shape(
        "LP DAAC",
        "HLS S30 v2, keys only, each file twice",
        "https://cmr.earthdata.nasa.gov/stac/LPCLOUD/collections/HLSS30_2.0",
        HLS,
        _item(_LP, SENTINEL2, lambda _at: {}, _LP_TWINS),
        _tifs(SENTINEL2),
    ),
    Shape(
        "Google Earth Engine",
        "export of S2_SR_HARMONIZED",
        f"{_GEE}/COPERNICUS_S2_SR_HARMONIZED",
        Stored(),
        names=_GEE_S2,
    ),
    Shape(
        "Google Earth Engine",
        "export of S2_SR since 04.00",
        f"{_GEE}/COPERNICUS_S2_SR",
        Stored(offset=-0.1),
        names=_GEE_S2,
        complete=False,
    ),
    Shape(
        "Google Earth Engine",
        "export of LANDSAT/LC08/C02/T1_L2",
        f"{_GEE}/LANDSAT_LC08_C02_T1_L2",
        Stored(scale=2.75e-5, offset=-0.2),
        names=_SR_NAMES,
        request=_ORDER,
        complete=False,
    ),
    Shape(
        "Google Earth Engine",
        "the same, scaled before the export",
        f"{_GEE}/LANDSAT_LC08_C02_T1_L2",
        Stored("float64", 1.0),
        names=_SR_NAMES,
        request=_ORDER,
    ),
    Shape("SNAP", "GeoTIFF of reflectance", _SNAP, Stored("float32", 1.0), names=SENTINEL2),
    Shape(
        "SNAP",
        "GeoTIFF of numbers since 04.00, scale in its own tag only",
        _SNAP,
        Stored(offset=-0.1),
        names=SENTINEL2,
        complete=False,
    ),
    Shape("QGIS", "export as raw data of a file with a scale", _QGIS, Stored("float32", 1.0), names=COLOURS),
    Shape("QGIS", "export as rendered image", _QGIS, Stored("uint8", 1 / 255), names=COLOURS, complete=False),
    Shape(
        "MODIS",
        "MOD09A1 v6.1 (Planetary Computer)",
        f"{_STACTOOLS}/modis: examples/modis-061/modis-061/modis-09A1-061/MOD09A1.A2022033.h19v10.061.2022042043514",
        Stored("int16", nodata=-28672),
        _item(
            "https://modiseuwest.blob.core.windows.net/modis-061",
            _MODIS,
            lambda at: {**_eo(_MODIS)(at), **_TIF, "raster:bands": [{"data_type": "int16", "scale": 0.0001}]},
        ),
        _tifs(_MODIS),
    ),
    Shape(
        "PlanetScope",
        "ortho_analytic_8b_sr, cut to four bands",
        "https://docs.planet.com/data/imagery/planetscope/psscene/",
        Stored(nodata=0),
        names=COLOURS[:4],
    ),
)
