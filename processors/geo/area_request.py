"""The `area` of a raster job: a rectangle or a polygon."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from penstock.processors.geo.schema_marks import only_one_of, without_default

_CODE = r"^[A-Za-z]{2,12}:[0-9A-Za-z]{1,16}$"


def _code(given: Any) -> Any:
    if not isinstance(given, str) or not re.match(_CODE, given):
        raise PydanticCustomError("crs", "must be a code such as EPSG:32738")
    return given


#: Code of an authority: PROJ strings and WKT can name files.
CrsCode = Annotated[str, Field(pattern=_CODE, examples=["EPSG:32738"]), BeforeValidator(_code)]
#: The same, WGS 84 with longitude first, or the scene's own CRS.
AnyCrs = Literal["wgs84", "scene"] | CrsCode
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

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=only_one_of("bbox", "geometry"))

    bbox: (
        Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=4, max_length=4)]
        | (SkipJsonSchema[None])
    ) = Field(
        default=None,
        json_schema_extra=without_default,
        description=(
            "A rectangle: [west, south, east, north], i.e. the lowest x and y, then the highest. In EPSG:4326, west "
            "may be greater than east: such a rectangle crosses the antimeridian."
        ),
    )
    geometry: Annotated[PolygonGeometry | MultiPolygonGeometry, Field(discriminator="type")] | SkipJsonSchema[None] = (
        Field(
            default=None,
            json_schema_extra=without_default,
            description="A GeoJSON geometry of type Polygon or MultiPolygon, e.g. the `geometry` of a feature.",
        )
    )
    crs: CrsCode = Field(
        default="EPSG:4326",
        description=(
            "CRS of the coordinates, e.g. EPSG:32738. x is always the first number: in EPSG:4326 longitude, as in "
            "GeoJSON."
        ),
    )

    @field_validator("geometry", mode="before")
    @classmethod
    def _is_a_polygon(cls, given: Any) -> Any:
        kind = given.get("type") if isinstance(given, Mapping) else None
        if kind == "Feature":
            raise PydanticCustomError("geometry", "must be a geometry: give the feature's `geometry`")
        if isinstance(kind, str) and kind not in ("Polygon", "MultiPolygon"):
            raise PydanticCustomError("geometry", "must be of type Polygon or MultiPolygon")
        return given

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
