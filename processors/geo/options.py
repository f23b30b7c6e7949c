"""The `options` table of a raster model in `models.toml`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from penstock.errors import ConfigError
from penstock.json_body import wrong_fields
from penstock.models import Model, Record
from penstock.processors.geo.tiling.plan import Tiling
from penstock.processors.vision.detectors import BoxFormat, BoxUnit, Layout

NODATA = 255  #: nodata value of every uint8 raster; class ids and probabilities are below


class Band(Record):
    """An input band of the model, with mean and standard deviation of the training data in the model's unit."""

    name: str
    #: Other names of the band in scenes, best first; case, spaces, `-`, `_` and leading zeros are ignored.
    synonyms: tuple[str, ...] = ()
    mean: float
    std: float = Field(gt=0)
    #: Lowest and highest value of the training data in the model's unit. A scene with medians far outside is rejected.
    range: tuple[float, float] | None = None

    @field_validator("range")
    @classmethod
    def _range_is_ordered(cls, ends: tuple[float, float] | None) -> tuple[float, float] | None:
        if ends is not None and not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
            raise ValueError("range must be two finite numbers, the lowest first")
        return ends


class DefaultRadiometry(Record):
    """Default radiometry for these data types, if neither the request nor the metadata declare one."""

    dtypes: tuple[str, ...]
    scale: float = Field(default=1.0, gt=0)
    offset: float = 0.0
    nodata: float | None = None


class ClassLabel(Record):
    """A class of the model. Ids start at 0, in the order of the network's channels."""

    id: int = Field(ge=0, lt=NODATA)
    name: str
    colour: Annotated[str, StringConstraints(pattern=r"^#[0-9a-fA-F]{6}$")]

    @property
    def rgb(self) -> tuple[int, int, int]:
        """Red, green and blue, 0 to 255."""
        red, green, blue = bytes.fromhex(self.colour[1:])
        return red, green, blue


class Quantity(Record):
    """A quantity: one output channel of a regression model."""

    #: Name of letters, digits, `-` and `_`.
    name: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_-]+$")]
    #: Unit such as `m`, `t/ha`, `degC`; empty for none.
    unit: str = ""
    description: str = ""


#: Use of an input by the network: `no` never, `optional` where the value is known, `needed` in every job.
Wanted = Literal["no", "optional", "needed"]


class CoordinateOptions(Record):
    """Time and location inputs of the network (see `coordinates`). A job without a `needed` input fails."""

    #: Acquisition time of each date, as `temporal_coords`.
    time: Wanted = "no"
    #: Location of the tile's centre, as `location_coords`.
    location: Wanted = "no"


class SensorOptions(Record):
    """Bands of one sensor, and the unit of their values."""

    bands: tuple[Band, ...] = Field(min_length=1)
    default_radiometry: tuple[DefaultRadiometry, ...] = ()
    #: Number in the model's unit for reflectance 1: 1 for reflectance, 10000 for reflectance x 10000. With this number,
    #: scenes whose values cannot be reflectance are rejected before they are tiled, and the error names the likeliest
    #: encoding; see Radiometry in the explanations.
    reflectance: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: True if the values are decibels, as of radar: a request may have them computed of linear power (`to_decibels`).
    decibels: bool = False


class ModalityOptions(SensorOptions):
    """A further sensor of a model, whose scene is brought onto the grid of the model's scene."""

    #: Name of the modality, such as `S1GRD` or `DEM`.
    name: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_-]+$")]


class SceneOptions(SensorOptions):
    """Bands and tiling of a raster model."""

    #: Options of the runner: network of the weights, task of a model directory, output name.
    network: str | None = None
    task: str | None = None
    answer: str | None = None
    #: Further options of the runner: compile the network; seconds per step of the runner `fake`.
    compile: bool = False
    #: Threads of a forward pass on a CPU, of the runner `torch`.
    threads: int | None = Field(default=None, ge=1)
    onnx: Mapping[str, Any] = Field(default_factory=dict)
    terratorch: Mapping[str, Any] = Field(default_factory=dict)
    #: Seconds that `penstock models check` gives TerraTorch for the network; None: the runner's own limit.
    check_timeout_s: float | None = Field(default=None, gt=0)
    step_s: float = Field(default=0, ge=0)
    #: Name of the modality of the scene, for a model of several sensors.
    modality: str = ""
    #: Further sensors, whose bands follow those of the scene in the network's input. The runner `terratorch` gives each
    #: modality to the network as a tensor of its own.
    modalities: tuple[ModalityOptions, ...] = ()
    #: Number of dates. The input is all bands of the first date, then of the second, and so on.
    dates: int = Field(default=1, gt=0)
    coordinates: CoordinateOptions = CoordinateOptions()
    #: Last resort for what `reflectance` and `range` do not cover: maximum mean of a band over a tile, for models of
    #: reflectance. A higher mean, or values far below 0 (undeclared nodata), fail the job.
    plausible_mean: float | None = Field(default=None, gt=0)
    #: Stride of the network: input sides must be multiples of this, in pixels.
    stride_px: int = Field(default=1, gt=0)
    #: Side of a tile in pixels.
    tile_px: int = Field(default=512, gt=0)
    #: Memory for a strip of the scene in bytes, including read buffers; wider scenes are split into panels. A
    #: Sentinel-2 scene of six bands needs no split.
    strip_bytes: int = Field(default=288 * 2**20, gt=0)

    @property
    def tiling(self) -> Tiling:
        """The tiling of scenes."""
        return Tiling(self.tile_px, stride_px=self.stride_px)

    @property
    def reflects(self) -> bool:
        """True to pad beyond a scene by reflection, False to pad like pixels without data."""
        return False

    @property
    def reach_px(self) -> int | None:
        """Distance in pixels beyond which no pixel changes the result of another one; None if it is not known."""
        return None

    @property
    def sensors(self) -> tuple[SensorOptions, ...]:
        """The scene's own sensor, then the further ones."""
        return (self, *self.modalities)

    @model_validator(mode="after")
    def _modalities_have_names(self) -> Self:
        names = [self.modality, *(one.name for one in self.modalities)]
        if self.modalities and (not self.modality or len(set(names)) < len(names)):
            raise ValueError("modality and the name of each of modalities must be given, and differ")
        if self.modalities and (self.dates > 1 or self.plausible_mean is not None):
            raise ValueError("modalities are for models of one date, without plausible_mean")
        return self


class MapOptions(SceneOptions):
    """Options of a model that answers each pixel."""

    #: Tiling method: `halo` for convolutional networks, `hann` for networks that see their whole input (see `plan`).
    #: `tile_px` is the maximum side of a tile without its halo; for `hann`, the input side of the network.
    overlap: Literal["halo", "hann"] = "halo"
    #: Receptive radius of the network in pixels; required for `halo`. 0 for a model that processes each pixel alone.
    halo_px: int = Field(default=0, ge=0)
    #: True if no pixel beyond `halo_px` changes the result of a pixel, not even its last bit: then an `area` reads its
    #: own pixels and their halo, and tiles may be oblong where that is less work. By default an area reads whole tiles,
    #: and tiles are square. For `halo`; not for networks that see their whole input.
    halo_exact: bool = False
    #: Minimum overlap of tiles for `hann`, in pixels; default: half a tile.
    overlap_px: int | None = None

    @property
    def least_overlap_px(self) -> int | None:
        """Minimum overlap in pixels for `hann`; None for `halo`."""
        if self.overlap == "halo":
            return None
        return -(-self.tile_px // 2) if self.overlap_px is None else self.overlap_px

    @property
    def tiling(self) -> Tiling:
        """The tiling of scenes."""
        return Tiling(self.tile_px, self.halo_px, self.stride_px, self.least_overlap_px, exact=self.halo_exact)

    @property
    def reflects(self) -> bool:
        """True for `hann`."""
        return self.overlap == "hann"

    @property
    def reach_px(self) -> int | None:
        """`halo_px` if it is exact."""
        return self.halo_px if self.halo_exact else None

    @model_validator(mode="after")
    def _on_the_grid_of_the_stride(self) -> Self:
        if self.halo_px % self.stride_px or self.tile_px % self.stride_px:
            raise ValueError("halo_px and tile_px must be multiples of stride_px")
        return self

    @model_validator(mode="after")
    def _of_one_overlap(self) -> Self:
        if self.overlap == "halo":
            if "halo_px" not in self.model_fields_set:
                raise ValueError('overlap = "halo" requires halo_px; or set overlap = "hann"')
            if self.overlap_px is not None:
                raise ValueError('overlap_px requires overlap = "hann"')
        elif self.halo_px or self.halo_exact:
            raise ValueError(f'{"halo_px" if self.halo_px else "halo_exact"} requires overlap = "halo"')
        elif not self.tile_px <= 2 * (self.least_overlap_px or 0) < 2 * self.tile_px:
            raise ValueError("overlap_px must be at least half of tile_px and less than tile_px")
        return self


class SegmentationOptions(MapOptions):
    """Options of a segmentation model."""

    classes: tuple[ClassLabel, ...] = Field(min_length=2)

    @field_validator("classes")
    @classmethod
    def _ids_count_from_zero(cls, classes: tuple[ClassLabel, ...]) -> tuple[ClassLabel, ...]:
        if [label.id for label in classes] != list(range(len(classes))):
            raise ValueError("class ids must start at 0, in the order of the network's channels")
        return classes


class RegressionOptions(MapOptions):
    """Options of a regression model."""

    #: Output quantities, in the order of the network's channels.
    quantities: tuple[Quantity, ...] = Field(min_length=1)


class ObjectOptions(SceneOptions):
    """Options of tiles in which objects are found."""

    #: Overlap of tiles in pixels: more than the side of the largest object and twice `border_px`. Default: a quarter of
    #: a tile.
    overlap_px: int | None = Field(default=None, ge=0)
    #: A box whose edge is this near to a tile's border inside the scene may be cut, and is dropped.
    border_px: float = Field(default=2, ge=0)

    @property
    def tiling(self) -> Tiling:
        """The tiling of scenes."""
        overlap_px = self.tile_px // 4 if self.overlap_px is None else self.overlap_px
        return Tiling(self.tile_px, overlap_px=overlap_px, whole=True)

    @model_validator(mode="after")
    def _tiles_advance(self) -> Self:
        if (self.tiling.overlap_px or 0) + 2 * self.border_px >= self.tile_px:
            raise ValueError("overlap_px plus twice border_px must be less than tile_px")
        return self


class DetectionOptions(ObjectOptions):
    """Options of a model that finds objects. `tile_px` is the side of the network's input."""

    #: The layout of the network's outputs (`vision.detectors`). Default: `queries` for the runner `transformers`, else
    #: `boxes`.
    detector: Layout | None = None
    #: Order of a box's numbers, and their unit; not for `queries`.
    box_format: BoxFormat = "xyxy"
    box_unit: BoxUnit = "pixels"
    #: Names of the classes by id, from 0; default: those in `config.json`.
    labels: tuple[str, ...] | None = None
    #: The fields of `preprocessor_config.json`, of which only the kind is used; for `queries`.
    preprocessor: Mapping[str, Any] | None = None


class WordDetectionOptions(ObjectOptions):
    """Options of a model that finds objects by words. The model's own processor resizes each tile."""

    @model_validator(mode="after")
    def _shows_three_bands(self) -> Self:
        if len(self.bands) * self.dates != 3 or self.modalities:
            raise ValueError("bands must be three of one date: they are shown as red, green and blue")
        if self.coordinates != CoordinateOptions():
            raise ValueError("coordinates are not for models that find objects by words")
        return self


class EmbeddingOptions(SceneOptions):
    """Options of a model that gives vectors. `tile_px` is the side of the network's input."""

    #: Side in pixels of the square that one vector stands for; default: a tile.
    patch_px: int | None = Field(default=None, gt=0)
    #: Context around the part of a tile whose vectors are used, in pixels.
    halo_px: int = Field(default=0, ge=0)
    #: Vectors before those of the patches, such as a class token, in an output of tokens.
    prefix_tokens: int = Field(default=0, ge=0)
    #: Options of the runners `transformers` and `terratorch`.
    pooling: str | None = None
    normalize: bool = True

    @property
    def cell_px(self) -> int:
        """Side in pixels of the square that one vector stands for."""
        return self.patch_px or self.tile_px

    @property
    def tiling(self) -> Tiling:
        """The tiling of scenes."""
        return Tiling(self.tile_px - 2 * self.halo_px, self.halo_px, self.cell_px, fixed=True)

    @model_validator(mode="after")
    def _on_the_grid_of_the_patches(self) -> Self:
        if self.tile_px % self.cell_px or self.halo_px % self.cell_px or 2 * self.halo_px >= self.tile_px:
            raise ValueError("tile_px and halo_px must be multiples of patch_px, and twice halo_px less than tile_px")
        if "stride_px" in self.model_fields_set:
            raise ValueError("stride_px is not for embeddings: tiles are on the grid of patch_px")
        return self


OptionsT = TypeVar("OptionsT", bound=SceneOptions)


#: Options of the runner `function`, which the record of a function has.
_OF_FUNCTIONS = ("signature", "file", "code_sha256", "arguments")


def read_options(model: Model, kind: type[OptionsT]) -> OptionsT:
    """Return the model's options. Raises `ConfigError` that names the model, of a function its line, and each field."""
    others = _OF_FUNCTIONS if model.runner == "function" else ()
    try:
        options = kind.model_validate({name: value for name, value in model.options.items() if name not in others})
    except ValidationError as error:
        wrong = wrong_fields(error, whole="options")
        at = f"{model.options['signature']['place']}: " if others else ""
        raise ConfigError(f"{at}model {model.name!r}: wrong options: {wrong}") from error
    if "threads" in model.options and model.runner != "torch":
        raise ConfigError(f"model {model.name!r}: only the runner 'torch' has options.threads, not {model.runner!r}")
    return options
