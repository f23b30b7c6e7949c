"""The `input` of a raster job. Its JSON Schema is the API's: neither numpy nor GDAL is imported here.

A scene is one file, or several files with a band or more each, or several dates of either; every one may come with
what its producer says of its numbers (`sidecar`, `stac`). `SceneRequest` is what all raster models take.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from penstock.models import MediaReference
from penstock.times import Time

OutputName = Literal[
    "classes", "probability", "probability_float32", "confidence", "polygons", "preview", "stats", "item"
]
DEFAULT_OUTPUTS: tuple[OutputName, ...] = ("classes", "preview", "stats")

ValueOutputName = Literal["values", "preview", "stats", "item"]
DEFAULT_VALUE_OUTPUTS: tuple[ValueOutputName, ...] = ("values", "preview", "stats")

NameT = TypeVar("NameT")
BandName = Annotated[str, Field(min_length=1, max_length=200)]

_FORMS = "media://<upload>, s3://bucket/key (allowed buckets) or https://... (allowed hosts)"


def _each_once(names: tuple[NameT, ...]) -> tuple[NameT, ...]:
    if len(set(names)) != len(names):
        raise ValueError("each output may be named once")
    return names


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


def _media(description: str) -> Any:
    return Field(default=None, description=f"{description}. {_FORMS}", json_schema_extra=_without_default)


def _only_one_of(*names: str, apart: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> dict[str, Any]:
    """Return the JSON Schema of an object with exactly one of these properties; `apart` shuts out others beside one."""
    shut_out = {name: [*(set(names) - {name}), *apart.get(name, ())] for name in names}
    return {
        "anyOf": [{"required": [name]} for name in names],
        "dependentSchemas": {
            name: {"properties": {other: {"not": {}} for other in sorted(others)}} for name, others in shut_out.items()
        },
    }


_SCENE_SCHEMA = _only_one_of("scene", "files", "dates", apart={"dates": ("sidecar", "stac")})


class RadiometryRequest(BaseModel):
    """How the file's numbers become what the model was trained on: `value = number * scale + offset`.

    What is left out comes from the sidecar, then the STAC item, then the file's own scale and offset tags, then the
    model's defaults. What was used is recorded in `stats.json`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"dependentRequired": {"offset": ["scale"]}}
    )

    scale: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Reflectance per digital number: 0.0001 for Sentinel-2, HLS and most 16-bit products.",
    )
    offset: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description=(
            "Added after scaling, so in reflectance: -0.1 for Sentinel-2 since processing baseline 04.00. "
            "Needs `scale`; 0 when only `scale` is given."
        ),
    )
    nodata: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description=(
            "The number that stands for no data, in place of the file's own. A pixel without data in any of the "
            "model's bands has none in the result. NaN, alpha and mask bands are always honoured."
        ),
    )

    @model_validator(mode="after")
    def _offset_needs_scale(self) -> Self:
        if self.offset is not None and self.scale is None:
            raise ValueError("offset needs scale")
        return self


class SceneFile(BaseModel):
    """One of a scene's files. Its resolution is read from the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    media: MediaReference = Field(description=f"A GeoTIFF or JPEG 2000 file. {_FORMS}")
    bands: list[BandName] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="The names of all its bands in the file's order, in place of those in the file: e.g. [`B02`].",
    )
    radiometry: RadiometryRequest | None = Field(
        default=None, description="What this file's numbers mean, where it differs from the other files."
    )


class Location(BaseModel):
    """A place on the earth (WGS 84)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lat: float = Field(ge=-90, le=90, allow_inf_nan=False, description="Latitude in degrees, positive in the north.")
    lon: float = Field(ge=-180, le=180, allow_inf_nan=False, description="Longitude in degrees, positive in the east.")


class Acquisition(BaseModel):
    """A scene at one date: one file with all bands (`scene`) or several (`files`)."""

    #: Exactly one of these is given.
    ways: ClassVar[tuple[str, ...]] = ("scene", "files")
    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_only_one_of("scene", "files"))

    scene: MediaReference | SkipJsonSchema[None] = _media(
        "The scene, a GeoTIFF or JPEG 2000 file with all the model's bands"
    )
    files: Annotated[list[SceneFile], Field(min_length=1, max_length=100)] | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "The scene as several files, e.g. one per band as Sentinel-2 comes. The finest of those that are used is "
            "the grid of the results; coarser ones are brought onto it (bilinear, their pixels must nest in its). "
            "The CRS and the extent must be the same."
        ),
    )
    sidecar: MediaReference | SkipJsonSchema[None] = _media(
        "What the producer says of the numbers: MTD_MSIL1C.xml or MTD_MSIL2A.xml of Sentinel-2, *_MTL.json of Landsat"
    )
    stac: MediaReference | SkipJsonSchema[None] = _media(
        "The scene's STAC item (JSON), whose assets tell their bands' names, scales, offsets and nodata. An asset is "
        "matched with a given file by its file name, or a band by its name; nothing that it links to is fetched"
    )
    radiometry: RadiometryRequest | None = Field(
        default=None, description="How the file's numbers become reflectance, where the file does not say it itself."
    )
    datetime: Time | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "When the scene was taken, with a time zone: for the STAC item, and for models that are told it. Without "
            "it, what the `sidecar` says, else the item in `stac`, else the file's own tag (SENSING_TIME of HLS, or "
            "ACQUISITIONDATETIME)."
        ),
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = [name for name in self.ways if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(self.ways)} is needed, not {' and '.join(given) or 'none'}")
        return self

    def parts(self) -> tuple[SceneFile, ...]:
        """Return the files, of which a `scene` is one."""
        return (SceneFile(media=self.scene),) if self.scene is not None else tuple(self.files or ())


class SceneRequest(Acquisition):
    """What every raster model takes: a scene, at one date or several."""

    ways: ClassVar[tuple[str, ...]] = ("scene", "files", "dates")
    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_SCENE_SCHEMA)

    dates: Annotated[list[Acquisition], Field(min_length=1, max_length=100)] | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "The scene at several dates, earliest first, for a model of that many dates. All on one grid; each with "
            "its own sidecar or STAC item. `bands` and `radiometry` beside it apply to every date."
        ),
    )
    bands: list[BandName | Annotated[int, Field(ge=1)]] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description=(
            "The scene's bands in the model's order, each by its name (band description) or its number from 1, "
            "counted through all files. Without it, bands are found by their names, or taken in order when the scene "
            "has exactly as many unnamed bands as the model needs."
        ),
    )

    datetime: Time | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "When the scene was taken, with a time zone; with `dates`, the last one that has no `datetime` of its own. "
            "For the STAC item, and for models that are told it. Without it, what the `sidecar` says, else the item in "
            "`stac`, else the file's own tag (SENSING_TIME of HLS, or ACQUISITIONDATETIME)."
        ),
    )
    location: Location | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "Where the scene lies, for models that are told it, and only for them: the same for all its tiles. Without "
            "it each tile's centre, by the scene's georeference."
        ),
    )

    @model_validator(mode="after")
    def _documents_belong_to_a_date(self) -> Self:
        if self.dates is not None and (self.sidecar is not None or self.stac is not None):
            raise ValueError("with dates, sidecar and stac are given for each date")
        return self

    def acquisitions(self) -> tuple[Acquisition, ...]:
        """Return the dates in order; a scene without dates is one."""
        return (self,) if self.dates is None else tuple(self.dates)


class PolygonRequest(BaseModel):
    """Which polygons to make: all of them, as they are, unless told otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_pixels: int = Field(default=1, ge=1, description="Smaller polygons are left out; their place stays empty.")
    simplify_px: float = Field(
        default=0,
        ge=0,
        le=100,
        description=(
            "How far, in pixels, outlines may be moved to save points. Neighbours are simplified one by one: narrow "
            "gaps and overlaps are to be expected. `pixels` and `area_m2` remain those of the map."
        ),
    )


class SegmentationRequest(SceneRequest):
    """A scene to segment."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra=_SCENE_SCHEMA | {"title": "Segmentation of a scene"},
    )

    outputs: Annotated[tuple[OutputName, ...], AfterValidator(_each_once)] = Field(
        default=DEFAULT_OUTPUTS,
        min_length=1,
        json_schema_extra={"uniqueItems": True},
        description=(
            "What to make of the one forward pass. classes: a COG of class ids; probability: a COG with one band per "
            "class, in steps of 1/254; probability_float32: the same unrounded; confidence: a COG of the largest of "
            "them; polygons: FlatGeobuf in the scene's CRS and GeoJSON; preview: a PNG of at most 1024 px; stats: "
            "pixels, area and share of each class as JSON; item: a STAC item of all of these and of the model."
        ),
    )

    polygons: PolygonRequest = Field(default=PolygonRequest(), description="Which polygons to make, if any.")


class RegressionRequest(SceneRequest):
    """A scene to estimate quantities of."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra=_SCENE_SCHEMA | {"title": "Quantities of a scene"},
    )

    outputs: Annotated[tuple[ValueOutputName, ...], AfterValidator(_each_once)] = Field(
        default=DEFAULT_VALUE_OUTPUTS,
        min_length=1,
        json_schema_extra={"uniqueItems": True},
        description=(
            "What to make of the one forward pass. values: a COG of float32 with one band per quantity; preview: a PNG "
            "of the first, at most 1024 px; stats: the spread of each quantity as JSON; item: a STAC item of all of "
            "these and of the model."
        ),
    )
