"""The `options` table of a raster segmentation model in `models.toml`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from penstock.errors import ConfigError
from penstock.models import Model

NODATA = 255  #: of every raster we write: class ids and probabilities stay below


class Options(BaseModel):
    """A frozen record of the catalogue; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Band(Options):
    """A band the model needs. Mean and standard deviation are those of its training, in the model's unit."""

    name: str
    #: Other names by which a scene may call it, best first; case, spaces, `-`, `_` and leading zeros do not matter.
    synonyms: tuple[str, ...] = ()
    mean: float
    std: float = Field(gt=0)


class DefaultRadiometry(Options):
    """What a scene's numbers mean when neither the request nor the file says it, for these data types only."""

    dtypes: tuple[str, ...]
    scale: float = Field(default=1.0, gt=0)
    offset: float = 0.0
    nodata: float | None = None


class ClassLabel(Options):
    """A class of the model. Ids count from 0 in the order of the network's channels."""

    id: int = Field(ge=0, lt=NODATA)
    name: str
    colour: Annotated[str, StringConstraints(pattern=r"^#[0-9a-fA-F]{6}$")]

    @property
    def rgb(self) -> tuple[int, int, int]:
        """The colour as three numbers from 0 to 255."""
        red, green, blue = bytes.fromhex(self.colour[1:])
        return red, green, blue


class SegmentationOptions(Options):
    """How scenes are cut for this model and what its bands and classes are."""

    #: Read by the runner: which network the weights belong to.
    network: str | None = None
    bands: tuple[Band, ...] = Field(min_length=1)
    classes: tuple[ClassLabel, ...] = Field(min_length=2)
    default_radiometry: tuple[DefaultRadiometry, ...] = ()
    #: A band whose mean over a tile is above this cannot have been scaled rightly, and the job fails.
    plausible_mean: float | None = Field(default=None, gt=0)
    #: The network's output at a pixel depends on this many pixels around it at most.
    halo_px: int = Field(ge=0)
    #: The network takes sides that are multiples of this.
    stride_px: int = Field(default=1, gt=0)
    #: The largest side of a tile without its halo.
    tile_px: int = Field(default=512, gt=0)
    #: How much of a scene's rows may be held; wider scenes are cut into panels.
    strip_bytes: int = Field(default=256 * 2**20, gt=0)

    @field_validator("classes")
    @classmethod
    def _ids_count_from_zero(cls, classes: tuple[ClassLabel, ...]) -> tuple[ClassLabel, ...]:
        if [label.id for label in classes] != list(range(len(classes))):
            raise ValueError("class ids must count from 0 in the order of the network's channels")
        return classes

    @model_validator(mode="after")
    def _on_the_grid_of_the_stride(self) -> Self:
        if self.halo_px % self.stride_px or self.tile_px % self.stride_px:
            raise ValueError("halo_px and tile_px must be multiples of stride_px")
        return self


def read_options(model: Model) -> SegmentationOptions:
    """Return the model's options; raise `ConfigError` naming the model and each wrong field."""
    try:
        return SegmentationOptions.model_validate(dict(model.options))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'options'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"model {model.name!r}: wrong options: {wrong}") from error
