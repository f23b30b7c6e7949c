"""The `input` of a raster segmentation job. Its JSON Schema is the API's: neither numpy nor GDAL is imported here."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.models import MediaReference

OutputName = Literal["classes", "probability", "preview", "stats"]
ALL_OUTPUTS: tuple[OutputName, ...] = ("classes", "probability", "preview", "stats")


class RadiometryRequest(BaseModel):
    """How the file's numbers become what the model was trained on: `value = number * scale + offset`.

    What is left out comes from the file's own scale and offset tags, then from the model's defaults. What was used is
    recorded in `stats.json`.
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


class SegmentationRequest(BaseModel):
    """A scene to segment."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra={"title": "Segmentation of a scene"})

    scene: MediaReference = Field(
        description=(
            "The scene, a GeoTIFF or JPEG 2000 file with all the model's bands: media://<upload>, s3://bucket/key "
            "(allowed buckets) or https://... (allowed hosts)"
        )
    )
    outputs: tuple[OutputName, ...] = Field(
        default=ALL_OUTPUTS,
        min_length=1,
        json_schema_extra={"uniqueItems": True},
        description=(
            "What to make of the one forward pass. classes: a COG of class ids; probability: a COG with one band per "
            "class; preview: a PNG of at most 1024 px; stats: pixels, area and share of each class as JSON."
        ),
    )
    radiometry: RadiometryRequest | None = Field(
        default=None, description="How the file's numbers become reflectance, where the file does not say it itself."
    )
    bands: list[Annotated[str, Field(min_length=1, max_length=200)] | Annotated[int, Field(ge=1)]] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description=(
            "The scene's bands in the model's order, each by its name (band description) or its number from 1. "
            "Without it, bands are found by their names, or taken in order when the scene has exactly as many "
            "unnamed bands as the model needs."
        ),
    )

    @field_validator("outputs")
    @classmethod
    def _each_once(cls, outputs: tuple[OutputName, ...]) -> tuple[OutputName, ...]:
        if len(set(outputs)) != len(outputs):
            raise ValueError("each output may be named once")
        return outputs
