"""Sensors of optical scenes: band codes, centre wavelengths and common names. Data, and no rules.

Common names are those of the STAC extension `eo` 2.0. Wavelengths are in nanometres, from the spectral responses of ESA
(Sentinel-2A) and the band tables of USGS (Landsat), LP DAAC (HLS, MODIS) and Planet. HLS has the codes of the sensor
that it was made from: L30 those of Landsat 8 and 9, S30 those of Sentinel-2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Common name of a single band in near infrared: it stands for a broad and for a narrow one.
ONLY_NIR: Final = ("nir08", "nir")


@dataclass(frozen=True, slots=True)
class SensorBand:
    """A band of a sensor: its centre in nanometres, and its common names, the first of which is exact."""

    wavelength_nm: float
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sensor:
    """A sensor whose bands have codes, in the form of `canonical` (`b4`, `b8a`)."""

    name: str
    #: Names of the platform, of its products and of their files.
    names: re.Pattern[str]
    bands: Mapping[str, SensorBand]


def _sensor(name: str, names: str, **bands: tuple[float, *tuple[str, ...]]) -> Sensor:
    known = {code: SensorBand(nm, kinds) for code, (nm, *rest) in bands.items() for kinds in [tuple(rest)]}
    return Sensor(name, re.compile(names, re.IGNORECASE), known)


SENTINEL_2: Final = _sensor(
    "Sentinel-2",
    r"(?<![a-z0-9])S2(?:[A-D](?![a-z0-9])|(?=[_-]))|sentinel[ _-]*2|MSIL[12][ABC]|HLS2?[._-]?S30"
    r"|(?<![a-z0-9])T\d\d[A-Z]{3}_\d{8}T|(?<![a-z0-9])ga_s2[a-d]m_",
    b1=(442.7, "coastal"), b2=(492.4, "blue"), b3=(559.8, "green"), b4=(664.6, "red"), b5=(704.1, "rededge071"),
    b6=(740.5, "rededge075"), b7=(782.8, "rededge078"), b8=(832.8, "nir"), b8a=(864.7, "nir08"), b9=(945.1, "nir09"),
    b10=(1373.5, "cirrus"), b11=(1613.7, "swir16"), b12=(2202.4, "swir22"),
)  # fmt: skip
OLI: Final = _sensor(
    "Landsat 8 and 9",
    r"(?<![a-z0-9])L(?:[COT]0?[89](?=$|[^a-z0-9]|\d{5})|[89](?=[_-])|0[89]\.)|landsat[ _-]*[89](?!\d)"
    r"|(?<![a-z])OLI(?![a-z])|HLS2?[._-]?L30|(?<![a-z0-9])ga_ls[89]c_",
    b1=(443.0, "coastal"), b2=(482.0, "blue"), b3=(561.4, "green"), b4=(654.6, "red"), b5=(864.7, *ONLY_NIR),
    b6=(1608.9, "swir16"), b7=(2200.7, "swir22"), b8=(589.5, "pan"), b9=(1373.4, "cirrus"), b10=(10_895.0, "lwir11"),
    b11=(12_005.0, "lwir12"),
)  # fmt: skip
TM: Final = _sensor(
    "Landsat 4 to 7",
    r"(?<![a-z0-9])L(?:[ET]0?[457](?=$|[^a-z0-9]|\d{5})|[57](?=[_-])|0[457]\.)|landsat[ _-]*[457](?!\d)"
    r"|(?<![a-z0-9])ga_ls[457][et]_",
    b1=(485.0, "blue"), b2=(560.0, "green"), b3=(660.0, "red"), b4=(840.0, *ONLY_NIR), b5=(1650.0, "swir16"),
    b6=(11_450.0, "lwir"), b7=(2220.0, "swir22"), b8=(710.0, "pan"),
)  # fmt: skip
MSS_4: Final = _sensor(
    "Landsat 4 and 5 MSS",
    r"(?<![a-z0-9])LM0?[45](?=$|[^a-z0-9]|\d{5})",
    b1=(550.0, "green"), b2=(650.0, "red"), b3=(750.0, "rededge075"), b4=(950.0, "nir09"),
)  # fmt: skip
MSS_1: Final = _sensor(
    "Landsat 1 to 3 MSS",
    r"(?<![a-z0-9])LM0?[123](?=$|[^a-z0-9]|\d{5})|landsat[ _-]*[123](?!\d)",
    b4=(550.0, "green"), b5=(650.0, "red"), b6=(750.0, "rededge075"), b7=(950.0, "nir09"),
)  # fmt: skip
MODIS: Final = _sensor(
    "MODIS",
    r"(?<![a-z0-9])M[COY]D\d\d[A-Z]|modis",
    b1=(645.0, "red"), b2=(858.5, *ONLY_NIR), b3=(469.0, "blue"), b4=(555.0, "green"), b5=(1240.0,),
    b6=(1640.0, "swir16"), b7=(2130.0, "swir22"),
)  # fmt: skip
SENSORS: Final = (SENTINEL_2, OLI, TM, MSS_4, MSS_1, MODIS)
#: Sensors that a code without a sensor's name may be of. MSS and MODIS are only recognised by name.
USUAL: Final = (SENTINEL_2, OLI, TM)
#: Sensors of the codes `SR_B1` (Collection 2) and `sr_band1` (Collection 1).
LANDSAT: Final = (OLI, TM)

#: Centre wavelengths of each common name, in nm: at least, below.
WAVELENGTHS: Final[Mapping[str, tuple[float, float]]] = {
    "coastal": (400, 455), "blue": (455, 530), "green": (530, 585), "yellow": (585, 625), "red": (625, 692),
    "rededge071": (692, 725), "rededge075": (725, 765), "rededge078": (765, 800), "nir": (800, 850),
    "nir08": (850, 890), "nir09": (890, 1000), "cirrus": (1355, 1395), "swir16": (1550, 1750), "swir22": (2080, 2350),
    "lwir11": (10_300, 11_400), "lwir12": (11_500, 12_600),
}  # fmt: skip

#: Files whose bands have no names, in the order that the provider documents: Planet's product specifications.
PRODUCTS: Final[tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...]] = (
    (
        "PlanetScope with 4 bands",
        re.compile(r"3B_(AnalyticMS|ortho_analytic_4b)", re.IGNORECASE),
        ("blue", "green", "red", "nir"),
    ),
    (
        "PlanetScope with 8 bands",
        re.compile(r"3B_(AnalyticMS_SR_8b|AnalyticMS_8b|ortho_analytic_8b)", re.IGNORECASE),
        ("coastal", "blue", "green i", "green", "yellow", "red", "rededge", "nir"),
    ),
    (
        "RapidEye",
        re.compile(r"RE\d?[_-].*3A_Analytic|RapidEye", re.IGNORECASE),
        ("blue", "green", "red", "rededge", "nir"),
    ),
)

#: Words for the common names, in the form of `words`: English, French, German, Spanish, Portuguese, Italian, Dutch.
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "coastal": (
        "coastal", "coastal aerosol", "aerosol", "aerosols", "ultra blue", "deep blue", "coastal blue", "cotier",
        "aerosol cotier", "aerosols cotiers", "bleu cotier", "kuste", "kustenblau",
    ),
    "blue": ("blue", "bleu", "bleue", "blau", "azul", "blu", "blauw"),
    "green": ("green", "vert", "verte", "grun", "gruen", "verde", "groen"),
    "green i": ("green i", "green 1", "greeni"),
    "yellow": ("yellow", "jaune", "gelb", "amarillo", "amarelo", "giallo", "geel"),
    "red": ("red", "rouge", "rot", "rojo", "vermelho", "rosso", "rood"),
    "rededge": (
        "rededge", "red edge", "vegetation red edge", "bord rouge", "limite rouge", "borde rojo", "borda vermelha",
    ),
    "rededge071": (
        "rededge071", "rededge 071", "rededge 1", "rededge1", "red edge 1",
        "vegetation red edge 1", "rededge 705", "re 1", "re1",
    ),
    "rededge075": (
        "rededge075", "rededge 075", "rededge 2", "rededge2", "red edge 2",
        "vegetation red edge 2", "rededge 740", "re 2", "re2",
    ),
    "rededge078": (
        "rededge078", "rededge 078", "rededge 3", "rededge3", "red edge 3",
        "vegetation red edge 3", "rededge 783", "re 3", "re3",
    ),
    "nir": (
        "nir", "nir 1", "nir1", "nir broad", "near infrared", "near infra red", "nearinfrared", "near ir", "pir",
        "proche infrarouge", "proche infra rouge", "infrarouge proche", "nahes infrarot", "nahinfrarot",
        "naheres infrarot", "infrarrojo cercano", "cercano infrarrojo", "irc", "infravermelho proximo", "ivp",
        "infrarosso vicino", "vicino infrarosso", "nabij infrarood",
    ),
    "nir 2": ("nir 2", "nir2"),  # of WorldView: 950 nm
    "nir08": (
        "nir08", "nir 08", "nir narrow", "nirnarrow", "narrow nir", "nir8a", "near infrared narrow",
        "narrow near infrared", "pir etroit", "proche infrarouge etroit", "nbart nir 2", "nbar nir 2", "s2be nir 2",
    ),
    "nir09": ("nir09", "nir 09", "water vapour", "water vapor", "watervapour", "watervapor", "vapeur d eau"),
    "cirrus": ("cirrus", "swir cirrus"),
    "swir16": (
        "swir16", "swir 16", "swir1", "swir 1", "short wave infrared 1", "shortwave infrared 1", "swir 1 6", "mir",
        "mir1", "mir 1", "moyen infrarouge", "moyen infrarouge 1", "infrarouge moyen", "infrarouge moyen 1",
        "mittleres infrarot", "mittleres infrarot 1", "infrarrojo medio", "infrarrojo medio 1",
        "infrarrojo de onda corta 1", "kurzwelliges infrarot 1", "infravermelho medio 1",
        "infravermelho de ondas curtas 1", "infrarosso medio 1", "infrarouge a ondes courtes 1",
    ),
    "swir22": (
        "swir22", "swir 22", "swir2", "swir 2", "short wave infrared 2", "shortwave infrared 2", "swir 2 2", "mir2",
        "mir 2", "moyen infrarouge 2", "infrarouge moyen 2", "mittleres infrarot 2", "infrarrojo medio 2",
        "infrarrojo de onda corta 2", "kurzwelliges infrarot 2", "infravermelho medio 2",
        "infravermelho de ondas curtas 2", "infrarosso medio 2", "infrarouge a ondes courtes 2",
    ),
    "pan": ("pan", "panchromatic", "panchromatique", "pancromatico", "panchromatisch"),
    "lwir": ("lwir", "thermal", "tir", "thermique"),
    "lwir11": ("lwir11", "lwir 11", "tir1", "tirs1", "thermal 1"),
    "lwir12": ("lwir12", "lwir 12", "tir2", "tirs2", "thermal 2"),
}  # fmt: skip
#: Common names of `SWIR 1`, `SWIR 2` in a scene that numbers no other short-wave infrared.
SWIR: Final[Mapping[int, str]] = {1: "swir16", 2: "swir22"}
#: The same of Sentinel-2 of Digital Earth Australia. https://knowledge.dea.ga.gov.au/data/product/
#: dea-surface-reflectance-nbart-sentinel-2a-msi, and the aliases in GeoscienceAustralia/dea-config.
DEA_SWIR: Final[Mapping[int, str]] = {2: "swir16", 3: "swir22"}
#: Words of products that are made from a band and are not the band.
NO_BAND: Final = frozenset(
    {
        "angle", "aot", "average", "class", "classification", "cloud", "count", "date", "difference", "error", "flag",
        "index", "infra", "map", "mask", "minus", "nbr", "ndvi", "ndwi", "plus", "qa", "quality", "ratio",
        "saturation", "sd", "std", "stddev", "thickness", "uncertainty", "valid", "variance", "wvp",
    }
)  # fmt: skip
#: Words among them that may describe a file of a band: the last word of `map_2024_red.tif` names the band.
OF_FILES: Final = frozenset({"average", "map", "valid"})
