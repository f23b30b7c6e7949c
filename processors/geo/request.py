"""The `input` of a raster job. The API uses its JSON Schema, so this module imports neither numpy nor GDAL.

A scene is one file, or several files with one or more bands each, or several dates of either. Each date can have
metadata from its producer (`sidecar`, `stac`). `SceneRequest` is the common base of all raster requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from penstock.models import BY_RANGE, LINKS, MediaReference
from penstock.times import Time

OutputName = Literal[
    "classes", "probability", "probability_float32", "confidence", "polygons", "preview", "quicklook", "stats", "item"
]
DEFAULT_OUTPUTS: tuple[OutputName, ...] = ("classes", "preview", "stats")

ValueOutputName = Literal["values", "preview", "stats", "item"]
DEFAULT_VALUE_OUTPUTS: tuple[ValueOutputName, ...] = ("values", "preview", "stats")

NameT = TypeVar("NameT")
BandName = Annotated[str, Field(min_length=1, max_length=200)]

_FORMS = "media://<upload>, s3://bucket/key (allowed buckets) or https://... (allowed hosts)"


def _each_once(names: tuple[NameT, ...]) -> tuple[NameT, ...]:
    if len(set(names)) != len(names):
        raise ValueError("each output may appear only once")
    return names


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


def _with_links(schema: dict[str, Any]) -> None:
    """Mark a STAC item: the worker fetches its assets if the processor asks for them."""
    schema.pop("default", None)
    schema[LINKS] = True


def _media(description: str) -> Any:
    return Field(default=None, description=f"{description}. {_FORMS}", json_schema_extra=_without_default)


def _by_range(schema: dict[str, Any]) -> None:
    """Mark media of which only the area is read, if the request has one."""
    schema.pop("default", None)
    schema[BY_RANGE] = "area"


def _only_one_of(*names: str, apart: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> dict[str, Any]:
    """Return the JSON Schema of an object with exactly one of these properties; `apart` lists further exclusions."""
    shut_out = {name: [*(set(names) - {name}), *apart.get(name, ())] for name in names}
    return {
        "anyOf": [{"required": [name]} for name in names],
        "dependentSchemas": {
            name: {"properties": {other: {"not": {}} for other in sorted(others)}} for name, others in shut_out.items()
        },
    }


_ACQUISITION_SCHEMA = _only_one_of("scene", "files")
_ACQUISITION_SCHEMA["anyOf"].append({"required": ["stac"]})
_SCENE_SCHEMA = _only_one_of("scene", "files", "dates", apart={"dates": ("sidecar", "stac")})
_SCENE_SCHEMA["anyOf"].append({"required": ["stac"]})


class RadiometryRequest(BaseModel):
    """Radiometry of the file: `value = number * scale + offset`, in the unit of the model's training data.

    Missing values come from the sidecar, then the STAC item, then the file's scale and offset tags, then the model's
    defaults. `stats.json` records the values that were used.
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
            "Offset added after scaling, in reflectance: -0.1 for Sentinel-2 since processing baseline 04.00. "
            "Requires `scale`; 0 if only `scale` is given."
        ),
    )
    nodata: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description=(
            "Nodata number; replaces the nodata of the file. A pixel without data in any of the model's bands has no "
            "data in the result. NaN, alpha and mask bands are always respected."
        ),
    )

    trust: bool = Field(
        default=False,
        description=(
            "Use the radiometry even if the values are implausible for the model. The values are usually compared with "
            "the training data, and a scene with impossible values is rejected; with `trust`, a note reports them."
        ),
    )

    @model_validator(mode="after")
    def _offset_needs_scale(self) -> Self:
        if self.offset is not None and self.scale is None:
            raise ValueError("offset requires scale")
        return self


class SceneFile(BaseModel):
    """One file of a scene. Its resolution is read from the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    media: MediaReference = Field(
        description=f"A GeoTIFF or JPEG 2000 file. {_FORMS}", json_schema_extra={BY_RANGE: "area"}
    )
    bands: list[BandName] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Names of all bands in the file's order, instead of the names in the file: e.g. [`B02`].",
    )
    radiometry: RadiometryRequest | None = Field(
        default=None, description="Radiometry of this file, if it differs from the other files."
    )


class Location(BaseModel):
    """A location on the earth (WGS 84)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lat: float = Field(ge=-90, le=90, allow_inf_nan=False, description="Latitude in degrees, positive in the north.")
    lon: float = Field(ge=-180, le=180, allow_inf_nan=False, description="Longitude in degrees, positive in the east.")


#: A ring of GeoJSON: positions of two numbers, or three with a height.
Position = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=2, max_length=3)]
Rings = Annotated[list[Annotated[list[Position], Field(min_length=4, max_length=100_000)]], Field(min_length=1)]


class PolygonGeometry(BaseModel):
    """A GeoJSON polygon: its outer ring, then its holes. The last position of a ring repeats the first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["Polygon"] = Field(description="Kind of the geometry.")
    coordinates: Rings = Field(description="The outer ring, then the holes: lists of [x, y].")


class MultiPolygonGeometry(BaseModel):
    """A GeoJSON multipolygon."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["MultiPolygon"] = Field(description="Kind of the geometry.")
    coordinates: Annotated[list[Rings], Field(min_length=1)] = Field(description="The rings of each polygon.")


class AreaRequest(BaseModel):
    """The part of the scene whose results are wanted."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_only_one_of("bbox", "geometry"))

    bbox: (
        Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=4, max_length=4)]
        | (SkipJsonSchema[None])
    ) = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "A rectangle: [west, south, east, north], i.e. the lowest x and y, then the highest. In EPSG:4326, west "
            "may be greater than east: such a rectangle crosses the antimeridian."
        ),
    )
    geometry: PolygonGeometry | MultiPolygonGeometry | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description="A GeoJSON geometry of type Polygon or MultiPolygon, e.g. the `geometry` of a feature.",
    )
    crs: Annotated[str, Field(pattern=r"^[A-Za-z]{2,12}:[0-9A-Za-z]{1,16}$")] = Field(
        default="EPSG:4326",
        description=(
            "CRS of the coordinates, e.g. EPSG:32738. x is always the first number: in EPSG:4326 longitude, as in "
            "GeoJSON."
        ),
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.bbox is None) == (self.geometry is None):
            raise ValueError("exactly one of bbox, geometry is needed")
        return self

    @model_validator(mode="after")
    def _bbox_has_an_extent(self) -> Self:
        if self.bbox is not None:
            west, south, east, north = self.bbox
            around = self.crs.upper() in ("EPSG:4326", "OGC:CRS84") and -180 <= east < west <= 180
            if not south < north or not (west < east or around):
                raise ValueError("bbox must be [west, south, east, north]: the lowest x and y, then the highest")
        return self


class Acquisition(BaseModel):
    """A scene at one date: one file with all bands (`scene`), several files (`files`), or those of a `stac` item."""

    #: Alternative fields, of which exactly one is required, unless `stac` names the files.
    ways: ClassVar[tuple[str, ...]] = ("scene", "files")
    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_ACQUISITION_SCHEMA)

    scene: MediaReference | SkipJsonSchema[None] = Field(
        default=None,
        description=f"The scene: a GeoTIFF or JPEG 2000 file with all bands of the model. {_FORMS}",
        json_schema_extra=_by_range,
    )
    files: Annotated[list[SceneFile], Field(min_length=1, max_length=100)] | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "The scene as several files, e.g. one per band as in Sentinel-2 products. The finest used file defines the "
            "grid of the results; coarser files are resampled to it (bilinear; their pixels must nest in the grid). "
            "CRS and extent must be the same."
        ),
    )
    sidecar: MediaReference | SkipJsonSchema[None] = _media(
        "Product metadata with the radiometry: MTD_MSIL1C.xml or MTD_MSIL2A.xml of Sentinel-2, *_MTL.json of Landsat"
    )
    stac: MediaReference | dict[str, Any] | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_with_links,
        description=(
            "The scene's STAC item with band names, scales, offsets and nodata of its assets: a reference to a JSON "
            "file, or the item itself. Without `scene` and `files`, the assets with the model's bands are fetched; "
            "their addresses may be relative to the item's. Otherwise nothing is fetched: an asset is matched with a "
            f"file by file name, or with a band by band name. {_FORMS}"
        ),
    )
    radiometry: RadiometryRequest | None = Field(
        default=None, description="Radiometry of the scene; overrides all other sources."
    )
    datetime: Time | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "Acquisition time of the scene with a time zone, for the STAC item and for models that use it. Default: "
            "the time in the `sidecar`, else in the `stac` item, else in the file's tags (SENSING_TIME of HLS, or "
            "ACQUISITIONDATETIME)."
        ),
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = [name for name in self.ways if getattr(self, name) is not None]
        if not given and self.stac is not None:
            return self
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(self.ways)} is needed, not {' and '.join(given) or 'none'}")
        return self

    def parts(self) -> tuple[SceneFile, ...]:
        """Return the files of the scene."""
        return (SceneFile(media=self.scene),) if self.scene is not None else tuple(self.files or ())


class SceneRequest(Acquisition):
    """A scene at one date or several: the common input of all raster models."""

    ways: ClassVar[tuple[str, ...]] = ("scene", "files", "dates")
    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_SCENE_SCHEMA)

    dates: Annotated[list[Acquisition], Field(min_length=1, max_length=100)] | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "The scene at several dates, earliest first, for a model with this number of dates. A known time that is "
            "earlier than the one before it is an error. All dates must be on one grid; each can have its own sidecar "
            "or STAC item. `bands` and `radiometry` apply to every date."
        ),
    )
    bands: list[BandName | Annotated[int, Field(ge=1)]] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description=(
            "The scene's bands in the model's order, each by name (band description) or by number from 1, counted "
            "across all files. Default: bands are matched by name, or used in order if the scene has exactly as many "
            "unnamed bands as the model needs."
        ),
    )

    datetime: Time | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "Acquisition time of the scene with a time zone, for the STAC item and for models that use it; with "
            "`dates`, the time of the last date if that has no `datetime` of its own. Default: the time in the "
            "`sidecar`, else in the `stac` item, else in the file's tags (SENSING_TIME of HLS, or ACQUISITIONDATETIME)."
        ),
    )
    location: Location | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "Location of the scene, the same for all tiles; only for models that use a location. Default: the centre "
            "of each tile, from the scene's georeference."
        ),
    )
    area: AreaRequest | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "The part of the scene whose results are wanted. Only the tiles of this part are computed; the results "
            "are those of the whole scene, cut to the pixels of the area, and pixels outside have no data."
        ),
    )

    @model_validator(mode="after")
    def _documents_belong_to_a_date(self) -> Self:
        if self.dates is not None and (self.sidecar is not None or self.stac is not None):
            raise ValueError("sidecar and stac belong inside each date when dates is given")
        return self

    def acquisitions(self) -> tuple[Acquisition, ...]:
        """Return the dates in order; a scene without `dates` is one date."""
        return (self,) if self.dates is None else tuple(self.dates)


class PolygonRequest(BaseModel):
    """Options of the polygon output. Default: all polygons, not simplified."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_pixels: int = Field(default=1, ge=1, description="Smaller polygons are omitted, and their area stays empty.")
    simplify_px: float = Field(
        default=0,
        ge=0,
        le=100,
        description=(
            "Tolerance of simplification in pixels. Each polygon is simplified separately, so narrow gaps and overlaps "
            "between neighbours can occur. `pixels` and `area_m2` keep the values of the class map."
        ),
    )
    geoparquet: bool = Field(
        default=False,
        description=(
            "Also write the polygons as GeoParquet, in the scene's CRS, if the worker has pyarrow; else a note in the "
            "statistics reports it."
        ),
    )


class ChangeRequest(BaseModel):
    """The change since an earlier scene: where classes were lost, gained or kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    before: Acquisition = Field(
        description=(
            "The earlier scene, on the same grid; with `area`, the same pixels within the area suffice. `bands` apply "
            "to both scenes, and so does `radiometry` unless the earlier scene has its own."
        )
    )
    of: Annotated[list[str], Field(min_length=1, max_length=250)] = Field(
        description="Names of the classes whose change is wanted, e.g. [`water`]. Several count as one."
    )
    name: Annotated[str, Field(min_length=1, max_length=100)] | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description="What the classes are called in the results: `water` gives `water gained`. Default: their names.",
    )
    ignore: Annotated[list[str], Field(max_length=250)] = Field(
        default=[],
        description=(
            "Names of classes that hide the ground, e.g. [`cloud`, `cloud shadow`]. A pixel with such a class at "
            "either date has no data in the change."
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
            "Outputs, all from one forward pass. classes: a COG of class ids; probability: a COG with one band per "
            "class, in steps of 1/254; probability_float32: the same, unrounded; confidence: a COG of the largest "
            "probability; polygons: FlatGeobuf in the scene's CRS and GeoJSON; preview: a PNG of at most 1024 px; "
            "quicklook: the scene itself in its colours, as such a PNG; stats: pixels, area and percentage of each "
            "class as JSON; item: STAC items of the outputs (if the acquisition time is known) and the model."
        ),
    )

    polygons: PolygonRequest = Field(default=PolygonRequest(), description="Options of the output `polygons`.")
    change: ChangeRequest | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=_without_default,
        description=(
            "Also compute the change since an earlier scene, for models of one date. Adds before-classes.tif and "
            "change.tif (0 = in neither, 1 = lost, 2 = gained, 3 = at both dates, 255 = no data), and change.png, "
            "change.fgb and change.geojson if `preview` and `polygons` are among the outputs; `stats` has the areas."
        ),
    )


class RegressionRequest(SceneRequest):
    """A scene for which quantities are estimated."""

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
            "Outputs, all from one forward pass. values: a COG of float32 with one band per quantity; preview: a PNG "
            "of the first quantity, at most 1024 px; stats: percentiles, mean and range of each quantity as JSON; "
            "item: STAC items of the outputs (if the acquisition time is known) and the model."
        ),
    )
