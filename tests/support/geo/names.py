"""Names of bands as providers publish them, against the records: `python -m tests.support.geo.names [--write]`.

Each case is a scene in the shape of one provider, without pixels, with the true common name of each band, written by
hand. Each record chooses its bands as in a job; the outcome is `read`, `noted` (read, with a note in the result),
`refused`, `lacks bands` (refused, and the scene does not have them) or `wrong`. Prints the table of
`docs/explanation/scenes.md`; `--write` replaces it there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from penstock.catalogue.records import read_catalogue
from penstock.errors import InputError
from penstock.local.ready import ready_records
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.band_identity import SceneBand
from penstock.processors.geo.read.band_names import named_sensor
from penstock.processors.geo.read.bands import select_bands
from penstock.processors.geo.read.stac_assets import choose_assets
from penstock.processors.geo.read.stac_item import file_name, read_stac_item

Outcome = Literal["read", "noted", "refused", "lacks bands", "wrong"]

PAGE: Final = Path(__file__).parents[3] / "docs" / "explanation" / "scenes.md"
START, END = "<!-- names: written by `python -m tests.support.geo.names --write` -->", "<!-- names: end -->"

#: Common name of each band; `nir08*` is the only band in near infrared.
SENTINEL_2: Final = {
    "B01": "coastal", "B02": "blue", "B03": "green", "B04": "red", "B05": "rededge071", "B06": "rededge075",
    "B07": "rededge078", "B08": "nir", "B8A": "nir08", "B09": "nir09", "B11": "swir16", "B12": "swir22",
}  # fmt: skip
LEVEL_1C: Final = {**SENTINEL_2, "B10": "cirrus"}
OLI: Final = {"1": "coastal", "2": "blue", "3": "green", "4": "red", "5": "nir08*", "6": "swir16", "7": "swir22"}
TM: Final = {"1": "blue", "2": "green", "3": "red", "4": "nir08*", "5": "swir16", "7": "swir22"}
MODIS: Final = {
    "1": "red", "2": "nir08*", "3": "blue", "4": "green", "5": "1240 nm", "6": "swir16", "7": "swir22"
}  # fmt: skip
SIX: Final = ("blue", "green", "red", "nir08*", "swir16", "swir22")
RED_EDGES: Final = ("rededge071", "rededge075", "rededge078")
#: Common names that each record needs, in its order. `nir?` is near infrared of any width.
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "csmask": ("blue", "green", "red", "nir?", "swir16", "swir22"),
    "granite-biomass": ("blue", "green", "red", "nir?", "swir16", "swir22"),
    "prithvi-burn-scars": ("blue", "green", "red", "nir?", "swir16", "swir22"),
    "prithvi-crops": ("blue", "green", "red", "nir?", "swir16", "swir22"),
    "prithvi-embeddings": ("blue", "green", "red", "nir?", "swir16", "swir22"),
    "prithvi-floods": ("blue", "green", "red", "nir?", "swir16", "swir22"),
    "clay-embeddings": ("blue", "green", "red", *RED_EDGES, "nir", "nir08", "swir16", "swir22"),
    "olmoearth-embeddings": (
        "blue", "green", "red", "nir", *RED_EDGES, "nir08", "swir16", "swir22", "coastal", "nir09"
    ),
    "terramind-embeddings": (
        "coastal", "blue", "green", "red", *RED_EDGES, "nir", "nir08", "nir09", "swir16", "swir22"
    ),
    "s2cloudless": (
        "coastal", "blue", "red", "rededge071", "nir", "nir08", "nir09", "cirrus", "swir16", "swir22"
    ),
}  # fmt: skip
_PRITHVI: Final = "Prithvi (4 records)"


@dataclass(frozen=True)
class Case:
    """A scene in the shape of one provider. Either `bands` of files, or the assets of an `item`."""

    provider: str
    shape: str
    bands: tuple[SceneBand, ...] = ()
    #: Common name of each band, or of each asset by its key.
    truth: Mapping[Any, str] | None = None
    item: Mapping[str, Any] | None = None


def stack(
    provider: str, shape: str, names: Mapping[str, str] | Sequence[tuple[str | None, str]], file: str = ""
) -> Case:
    """Return a case of one file with described bands, in the listed order."""
    pairs = list(names.items()) if isinstance(names, Mapping) else list(names)
    sensor = named_sensor([file]) if file else None
    bands = [SceneBand(i, name, file_name=file, sensor=sensor) for i, (name, _) in enumerate(pairs, 1)]
    return Case(provider, shape, tuple(bands), {i: kind for i, (_, kind) in enumerate(pairs, 1)})


def files(provider: str, shape: str, names: Mapping[str, str]) -> Case:
    """Return a case of files of one band without a description, in the reverse of the listed order."""
    pairs = list(names.items())[::-1]
    bands = [
        SceneBand(1, None, file=at, before=at, file_name=name, sensor=named_sensor([name]), alone=True)
        for at, (name, _) in enumerate(pairs)
    ]
    return Case(provider, shape, tuple(bands), {at + 1: kind for at, (_, kind) in enumerate(pairs)})


def item(provider: str, shape: str, assets: Mapping[str, tuple[str, Mapping[str, Any]]], **properties: Any) -> Case:
    """Return a case of a STAC item: for each asset's key the common name and the fields."""
    collection = properties.pop("collection", None)
    named = {
        key: {"href": f"https://x.example/{key}.tif", "type": "image/tiff; application=geotiff", **fields}
        for key, (_, fields) in assets.items()
    }
    document = {"type": "Feature", "collection": collection, "properties": properties, "assets": named}
    return Case(provider, shape, truth={key: kind for key, (kind, _) in assets.items()}, item=document)


def _eo(name: str, common: str, **fields: Any) -> dict[str, Any]:
    return {"eo:bands": [{"name": name, "common_name": common}], **fields}


def _reversed(names: Mapping[str, str]) -> dict[str, str]:
    return dict(reversed(names.items()))


def _numbered(prefix: str, bands: Mapping[str, str], ending: str = "") -> dict[str, str]:
    return {f"{prefix}{number}{ending}": kind for number, kind in bands.items()}


def _short(codes: Mapping[str, str]) -> dict[str, str]:
    return {code.replace("B0", "B"): kind for code, kind in codes.items()}


def _renamed(form: str, names: Mapping[str, str]) -> dict[str, str]:
    return {form.format(name): kind for name, kind in names.items()}


def _six(codes: Mapping[str, str]) -> dict[str, str]:
    return {code: kind for code, kind in codes.items() if code in ("B02", "B03", "B04", "B8A", "B11", "B12")}


_PIXELS: Final = {
    "B01": 60, "B02": 10, "B03": 10, "B04": 10, "B05": 20, "B06": 20, "B07": 20, "B08": 10, "B8A": 20, "B09": 60,
    "B11": 20, "B12": 20, "B10": 60,
}  # fmt: skip
#: Keys of Earth Search since v1. https://earth-search.aws.element84.com/v1/collections/sentinel-2-c1-l2a
_EARTH_SEARCH: Final = {
    "coastal": "coastal", "blue": "blue", "green": "green", "red": "red", "rededge1": "rededge071",
    "rededge2": "rededge075", "rededge3": "rededge078", "nir": "nir", "nir08": "nir08", "nir09": "nir09",
    "swir16": "swir16", "swir22": "swir22",
}  # fmt: skip


#: Bands of Digital Earth Australia's Sentinel-2, beside its others.
_DEA: Final = {
    "nbart_blue": "blue", "nbart_green": "green", "nbart_red": "red", "nbart_red_edge_1": "rededge071",
    "nbart_red_edge_2": "rededge075", "nbart_red_edge_3": "rededge078", "nbart_nir_1": "nir", "nbart_nir_2": "nir08",
    "nbart_swir_2": "swir16", "nbart_swir_3": "swir22",
}  # fmt: skip


def _old(kind: str) -> str:
    """Return the common name of `eo` 1.0, which has one for all red edges."""
    return "rededge" if kind.startswith("rededge") else kind.rstrip("*")


def _items() -> list[Case]:
    picture = {"eo:bands": [{"name": c, "common_name": c} for c in ("red", "green", "blue")], "roles": ["visual"]}
    s2 = {"platform": "sentinel-2a", "constellation": "sentinel-2"}
    landsat = {"coastal": "1", "blue": "2", "green": "3", "red": "4", "nir08": "5", "swir16": "6", "swir22": "7"}
    cdse = {
        f"{code}_{size}m": (kind, {"bands": [{"name": code, "eo:common_name": _old(kind)}], "gsd": size})
        for code, kind in SENTINEL_2.items()
        for size in (60, 20, 10)
        if size >= _PIXELS[code]
    }
    return [
        # https://earth-search.aws.element84.com/v0/collections/sentinel-s2-l2a-cogs
        item("Earth Search v0", "Sentinel-2", {
            **{code: (kind, _eo(code, _old(kind))) for code, kind in SENTINEL_2.items()},
            "visual": ("", {**picture, "roles": ["overview"]}),
        }, **s2),
        item("Earth Search v1, c1", "Sentinel-2", {
            **{key: (kind, _eo(key, _old(kind))) for key, kind in _EARTH_SEARCH.items()},
            **{f"{key}-jp2": (kind, _eo(key, _old(kind), type="image/jp2")) for key, kind in _EARTH_SEARCH.items()},
            "visual": ("", picture),
        }, **s2),
        # https://planetarycomputer.microsoft.com/api/stac/v1/collections/sentinel-2-l2a: B8A is called `rededge`
        item("Planetary Computer", "Sentinel-2", {
            code: (kind, _eo(code, "rededge" if code == "B8A" else _old(kind))) for code, kind in SENTINEL_2.items()
        }, **s2),
        # https://planetarycomputer.microsoft.com/api/stac/v1/collections/landsat-c2-l2
        item("Planetary Computer", "Landsat 8, 9", {
            key: (OLI[n], _eo(f"OLI_B{n}", key)) for key, n in landsat.items()
        }, platform="landsat-9", instruments=["oli", "tirs"]),
        item("Planetary Computer", "Landsat 5, 7", {
            key: (kind, _eo(f"TM_B{n}", key))
            for key, (n, kind) in zip(["blue", "green", "red", "nir08", "swir16", "swir22"], TM.items(), strict=True)
        }, platform="landsat-5", instruments=["tm"]),
        # https://planetarycomputer.microsoft.com/api/stac/v1/collections/hls2-l30 and hls2-s30
        item("Planetary Computer", "HLS L30", {
            **{f"B0{n}": (kind, _eo(f"B0{n}", _old(kind))) for n, kind in OLI.items()},
            "B11": ("lwir12", _eo("B11", "lwir12")),
        }, collection="hls2-l30", platform="landsat-8"),
        item("Planetary Computer", "HLS S30", {
            code: (kind, _eo(code, _old(kind))) for code, kind in LEVEL_1C.items()
        }, collection="hls2-s30", platform="sentinel-2b"),
        # https://stac.dataspace.copernicus.eu/v1/collections/sentinel-2-l2a
        item("CDSE", "Sentinel-2", cdse, **s2),
        # https://landsatlook.usgs.gov/stac-server/collections/landsat-c2l2-sr
        item("USGS", "Landsat 8, 9", {
            key: (OLI[n], _eo(f"B{n}", key, gsd=30)) for key, n in landsat.items()
        }, platform="LANDSAT_8", instruments=["OLI", "TIRS"]),
        # https://cmr.earthdata.nasa.gov/stac/LPCLOUD/collections/HLSL30_2.0 and HLSS30_2.0: keys alone
        item("LP DAAC", "HLS L30", {
            **{f"B0{n}": (kind, {}) for n, kind in OLI.items()},
            **{key: ("", {}) for key in ("B09", "B10", "B11", "Fmask", "SZA", "browse")},
        }, collection="HLSL30_2.0"),
        item("LP DAAC", "HLS S30", {
            **{code: (kind, {}) for code, kind in LEVEL_1C.items()},
            **{key: ("", {}) for key in ("Fmask", "SZA", "browse")},
        }, collection="HLSS30_2.0"),
    ]  # fmt: skip


def _exports() -> list[Case]:
    words = {"blue": "blue", "green": "green", "red": "red", "nir": "nir08*", "swir16": "swir16", "swir22": "swir22"}
    gee = "Google Earth Engine"
    return [
        # https://developers.google.com/earth-engine/datasets/catalog: bands of COPERNICUS_S2_SR_HARMONIZED,
        # LANDSAT_LC09_C02_T1_L2, LANDSAT_LT05_C02_T1_L2, NASA_HLS_HLSL30_v002, MODIS_061_MCD43A4
        stack(gee, "Sentinel-2, all bands", _reversed(_short(SENTINEL_2))),
        stack(gee, "Sentinel-2, six bands", _reversed(_short(_six(SENTINEL_2)))),
        # https://developers.google.com/earth-engine/apidocs/ee-imagecollection-tobands and ee-imagecollection-median
        stack(gee, "Sentinel-2 after `toBands` (`0_B12`)", _renamed("0_{}", _reversed(_short(SENTINEL_2)))),
        stack(gee, "Sentinel-2 after a median (`B12_median`)", _renamed("{}_median", _reversed(_short(SENTINEL_2)))),
        stack(gee, "Landsat 8, 9 (`SR_B7` to `SR_B2`)", _reversed(_numbered("SR_B", OLI))),
        stack(gee, "Landsat 4 to 7 (`SR_B7` to `SR_B1`)", _reversed(_numbered("SR_B", TM))),
        stack(gee, "HLS L30, `HLSL30` in the file's name", _reversed(_numbered("B", OLI)), "HLSL30_2023.tif"),
        stack(gee, "HLS L30, no sensor named (`B7` to `B1`)", _reversed(_numbered("B", OLI))),
        stack(gee, "MODIS MCD43A4", _numbered("Nadir_Reflectance_Band", MODIS)),
        # https://knowledge.dea.ga.gov.au/data/product/dea-surface-reflectance-nbart-sentinel-2a-msi and
        # dea-surface-reflectance-nbart-landsat-8-oli-tirs; https://github.com/GeoscienceAustralia/dea-config
        stack("Digital Earth Australia", "Sentinel-2 (`nbart_swir_3` to `nbart_blue`)", _reversed(_DEA)),
        stack("Digital Earth Australia", "Landsat (`nbart_swir_2` to `nbart_blue`)", {
            "nbart_swir_2": "swir22", "nbart_swir_1": "swir16", "nbart_nir": "nir08*", "nbart_red": "red",
            "nbart_green": "green", "nbart_blue": "blue",
        }),
        # GDAL's driver SENTINEL2, gdal.org/drivers/raster/sentinel2.html
        stack("GDAL", "Sentinel-2 (`B4, central wavelength 665 nm`)", {
            "B4, central wavelength 665 nm": "red", "B3, central wavelength 560 nm": "green",
            "B2, central wavelength 490 nm": "blue", "B5, central wavelength 705 nm": "rededge071",
            "B6, central wavelength 740 nm": "rededge075", "B7, central wavelength 783 nm": "rededge078",
            "B8A, central wavelength 865 nm": "nir08", "B11, central wavelength 1610 nm": "swir16",
            "B12, central wavelength 2190 nm": "swir22",
        }),
        # step.esa.int: SNAP keeps names in BEAM-DIMAP; its GeoTIFF has none that GDAL reads
        stack("SNAP", "BEAM-DIMAP names", _reversed(_short(SENTINEL_2))),
        stack("SNAP", "GeoTIFF without names, in the model's order", [(None, kind) for kind in SIX]),
        # docs.qgis.org: `Save raster layer as`, raw data, keeps descriptions; others are numbered
        stack("QGIS", "names kept", _reversed(words)),
        stack("QGIS", "`Band 1` to `Band 6`, in the model's order", {f"Band {i}": k for i, k in enumerate(SIX, 1)}),
        stack("QGIS", "`Band 7` to `Band 2` of Landsat 8", _reversed(_numbered("Band ", dict(list(OLI.items())[1:])))),
        stack("any", "French (`bleu`, `PIR`, `MIR`)", {
            "MIR2": "swir22", "MIR": "swir16", "PIR": "nir08*", "rouge": "red", "vert": "green", "bleu": "blue",
        }),
        stack("any", "German, Spanish", {
            "Rot": "red", "Grün": "green", "azul": "blue", "infrarrojo cercano": "nir08*", "SWIR 1": "swir16",
            "SWIR 2": "swir22",
        }),
        stack("any", "`Red (665 nm)`", {
            "Red (665 nm)": "red", "Green (560 nm)": "green", "Blue (490 nm)": "blue", "NIR (865 nm)": "nir08*",
            "SWIR (1610 nm)": "swir16", "SWIR (2190 nm)": "swir22",
        }),
        stack("any", "`NIR` and `Narrow NIR`", {
            "SWIR 2": "swir22", "SWIR 1": "swir16", "NIR": "nir", "Narrow NIR": "nir08", "Red": "red", "Green": "green",
            "Blue": "blue",
        }),
        stack("any", "MODIS, VIIRS (`SWIR1` to `SWIR3`, the first at 1240 nm)", {
            "Red": "red", "NIR": "nir08*", "Blue": "blue", "Green": "green", "SWIR1": "1240 nm", "SWIR2": "swir16",
            "SWIR3": "swir22",
        }),
        stack("any", "words unknown", dict(zip(("un", "deux", "trois", "quatre", "cinq", "six"), SIX, strict=True))),
    ]  # fmt: skip


def _files() -> list[Case]:
    s2 = {f"T33TUL_20190416T100031_{code}_{_PIXELS[code]}m.jp2": kind for code, kind in SENTINEL_2.items()}
    c2, c1 = "042034_20230101_20230103_02_T1", "022039_19840814_20200918_02_T1"
    browser = "2019-04-16-00_00_2019-04-16-23_59_Sentinel-2_L1C_{}_(Raw).tiff"
    return [
        # sentiwiki.copernicus.eu, S2 Products: names of image files
        files("CDSE, ESA", "files of Sentinel-2 L2A", s2),
        # https://knowledge.dea.ga.gov.au/notebooks/DEA_products/DEA_Sentinel2_Surface_Reflectance/
        files("Digital Earth Australia", "files `ga_ls8c_nbart_…_band07.tif`", _numbered(
            "ga_ls8c_nbart_3-0-0_089078_2019-04-16_final_band0", OLI, ".tif"
        )),
        # usgs.gov: Landsat Collection 2 product identifiers and band files
        files("USGS", "files `LC09_…_SR_B2.TIF`", _numbered(f"LC09_L2SP_{c2}_SR_B", OLI, ".TIF")),
        files("USGS", "files `LE07_…_SR_B1.TIF`", _numbered(f"LE07_L2SP_{c2}_SR_B", TM, ".TIF")),
        files("USGS", "files `LT05_…_B1.TIF`", _numbered(f"LT05_L1TP_{c1}_B", TM, ".TIF")),
        # lpdaac.usgs.gov: HLS User Guide 2.0, MCD43 User Guide
        files("LP DAAC", "files `HLS.L30.….B05.tif`", _numbered("HLS.L30.T10SEH.2020001T184512.v2.0.B0", OLI, ".tif")),
        files("LP DAAC", "files `HLS.S30.….B8A.tif`", {
            f"HLS.S30.T10SEH.2020001T185751.v2.0.{code}.tif": kind for code, kind in LEVEL_1C.items()
        }),
        files("LP DAAC", "files of MODIS (AppEEARS)", _numbered(
            "MCD43A4.061_Nadir_Reflectance_Band", MODIS, "_doy2020001_aid0001.tif"
        )),
        files("EO Browser", "files of Sentinel-2 L1C", {browser.format(code): kind for code, kind in LEVEL_1C.items()}),
        # docs.planet.com: PlanetScope product specification; four bands for a model of these bands are in the tests
        stack("Planet", "PlanetScope, 8 bands", {
            "coastal_blue": "coastal", "blue": "blue", "green_i": "green I", "green": "green", "yellow": "yellow",
            "red": "red", "rededge": "rededge071", "nir": "nir08*",
        }),
    ]  # fmt: skip


def cases() -> list[Case]:
    """Return all cases."""
    return [*_items(), *_files(), *_exports()]


def records() -> dict[str, tuple[Band, ...]]:
    """Return the bands of the shipped record and of the ready records, by name."""
    models = {"csmask": read_catalogue()["csmask"], **ready_records()}
    return {name: tuple(Band.model_validate(band) for band in models[name].options["bands"]) for name in NEEDS}


def outcome(case: Case, record: str, needed: Sequence[Band]) -> Outcome:
    """Return the outcome of one case with one record."""
    assert case.truth is not None
    try:
        kinds, notes = _chosen_of_item(case, needed) if case.item is not None else _chosen(case, needed)
    except InputError:
        has = all(any(_is(need, kind) for kind in case.truth.values()) for need in NEEDS[record])
        return "refused" if has else "lacks bands"
    right = all(_is(need, kind) for need, kind in zip(NEEDS[record], kinds, strict=True))
    return "wrong" if not right else "noted" if notes else "read"


def _chosen(case: Case, needed: Sequence[Band]) -> tuple[list[str], tuple[str, ...]]:
    assert case.truth is not None
    found = select_bands(needed, case.bands, None)
    return [case.truth[band.number] for band in found.bands], found.notes


def _chosen_of_item(case: Case, needed: Sequence[Band]) -> tuple[list[str], tuple[str, ...]]:
    """Choose the assets, then the bands of their files, as in a job. All keys must be of the finest resolution."""
    assert case.item is not None
    assert case.truth is not None
    document = read_stac_item(case.item)
    names = [file_name(address) for address in choose_assets(document, None, needed, None)]
    keys = [name.removesuffix(".tif") for name in names]
    present = [
        SceneBand(1, None, document.bands[key][0].names, at, at, file_name=name, alone=True)
        for at, (key, name) in enumerate(zip(keys, names, strict=True))
    ]
    found = select_bands(needed, present, None, named_sensor(document.platforms))
    chosen = [keys[band.file] for band in found.bands]
    coarse = [key for key in chosen if key.endswith("m") and f"_{_PIXELS[key[:3]]}m" not in key]
    return ["coarse" if key in coarse else case.truth[key] for key in chosen], found.notes


def _is(need: str, kind: str) -> bool:
    if kind == "nir08*":
        return need in ("nir?", "nir", "nir08")
    return kind in ("nir", "nir08") if need == "nir?" else kind == need


@cache
def outcomes() -> list[tuple[Case, dict[str, Outcome]]]:
    """Return the outcome of every case with every record."""
    known = records()
    return [(case, {name: outcome(case, name, bands) for name, bands in known.items()}) for case in cases()]


def table(found: Sequence[tuple[Case, Mapping[str, Outcome]]]) -> str:
    """Return the table of the page; the records of Prithvi share a column, because they agree."""
    columns = {
        "csmask": "csmask",
        "prithvi-floods": _PRITHVI,
        "clay-embeddings": "Clay",
        "terramind-embeddings": "TerraMind",
        "s2cloudless": "s2cloudless",
    }
    lines = [f"| source | names | {' | '.join(columns.values())} |", "| --- " * (len(columns) + 2) + "|"]
    for case, each in found:
        cells = [case.provider, case.shape, *(each[name] for name in columns)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def on_the_page(text: str) -> str:
    """Return the table on the page."""
    return text.partition(START)[2].partition(END)[0].strip()


def main(*, write: bool) -> None:
    """Print the table, and write it to the page."""
    made = table(outcomes())
    sys.stdout.write(f"{made}\n")
    if write:
        text = PAGE.read_text("utf-8")
        before, after = text.partition(START)[0], text.partition(END)[2]
        PAGE.write_text(f"{before}{START}\n\n{made}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main(write="--write" in sys.argv[1:])
