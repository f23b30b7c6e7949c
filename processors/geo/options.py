"""The `options` table of a raster model in `models.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from penstock.documents import wrong_fields
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


class Quantity(Options):
    """What one channel of a regression model's output means."""

    #: Of letters, digits, `-` and `_`.
    name: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_-]+$")]
    #: Such as `m`, `t/ha`, `degC`; empty for none.
    unit: str = ""
    description: str = ""


#: Whether a network takes something: never, where it is known, or always.
Wanted = Literal["no", "optional", "needed"]


class CoordinateOptions(Options):
    """What a network is told beside the pixels (see `coordinates`). What it needs and nobody says fails the job."""

    #: When each date was taken, as `temporal_coords`.
    time: Wanted = "no"
    #: Where a tile's centre lies, as `location_coords`.
    location: Wanted = "no"


class SceneOptions(Options):
    """How scenes are cut for a model and what its bands are."""

    #: Read by the runner: which network the weights belong to, or what a directory's network is for.
    network: str | None = None
    task: str | None = None
    answer: str | None = None
    #: Read by the runner too: whether to compile the network, and what the runner `fake` waits in place of a device.
    compile: bool = False
    onnx: Mapping[str, Any] = Field(default_factory=dict)
    step_s: float = Field(default=0, ge=0)
    bands: tuple[Band, ...] = Field(min_length=1)
    #: At how many dates the network sees the bands: its input is the bands of the first, then of the second, ...
    dates: int = Field(default=1, gt=0)
    coordinates: CoordinateOptions = CoordinateOptions()
    default_radiometry: tuple[DefaultRadiometry, ...] = ()
    #: Says that the model's unit is reflectance. A band whose mean over a tile is above this cannot have been scaled
    #: rightly, one far below 0 holds fill that nobody declared, and the job fails.
    plausible_mean: float | None = Field(default=None, gt=0)
    #: How tiles overlap: `halo` for convolutional networks, `hann` for those that see all of their input (see `plan`).
    overlap: Literal["halo", "hann"] = "halo"
    #: The network's output at a pixel depends on this many pixels around it at most. Needed for `halo`: 0 for a model
    #: that looks at each pixel alone.
    halo_px: int = Field(default=0, ge=0)
    #: The network takes sides that are multiples of this.
    stride_px: int = Field(default=1, gt=0)
    #: The largest side of a tile without its halo; in `hann`, the one side that the network takes.
    tile_px: int = Field(default=512, gt=0)
    #: In `hann`: by how much tiles overlap at least; half a tile unless it is said.
    overlap_px: int | None = None
    #: How much of a scene may be held, what is being read included; wider scenes are cut into panels. A Sentinel-2
    #: scene of six bands is not.
    strip_bytes: int = Field(default=288 * 2**20, gt=0)

    @property
    def least_overlap_px(self) -> int | None:
        """By how much tiles overlap at least where they are averaged; None where they are not."""
        if self.overlap == "halo":
            return None
        return -(-self.tile_px // 2) if self.overlap_px is None else self.overlap_px

    @model_validator(mode="after")
    def _on_the_grid_of_the_stride(self) -> Self:
        if self.halo_px % self.stride_px or self.tile_px % self.stride_px:
            raise ValueError("halo_px and tile_px must be multiples of stride_px")
        return self

    @model_validator(mode="after")
    def _of_one_overlap(self) -> Self:
        if self.overlap == "halo":
            if "halo_px" not in self.model_fields_set:
                raise ValueError('halo_px is needed, or overlap = "hann"')
            if self.overlap_px is not None:
                raise ValueError('overlap_px goes with overlap = "hann"')
        elif self.halo_px:
            raise ValueError('halo_px goes with overlap = "halo"')
        elif not self.tile_px <= 2 * (self.least_overlap_px or 0) < 2 * self.tile_px:
            raise ValueError("overlap_px must be at least half of tile_px and less than all of it")
        return self


class SegmentationOptions(SceneOptions):
    """The options of a model that says what is at each pixel."""

    classes: tuple[ClassLabel, ...] = Field(min_length=2)

    @field_validator("classes")
    @classmethod
    def _ids_count_from_zero(cls, classes: tuple[ClassLabel, ...]) -> tuple[ClassLabel, ...]:
        if [label.id for label in classes] != list(range(len(classes))):
            raise ValueError("class ids must count from 0 in the order of the network's channels")
        return classes


class RegressionOptions(SceneOptions):
    """The options of a model that says how much of something there is at each pixel."""

    #: In the order of the network's channels.
    quantities: tuple[Quantity, ...] = Field(min_length=1)


OptionsT = TypeVar("OptionsT", bound=SceneOptions)


def read_options(model: Model, kind: type[OptionsT]) -> OptionsT:
    """Return the model's options; raise `ConfigError` naming the model and each wrong field."""
    try:
        return kind.model_validate(dict(model.options))
    except ValidationError as error:
        wrong = wrong_fields(error, whole="options")
        raise ConfigError(f"model {model.name!r}: wrong options: {wrong}") from error
