"""The `area` of a raster job: a rectangle or a polygon."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from penstock.models import Record
from penstock.processors.geo.schema_marks import only_one_of, optional

_CODE = r"^[A-Za-z]{2,12}:[0-9A-Za-z]{1,16}$"


def _code(given: Any) -> Any:
    if not isinstance(given, str) or not re.match(_CODE, given):
        raise PydanticCustomError("crs", "must be a code such as EPSG:32738")
    return given


#: Code of an authority: PROJ strings and WKT can name files.
CrsCode = Annotated[str, Field(pattern=_CODE, examples=["EPSG:32738"]), BeforeValidator(_code)]
#: The same, WGS 84 with longitude first, or the scene's own CRS.
AnyCrs = Literal["wgs84", "scene"] | CrsCode


def geojson_crs(given: Any) -> Any:
    """Return the code of a GeoJSON `crs`: {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32738"}}."""
    match given:
        case {"properties": {"name": str(name)}}:
            urn = _URN.fullmatch(name)
            code = f"{urn['authority']}:{urn['code']}" if urn else name
            return "EPSG:4326" if code.upper() == "OGC:CRS84" else code
        case _:
            return given


#: A ring of GeoJSON: positions of two numbers, or three with a height.
Position = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=2, max_length=3)]
Rings = Annotated[list[Annotated[list[Position], Field(min_length=4, max_length=100_000)]], Field(min_length=1)]


class PolygonGeometry(Record):
    """A GeoJSON polygon: its outer ring, then its holes. The last position of a ring repeats the first."""

    type: Literal["Polygon"] = Field(description="Kind of the geometry.")
    coordinates: Rings = Field(description="The outer ring, then the holes: lists of [x, y].")


class MultiPolygonGeometry(Record):
    """A GeoJSON multipolygon."""

    type: Literal["MultiPolygon"] = Field(description="Kind of the geometry.")
    coordinates: Annotated[list[Rings], Field(min_length=1)] = Field(description="The rings of each polygon.")


#: Kinds of GeoJSON that stand for an area as they are.
_GEOJSON: Final = ("Feature", "FeatureCollection", "Polygon", "MultiPolygon")
#: `crs` of GeoJSON before RFC 7946: `urn:ogc:def:crs:EPSG::32738`, `urn:ogc:def:crs:OGC:1.3:CRS84`.
_URN: Final = re.compile(r"urn:ogc:def:crs:(?P<authority>[A-Za-z]+):[^:]*:(?P<code>[0-9A-Za-z]+)")

_POLYGONS: Final = ("Polygon", "MultiPolygon")


def _a_polygon(given: Any) -> Any:
    kind = given.get("type") if isinstance(given, Mapping) else None
    if given is None:
        raise PydanticCustomError("geometry", "has no geometry: leave the feature out, or give it a polygon")
    if kind == "Feature":
        raise PydanticCustomError("geometry", "must be a geometry: give the feature's `geometry`")
    if isinstance(kind, str) and kind not in _POLYGONS:
        raise PydanticCustomError("geometry", "must be of type Polygon or MultiPolygon")
    return given


AnyPolygon = Annotated[PolygonGeometry | MultiPolygonGeometry, Field(discriminator="type"), BeforeValidator(_a_polygon)]


def _schema(schema: dict[str, Any]) -> None:
    """Allow GeoJSON beside an area's own fields."""
    fields = schema["properties"]
    own: dict[str, Any] = {"properties": dict(fields), "additionalProperties": False, **only_one_of("bbox", "geometry")}
    del fields["features"], own["properties"]["features"], schema["additionalProperties"]
    fields["crs"] = {"description": fields["crs"]["description"]}
    kinds = {"type": {"enum": list(_POLYGONS)}}
    geometry = {"type": "object", "properties": kinds, "required": ["type", "coordinates"]}
    feature = {"type": "object", "properties": {"geometry": geometry}, "required": ["geometry"]}
    schema["if"] = {"properties": {"type": {"enum": list(_GEOJSON)}}, "required": ["type"]}
    schema["then"] = {
        "if": {"properties": {"type": {"const": "FeatureCollection"}}},
        "then": {
            "properties": {"features": {"type": "array", "minItems": 1, "maxItems": 10_000, "items": feature}},
            "required": ["features"],
        },
        "else": {
            "if": {"properties": {"type": {"const": "Feature"}}},
            "then": {"required": ["geometry"]},
            "else": {"properties": {"coordinates": {"type": "array"}}, "required": ["coordinates"]},
        },
    }
    schema["else"] = own


class AreaRequest(Record):
    """The part of the scene whose results are wanted: these fields, or GeoJSON: a polygon or features."""

    model_config = ConfigDict(json_schema_extra=_schema)

    bbox: (
        Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=4, max_length=6)]
        | (SkipJsonSchema[None])
    ) = optional(
        "A rectangle: [west, south, east, north], i.e. the lowest x and y, then the highest; of six numbers, as in "
        "GeoJSON, the third and the last are heights. In EPSG:4326, west may be greater than east: such a "
        "rectangle crosses the antimeridian."
    )
    geometry: AnyPolygon | SkipJsonSchema[None] = optional(
        "A GeoJSON geometry of type Polygon or MultiPolygon, e.g. the `geometry` of a feature."
    )
    features: Annotated[list[AnyPolygon], Field(min_length=1, max_length=10_000)] | SkipJsonSchema[None] = Field(
        default=None, description="The geometries of a FeatureCollection."
    )
    crs: CrsCode = Field(
        default="EPSG:4326",
        description=(
            "CRS of the coordinates, e.g. EPSG:32738. x is always the first number: in EPSG:4326 longitude, as in "
            "GeoJSON."
        ),
    )

    @property
    def geometries(self) -> Sequence[PolygonGeometry | MultiPolygonGeometry]:
        """The polygons of the area; empty for a rectangle."""
        return (self.geometry,) if self.geometry is not None else self.features or ()

    @model_validator(mode="before")
    @classmethod
    def _from_geojson(cls, given: Any) -> Any:
        """Return GeoJSON as the fields of an area."""
        if not isinstance(given, Mapping) or given.get("type") not in _GEOJSON:
            return given
        crs = {} if given.get("crs") is None else {"crs": geojson_crs(given["crs"])}
        if given["type"] in _POLYGONS:
            return {"geometry": {name: given.get(name) for name in ("type", "coordinates")}, **crs}
        if given["type"] == "Feature":
            return {"geometry": _a_polygon(given.get("geometry")), **crs}
        features = given.get("features")
        listed = features if isinstance(features, list) else []
        return {"features": [one.get("geometry") if isinstance(one, Mapping) else one for one in listed], **crs}

    @field_validator("bbox")
    @classmethod
    def _without_heights(cls, given: list[float] | None) -> list[float] | None:
        if given is not None and len(given) == 5:
            raise PydanticCustomError("bbox", "must have four numbers, or six with heights")
        return given if given is None or len(given) == 4 else [*given[:2], *given[3:5]]

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(way is not None for way in (self.bbox, self.geometry, self.features)) != 1:
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
