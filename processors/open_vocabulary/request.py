"""The `input` of jobs that describe objects by words, points and boxes."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, StringConstraints, model_validator
from pydantic.json_schema import SkipJsonSchema

from penstock.media_types import RASTER_FILES
from penstock.models import MediaReference, Record
from penstock.processors.geo.area_request import AnyCrs, PolygonGeometry, Position
from penstock.processors.geo.request import ObjectRequest
from penstock.processors.geo.schema_marks import optional
from penstock.processors.vision.request import BoxOutput, SingleImageRequest

#: Words without a full stop, which ends a phrase for Grounding DINO, and without control characters.
_PHRASE = r"^[^.\x00-\x1f\x7f]*[^.\s\x00-\x1f\x7f][^.\x00-\x1f\x7f]*$"
Phrase = Annotated[str, StringConstraints(max_length=1000, pattern=_PHRASE), Field(examples=["a red car"])]
Number = Annotated[float, Field(allow_inf_nan=False)]
Point = Annotated[list[Number], Field(min_length=2, max_length=2)]
Box = Annotated[list[Number], Field(min_length=4, max_length=4)]
MaskOutput = Literal["mask", "overlay", "masks", "objects"]
SceneMaskOutput = Literal["mask", "polygons"]


class Words(BaseModel):
    """Words for the objects to find."""

    labels: list[Phrase] = Field(
        min_length=1, max_length=1000, description="The objects to find, such as `a red car`; without full stops."
    )
    threshold: float | SkipJsonSchema[None] = optional(
        "Objects need a score above this; default: that of transformers for the model's type, 0.1 or 0.25.",
        ge=0,
        le=1,
    )
    text_threshold: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="Grounding DINO only: an object's label has the words of the labels that score above this.",
    )


class WordDetectionRequest(Words, SingleImageRequest):
    """An image and words for the objects to find in it."""

    outputs: tuple[BoxOutput, ...] = Field(
        default=("boxes", "annotated"),
        min_length=1,
        description="boxes: boxes.json, a copy of the result; annotated: annotated.png, the image with boxes.",
    )


class SceneWordsRequest(Words, ObjectRequest):
    """A scene and words for the objects to find in it."""


class PointedObject(Record):
    """An object by points, a box, or both. x comes first."""

    points: list[Point] = Field(default=[], max_length=100, description="Points [x, y] on the object or beside it.")
    labels: list[Literal[0, 1]] = Field(
        default=[], max_length=100, description="1 for each point on the object, 0 beside it; default: all on it."
    )
    box: Box | SkipJsonSchema[None] = optional("A box around the object: [x, y, x, y], the lowest x and y first.")

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if not self.points and self.box is None:
            raise ValueError("an object needs points or a box")
        if self.labels and len(self.labels) != len(self.points):
            raise ValueError("there is one label for each point")
        if self.box is not None and not (self.box[0] < self.box[2] and self.box[1] < self.box[3]):
            raise ValueError("a box is [x, y, x, y], the lowest x and y first")
        return self


Objects = Annotated[list[PointedObject], Field(min_length=1, max_length=100)]


class MaskRequest(SingleImageRequest):
    """An image and objects to outline in it."""

    objects: Objects = Field(
        description="The objects, by points and boxes in pixels from the upper left corner of the upright image."
    )
    keep: Literal["best", "all"] = Field(
        default="best",
        description="Of the masks that the model makes of an object: best: the one with the highest score; all.",
    )
    outputs: tuple[MaskOutput, ...] = Field(
        default=("mask", "overlay", "objects"),
        min_length=1,
        description="mask: mask.png, the ids of the masks with a palette, 0 without a mask; overlay: overlay.png, the "
        "image in their colours, with the points and boxes; masks: mask-1.png, mask-2.png, ..., each mask in white, "
        "whole where others lie above it; objects: masks.json, a copy of the result with each mask's run lengths in "
        "COCO's form.",
    )


class PointGeometry(Record):
    """A GeoJSON point."""

    type: Literal["Point"] = Field(description="Kind of the geometry.")
    coordinates: Position = Field(description="[x, y].")


class MultiPointGeometry(Record):
    """GeoJSON points."""

    type: Literal["MultiPoint"] = Field(description="Kind of the geometry.")
    coordinates: Annotated[list[Position], Field(min_length=1, max_length=100)] = Field(description="Lists of [x, y].")


class SceneObject(PointedObject):
    """An object on a scene: by points and a box, or by a GeoJSON geometry."""

    geometry: (
        Annotated[PointGeometry | MultiPointGeometry | PolygonGeometry, Field(discriminator="type")]
        | SkipJsonSchema[None]
    ) = optional(
        "A GeoJSON geometry in the place of points and box: a Point, a MultiPoint, or a Polygon, whose "
        "bounds are the box."
    )

    def plain(self) -> PointedObject:
        """Return the object by points and a box; raise `ValueError` if it has both these and a geometry, or none."""
        if self.geometry is None:
            return PointedObject(points=self.points, labels=self.labels, box=self.box)
        if self.points or self.box is not None:
            raise ValueError("an object has a geometry, or points and a box")
        match self.geometry:
            case PointGeometry(coordinates=place):
                return PointedObject(points=[place[:2]], labels=self.labels)
            case MultiPointGeometry(coordinates=places):
                return PointedObject(points=[place[:2] for place in places], labels=self.labels)
            case PolygonGeometry(coordinates=[outside, *_]):
                x, y = zip(*(place[:2] for place in outside), strict=True)
                return PointedObject(labels=self.labels, box=[min(x), min(y), max(x), max(y)])
        raise ValueError("a polygon has an outer ring")

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        self.plain()
        return self


class SceneMaskRequest(Record):
    """A scene and objects to outline in it."""

    scene: MediaReference = Field(
        description="The scene: a GeoTIFF or JPEG 2000 file with a georeference",
        json_schema_extra=RASTER_FILES,
    )
    objects: Annotated[list[SceneObject], Field(min_length=1, max_length=100)] = Field(
        description="The objects, in coordinates of `crs`."
    )
    crs: AnyCrs = Field(
        default="EPSG:4326",
        description="CRS of the coordinates: a code such as EPSG:32738; wgs84, which is EPSG:4326; or scene, that of "
        "the scene. x comes first: in EPSG:4326 longitude, as in GeoJSON.",
    )
    window_px: int | SkipJsonSchema[None] = optional(
        "Side of the square of the scene that the network sees, centred on the objects; default: the side "
        "of the network's input, or what the objects need if that is more.",
        ge=16,
        le=8192,
    )
    bands: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(1, 2, 3),
        min_length=3,
        max_length=3,
        description="Numbers of the bands that are shown as red, green and blue, from 1.",
    )
    range: Annotated[list[Number], Field(min_length=2, max_length=2)] | SkipJsonSchema[None] = optional(
        "The file's numbers that are shown as black and white; default: 0 and 255 for bytes, else the 2nd "
        "and the 98th percentile of the window."
    )
    outputs: tuple[SceneMaskOutput, ...] = Field(
        default=("mask", "polygons"),
        min_length=1,
        description="mask: mask.tif, the objects' numbers on the scene's grid; polygons: masks.geojson, a polygon for "
        "each object in longitude and latitude.",
    )

    @model_validator(mode="after")
    def _black_is_below_white(self) -> Self:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError("`range` is [black, white], the lower number first")
        return self
