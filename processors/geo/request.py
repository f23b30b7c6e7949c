"""The `input` of a raster job. The API uses its JSON Schema, so this module imports neither numpy nor GDAL.

A scene is one file, or several files with one or more bands each, a mosaic of several scenes, or several dates of these
(`scene_request`). `SceneRequest` is the common base of all raster requests.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from penstock.models import Record
from penstock.processors.geo.area_request import AnyCrs, AreaRequest
from penstock.processors.geo.scene_request import (
    ACQUISITION_SCHEMA,
    OF_A_SCENE,
    Acquisition,
    BandName,
    check_without,
)
from penstock.processors.geo.schema_marks import (
    absent,
    dates_of_a_series,
    item_needs,
    only_one_of,
    optional,
    with_choice,
)
from penstock.processors.geo.zones_request import ZonesField
from penstock.times import Time

OutputName = Literal[
    "classes", "probability", "probability_float32", "confidence", "polygons", "preview", "quicklook", "change",
    "stats", "item",
]  # fmt: skip
DEFAULT_OUTPUTS: tuple[OutputName, ...] = ("classes", "preview", "stats")

ValueOutputName = Literal["values", "preview", "stats", "item"]
DEFAULT_VALUE_OUTPUTS: tuple[ValueOutputName, ...] = ("values", "preview", "stats")

ObjectOutputName = Literal["objects", "preview", "stats"]
VectorOutputName = Literal["embeddings", "geoparquet", "stats"]

NameT = TypeVar("NameT")
_CHANGE_NEEDED = "`change` needs the field `change`"
#: Fields of one scene, or of two.
_NOT_IN_A_SERIES = ("change", "datetime")


def _each_once(names: tuple[NameT, ...]) -> tuple[NameT, ...]:
    if len(set(names)) != len(names):
        raise ValueError("each output may appear only once")
    return names


_SCENE_SCHEMA = only_one_of("scene", "files", "mosaic", "dates", apart={"mosaic": OF_A_SCENE, "dates": OF_A_SCENE})
_SCENE_SCHEMA["anyOf"].append({"required": ["stac"]})
_SCENE_SCHEMA["dependentRequired"] = ACQUISITION_SCHEMA["dependentRequired"]


class Location(Record):
    """A location on the earth (WGS 84)."""

    lat: float = Field(ge=-90, le=90, allow_inf_nan=False, description="Latitude in degrees, positive in the north.")
    lon: float = Field(ge=-180, le=180, allow_inf_nan=False, description="Longitude in degrees, positive in the east.")


class ModalityScene(Acquisition):
    """The scene of a further sensor."""

    name: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        description="Name of the modality in the model's record, such as `S1GRD` or `DEM`."
    )


class SceneRequest(Acquisition):
    """A scene at one date or several: the common input of all raster models."""

    ways: ClassVar[tuple[str, ...]] = ("scene", "files", "mosaic", "dates")
    model_config = ConfigDict(json_schema_extra=_SCENE_SCHEMA)

    dates: Annotated[list[Acquisition], Field(min_length=1, max_length=100)] | SkipJsonSchema[None] = optional(
        "The scene at several dates, earliest first, for a model with this number of dates. A known time that is "
        "earlier than the one before it is an error. All dates must be on one grid; each can have its own sidecar "
        "or STAC item. `bands` and `radiometry` apply to every date. Of a `series`: up to 100, in any order.",
        mark=dates_of_a_series,
    )
    bands: list[BandName | Annotated[int, Field(ge=1)]] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description=(
            "The scene's bands in the model's order, each by name (band description or variable) or by number from 1, "
            "counted across all files. Default: bands are matched by name, or used in order if the scene has exactly "
            "as many unnamed bands as the model needs."
        ),
    )

    datetime: Time | SkipJsonSchema[None] = optional(
        "Acquisition time of the scene with a time zone, for the STAC item and for models that use it; with "
        "`dates`, the time of the last date if that has no `datetime` of its own. Default: the time in the "
        "`sidecar`, else in the `stac` item, else in the file's tags (SENSING_TIME of HLS, or ACQUISITIONDATETIME)."
    )
    location: Location | SkipJsonSchema[None] = optional(
        "Location of the scene, the same for all tiles; only for models that use a location. Default: the centre "
        "of each tile, from the scene's georeference."
    )
    modalities: Annotated[list[ModalityScene], Field(max_length=10)] | SkipJsonSchema[None] = optional(
        "The scenes of the model's further sensors, for models that have some, each with its own radiometry. They are "
        "brought onto the grid of the scene: pixels of the same grid as they are, coarser ones that nest in it by "
        "bilinear interpolation, all others by nearest neighbour. A pixel that any of them lacks has no data."
    )
    area: AreaRequest | SkipJsonSchema[None] = optional(
        "The part of the scene whose results are wanted. Only the tiles of this part are computed; the results "
        "are those of the whole scene, cut to the pixels of the area, and pixels outside have no data."
    )

    zones: ZonesField | SkipJsonSchema[None] = optional(
        "Named polygons, each of which gets its own statistics in `zones` of the result, and a row of zones.csv for "
        "the output `stats`: a reference to a GeoJSON file, or the FeatureCollection itself. A pixel counts by the "
        "share of it that the zone covers."
    )
    zone_name: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        default="name",
        description=(
            "Property of the features of `zones` that has the names; in place of a missing `name`, the feature's id "
            "counts. Every zone needs a name of its own."
        ),
    )

    @model_validator(mode="after")
    def _documents_belong_to_a_date(self) -> Self:
        if self.dates is not None:
            check_without(self, OF_A_SCENE, "belong inside each date when dates is given")
        return self

    @property
    def passes(self) -> int:
        """Number of times that each tile is sent."""
        return 1

    def acquisitions(self) -> tuple[Acquisition, ...]:
        """Return the dates in order; a scene without `dates` is one date."""
        return (self,) if self.dates is None else tuple(self.dates)


class PolygonRequest(Record):
    """Options of the polygon output. Default: all polygons, not simplified."""

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


class ChangeRequest(Record):
    """The change since an earlier scene: where classes were lost, gained or kept."""

    before: Acquisition = Field(
        description=(
            "The earlier scene, on the same grid; with `area`, the same pixels within the area suffice. `bands` apply "
            "to both scenes, and so does `radiometry` unless the earlier scene has its own."
        )
    )
    of: Annotated[list[str], Field(min_length=1, max_length=250)] = Field(
        description="Names of the classes whose change is wanted, e.g. [`water`]. Several count as one."
    )
    name: Annotated[str, Field(min_length=1, max_length=100)] | SkipJsonSchema[None] = optional(
        "What the classes are called in the results: `water` gives `water gained`. Default: their names."
    )
    ignore: Annotated[list[str], Field(max_length=250)] = Field(
        default=[],
        description=(
            "Names of classes that hide the ground, e.g. [`cloud`, `cloud shadow`]. A pixel with such a class at "
            "either date has no data in the change. If the field is left out, these classes count like all others "
            "that `of` does not name, and a note lists them; [] says that no class hides the ground."
        ),
    )


class SeriesRequest(Record):
    """The sums over several dates: since when and how often classes were seen."""

    of: Annotated[list[str], Field(min_length=1, max_length=250)] = Field(
        description="Names of the classes that are looked for, e.g. [`water`]. Several count as one."
    )
    name: Annotated[str, Field(min_length=1, max_length=100)] | SkipJsonSchema[None] = optional(
        "What the classes are called in the results. Default: their names."
    )
    ignore: Annotated[list[str], Field(max_length=250)] = Field(
        default=[],
        description=(
            "Names of classes that hide the ground, e.g. [`cloud`, `cloud shadow`]. A date is clear at a pixel if its "
            "class is none of these. If the field is left out, these classes count like all others that `of` does not "
            "name, and a note lists them; [] says that no class hides the ground."
        ),
    )


class MapRequest(SceneRequest):
    """A scene of which each pixel gets an answer."""

    uncertainty: Literal["flips"] | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=with_choice,
        description=(
            "Also tell where the answer is uncertain. flips: each tile is sent four times: as it is, mirrored left to "
            "right, top to bottom, and both, which takes four times as long. uncertainty.tif is the standard deviation "
            "of the four answers, turned back: of the probability of each pixel's class (value / 508; 255 = no data), "
            "or of each quantity; the statistics sum it up. All other results are those of the job without this field. "
            "Of a `change`, for the later scene."
        ),
    )

    @property
    def passes(self) -> int:
        """Number of times that each tile is sent."""
        return 4 if self.uncertainty else 1


class SegmentationRequest(MapRequest):
    """A scene to segment."""

    model_config = ConfigDict(
        json_schema_extra=_SCENE_SCHEMA
        | {"title": "Segmentation of a scene"}
        | item_needs("outputs", "change", "change", _CHANGE_NEEDED)
        | {"dependentRequired": {**_SCENE_SCHEMA["dependentRequired"], "series": ["dates"]}}
        | {"dependentSchemas": _SCENE_SCHEMA["dependentSchemas"] | absent("series", *_NOT_IN_A_SERIES)}
    )

    change: ChangeRequest | SkipJsonSchema[None] = optional(
        "Also compute the change since an earlier scene, for models of one date. change.tif (0 = in neither, 1 = "
        "lost, 2 = gained, 3 = at both dates, 255 = no data) is made for the outputs `change` and `classes`, "
        "before-classes.tif for `classes`, change.png for `preview`, and change.fgb and change.geojson for "
        "`polygons`; `stats` has the areas."
    )
    series: SeriesRequest | SkipJsonSchema[None] = optional(
        "Map each of `dates` by itself, for models of one date, and sum the maps up. The dates are put in the order "
        "of time if all times are known, and one that cannot be used is named in `stats` and left out. The outputs "
        "are made for each date: 01-2020-01-27-classes.tif and so on. Besides, first-seen.tif (number of the first "
        "date with the classes of `of`, 0 = none), frequency.tif (share of the clear dates that have them), "
        "extent.tif (1 = on any date), clear.tif (number of clear dates), extent.png for `preview`, extent.fgb and "
        "extent.geojson for `polygons`, and for `stats` series.csv with the area of each class on each date."
    )
    outputs: Annotated[tuple[OutputName, ...], AfterValidator(_each_once)] = Field(
        default=DEFAULT_OUTPUTS,
        min_length=1,
        json_schema_extra={"uniqueItems": True},
        description=(
            "Outputs, all from one forward pass. classes: a COG of class ids; probability: a COG with one band per "
            "class, in steps of 1/254; probability_float32: the same, unrounded; confidence: a COG of the largest "
            "probability; polygons: FlatGeobuf in the scene's CRS and GeoJSON; preview: a PNG of at most 1024 px; "
            "quicklook: the scene itself in its colours, as such a PNG; change: the COG of the field `change`, "
            "which it needs (`classes` gives it too); stats: pixels, area and percentage of each class as JSON; item: "
            "STAC items of the outputs (if the acquisition time is known) and the model."
        ),
    )

    polygons: PolygonRequest = Field(default=PolygonRequest(), description="Options of the output `polygons`.")

    @model_validator(mode="after")
    def _series_has_dates(self) -> Self:
        if self.series is not None:
            if self.dates is None:
                raise ValueError("series needs dates")
            check_without(self, _NOT_IN_A_SERIES, "cannot be given with series")
        return self

    @field_validator("outputs")
    @classmethod
    def _change_has_its_field(cls, names: tuple[OutputName, ...], info: ValidationInfo) -> tuple[OutputName, ...]:
        # `change` is declared before `outputs`; it is absent from the data if it is invalid itself.
        if "change" in names and info.data.get("change", names) is None:
            raise ValueError(_CHANGE_NEEDED)
        return names


class RegressionRequest(MapRequest):
    """A scene for which quantities are estimated."""

    model_config = ConfigDict(json_schema_extra=_SCENE_SCHEMA | {"title": "Quantities of a scene"})

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


class ObjectRequest(SceneRequest):
    """A scene in which objects are searched, however they are described."""

    model_config = ConfigDict(json_schema_extra=_SCENE_SCHEMA | {"title": "Objects in a scene"})

    iou: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description=(
            "Boxes of one class whose intersection is this share of their union or more are one object; the best "
            "score stays."
        ),
    )
    crs: AnyCrs = Field(
        default="wgs84",
        description=(
            "CRS of objects.geojson: wgs84 or EPSG:4326, longitude first, as RFC 7946 asks; scene, or another code "
            "such as EPSG:32738, named in the member `crs` that GDAL and QGIS read."
        ),
    )
    outputs: Annotated[tuple[ObjectOutputName, ...], AfterValidator(_each_once)] = Field(
        default=("objects", "preview", "stats"),
        min_length=1,
        json_schema_extra={"uniqueItems": True},
        description=(
            "Outputs. objects: objects.geojson, a polygon for each object with class, score and pixels; preview: a "
            "PNG of the scene with boxes, at most 1024 px; stats: the number of objects of each class as JSON."
        ),
    )


class DetectionRequest(ObjectRequest):
    """A scene in which objects are searched."""

    threshold: float = Field(default=0.5, ge=0, le=1, description="Objects need a score above this.")


class EmbeddingRequest(SceneRequest):
    """A scene that becomes vectors."""

    model_config = ConfigDict(json_schema_extra=_SCENE_SCHEMA | {"title": "Embeddings of a scene"})

    outputs: Annotated[tuple[VectorOutputName, ...], AfterValidator(_each_once)] = Field(
        default=("embeddings", "stats"),
        min_length=1,
        json_schema_extra={"uniqueItems": True},
        description=(
            "Outputs, all from one forward pass. embeddings: a COG of float32 with one band per dimension and one "
            "pixel per vector; geoparquet: embeddings.parquet, a row per vector with its square and the share of its "
            "pixels with data, if the worker has pyarrow; stats: the size of the grid as JSON."
        ),
    )
