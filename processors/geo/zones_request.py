"""The `zones` of a raster job: named polygons, each of which gets its own statistics.

A document of thousands of polygons is large, so the API checks its outline only, and the worker the rest.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from penstock.models import MediaReference, Record
from penstock.processors.geo.area_request import AnyPolygon, CrsCode, geojson_crs

#: Zones of a job.
MAX_ZONES = 10_000


def _code(given: Any) -> Any:
    return "EPSG:4326" if given is None else geojson_crs(given)


_Crs = Annotated[CrsCode, BeforeValidator(_code), WithJsonSchema({"type": ["string", "object", "null"]})]


class ZonesDocument(Record):
    """A GeoJSON FeatureCollection of polygons. Other members than these are ignored."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["FeatureCollection"] = Field(description="Kind of the document.")
    features: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_ZONES)] = Field(
        description="The zones: features with a Polygon or MultiPolygon each, and a name. Zones may overlap."
    )
    crs: _Crs = Field(
        default="EPSG:4326",
        description=(
            "CRS of the coordinates: a code such as EPSG:32738, or the member `crs` of GeoJSON before RFC 7946. x is "
            "always the first number."
        ),
    )


class ZoneFeature(Record):
    """One feature of the document."""

    model_config = ConfigDict(extra="ignore")

    geometry: AnyPolygon
    properties: dict[str, Any] | None = None
    id: Any = None

    def name(self, field: str) -> str | None:
        """Return the property `field`, or the feature's id in place of a property `name`; None without a name."""
        given = (self.properties or {}).get(field)
        if given is None and field == "name":
            given = self.id
        text = " ".join(str(given).split()) if isinstance(given, str | int | float) else ""
        return text or None


ZonesField = MediaReference | ZonesDocument
