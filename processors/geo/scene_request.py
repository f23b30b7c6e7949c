"""The scene of a raster job at one date: its files, its metadata, a provider's mask, and mosaics of several scenes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from penstock.media_types import BESIDE, SCENE_FILES
from penstock.models import BY_RANGE, SHARED, MediaReference, Record
from penstock.processors.geo.area_request import CrsCode
from penstock.processors.geo.mask_kinds import MASK_KINDS, MaskKindName
from penstock.processors.geo.schema_marks import (
    FORMS,
    by_range,
    only_one_of,
    optional,
    with_beside,
    with_links,
)
from penstock.times import Time

BandName = Annotated[str, Field(min_length=1, max_length=200)]
#: Scenes of a mosaic.
MAX_SCENES = 100


#: Fields that describe one scene.
OF_A_SCENE = ("sidecar", "stac", "mask", "beside")

#: Files beside a raster file.
FilesBeside = Annotated[list[MediaReference], Field(max_length=3)] | SkipJsonSchema[None]
_BESIDE = (
    "Files beside {}, as GDAL finds them: a mask (scene.tif.msk), metadata (scene.tif.aux.xml: scale, offset, nodata, "
    "band names, place) and a world file (scene.tfw). `penstock run`, `penstock submit` and the Python client add "
    f"those beside a local file, unless the list is given; nothing is looked for beside a reference. {FORMS}"
)

SINGLE_SCHEMA = only_one_of("scene", "files")
SINGLE_SCHEMA["anyOf"].append({"required": ["stac"]})
SINGLE_SCHEMA["dependentRequired"] = {"beside": ["scene"]}
ACQUISITION_SCHEMA = only_one_of("scene", "files", "mosaic", apart={"mosaic": OF_A_SCENE})
ACQUISITION_SCHEMA["anyOf"].append({"required": ["stac"]})
ACQUISITION_SCHEMA["dependentRequired"] = SINGLE_SCHEMA["dependentRequired"]


class RadiometryRequest(Record):
    """Radiometry of the file: `value = number * scale + offset`, in the unit of the model's training data.

    Missing values come from the sidecar, then the STAC item, then the file's scale and offset tags, then the model's
    defaults. The first three declare reflectance, and are multiplied by the model's number for reflectance 1.
    `stats.json` records the values that were used.
    """

    model_config = ConfigDict(json_schema_extra={"dependentRequired": {"offset": ["scale"]}})

    scale: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description=(
            "Value in the model's unit per digital number: for models of reflectance, 0.0001 for Sentinel-2, HLS and "
            "most 16-bit products; for models of reflectance x 10000, 1 for these."
        ),
    )
    offset: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description=(
            "Offset added after scaling, in the model's unit: for models of reflectance, -0.1 for Sentinel-2 since "
            "processing baseline 04.00. "
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

    to_decibels: bool = Field(
        default=False,
        description=(
            "The numbers are linear power, such as gamma0 of Sentinel-1 RTC, and the model takes decibels: use "
            "10 log10(number * scale + offset). Pixels whose power is not above 0 have no data."
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


class SceneFile(Record):
    """One file of a scene. Its resolution is read from the file."""

    media: MediaReference = Field(
        description=f"A GeoTIFF or JPEG 2000 file, or a product of many rasters as in `scene`. {FORMS}",
        json_schema_extra={BY_RANGE: "area", SHARED: True, BESIDE: "beside", **SCENE_FILES},
    )
    beside: FilesBeside = optional(_BESIDE.format("the file"))
    bands: list[BandName] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description=(
            "Names of all bands in the file's order, instead of the names in the file: e.g. [`B02`]. Only for files "
            "that are one raster."
        ),
    )
    radiometry: RadiometryRequest | None = Field(
        default=None, description="Radiometry of this file, if it differs from the other files."
    )


class MaskRequest(Record):
    """A provider's mask of a scene, such as Fmask of HLS, SCL of Sentinel-2 L2A, or QA_PIXEL of Landsat."""

    model_config = ConfigDict(json_schema_extra={"dependentRequired": {"media": ["kind"]}})

    media: MediaReference | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=by_range,
        description=(
            "The mask's file, on the scene's grid or with pixels that nest it. Default: the mask of the kind in a SAFE "
            "product, else the asset of the kind in the scene's STAC item, such as `Fmask`, `SCL_20m` or `qa_pixel`. "
            f"{FORMS}"
        ),
    )
    kind: MaskKindName | SkipJsonSchema[None] = optional(
        "`scl` (Sentinel-2 L2A), `fmask` (HLS), `qa_pixel` (Landsat Collection 2), `cloud_probability` (percent), "
        "or `classification`: the classes or bit fields that the mask's asset has in the STAC item. Required with "
        "`media`."
    )
    classes: Annotated[list[str], Field(max_length=20)] | SkipJsonSchema[None] = optional(
        "Names of the mask's classes that are masked. Default: "
        + "; ".join(f"{', '.join(kind.hidden or ())} ({name})" for name, kind in MASK_KINDS.items())
        + "; cloud (cloud_probability). Required for `classification`, in small letters and with spaces: `cloud "
        "shadow`. Pixels without an observation are always masked."
    )
    threshold: Annotated[float, Field(ge=0, lt=100, allow_inf_nan=False)] | SkipJsonSchema[None] = optional(
        "Probability in percent above which a pixel is cloud. Required for `cloud_probability`."
    )

    @model_validator(mode="after")
    def _media_have_a_kind(self) -> Self:
        if self.media is not None and self.kind is None:
            raise ValueError("media requires kind")
        return self

    @model_validator(mode="after")
    def _probability_has_a_threshold(self) -> Self:
        if self.kind == "cloud_probability" and self.threshold is None:
            raise ValueError("cloud_probability requires threshold")
        if self.kind not in (None, "cloud_probability") and self.threshold is not None:
            raise ValueError("threshold requires kind cloud_probability")
        return self


class SingleScene(Record):
    """One scene: one file with all bands (`scene`), several files (`files`), or those of a `stac` item."""

    #: Alternative fields, of which exactly one is required, unless `stac` names the files.
    ways: ClassVar[tuple[str, ...]] = ("scene", "files")
    model_config = ConfigDict(json_schema_extra=SINGLE_SCHEMA)

    scene: MediaReference | SkipJsonSchema[None] = Field(
        default=None,
        description=(
            "The scene, with all bands of the model: a GeoTIFF or JPEG 2000 file, a NetCDF or HDF5 file with CF "
            f"metadata, a zipped SAFE product of Sentinel-2, or a zipped Zarr store. {FORMS}"
        ),
        json_schema_extra=with_beside,
    )
    files: Annotated[list[SceneFile], Field(min_length=1, max_length=100)] | SkipJsonSchema[None] = optional(
        "The scene as several files, e.g. one per band as in Sentinel-2 products. The finest used file defines the "
        "grid of the results; coarser files are resampled to it (bilinear; their pixels must nest in the grid). "
        "CRS and extent must be the same."
    )
    sidecar: MediaReference | SkipJsonSchema[None] = optional(
        "Product metadata with the radiometry: MTD_MSIL1C.xml or MTD_MSIL2A.xml of Sentinel-2, *_MTL.json of Landsat. "
        f"{FORMS}"
    )
    beside: FilesBeside = optional(_BESIDE.format("the file of `scene`"))
    stac: MediaReference | dict[str, Any] | SkipJsonSchema[None] = Field(
        default=None,
        json_schema_extra=with_links,
        description=(
            "The scene's STAC item with band names, scales, offsets and nodata of its assets: a reference to a JSON "
            "file, or the item itself. A collection of items of one day (a GeoJSON FeatureCollection, such as the "
            "answer of a search) is a `mosaic` of its items, in their order. Without `scene` and `files`, the assets "
            "with the model's bands are fetched; their addresses may be relative to the item's. Otherwise nothing is "
            f"fetched: an asset is matched with a file by file name, or with a band by band name. {FORMS}"
        ),
    )
    radiometry: RadiometryRequest | None = Field(
        default=None, description="Radiometry of the scene; overrides all other sources."
    )
    mask: MaskRequest | SkipJsonSchema[None] = optional(
        "A provider's mask: its pixels of clouds and shadows have no data in the results. The network still sees "
        "them, so that all other pixels are those of the scene without a mask."
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.beside is not None and self.scene is None:
            raise ValueError("beside belongs to scene, or inside each of files")
        given = [name for name in self.ways if getattr(self, name) is not None]
        if not given and self.stac is not None:
            return self
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(self.ways)} is needed, not {' and '.join(given) or 'none'}")
        return self

    def parts(self) -> tuple[SceneFile, ...]:
        """Return the files of the scene."""
        alone = None if self.scene is None else SceneFile(media=self.scene, beside=self.beside)
        return tuple(self.files or ()) if alone is None else (alone,)


class GridRequest(Record):
    """The grid of a mosaic whose scenes have other grids."""

    crs: CrsCode = Field(description="CRS of the grid, e.g. EPSG:32738.")
    resolution: float = Field(
        ge=1e-9,
        le=1e9,
        allow_inf_nan=False,
        description="Width and height of a pixel in the CRS's unit: 30 in metres, or 0.00027 in degrees.",
    )


class MosaicRequest(Record):
    """Several scenes as one, e.g. neighbouring tiles of one day."""

    scenes: Annotated[list[SingleScene], Field(min_length=1, max_length=MAX_SCENES)] = Field(
        description="The scenes; each can have its own metadata, radiometry and mask. The mosaic covers all of them."
    )
    merge: Literal["first", "median"] = Field(
        default="first",
        description=(
            "The value of a pixel that several scenes have: that of the `first` scene in the list with data, or the "
            "`median` of all scenes with data, band by band. Masked pixels are used only where no scene has others."
        ),
    )
    grid: GridRequest | SkipJsonSchema[None] = optional(
        "Grid to which all scenes are reprojected (nearest neighbour). Its pixels begin at multiples of "
        "`resolution`. Default: the scenes' own grid, which must be the same for all."
    )


class Acquisition(SingleScene):
    """A scene at one date: a single scene, or a `mosaic` of several."""

    ways: ClassVar[tuple[str, ...]] = ("scene", "files", "mosaic")
    model_config = ConfigDict(json_schema_extra=ACQUISITION_SCHEMA)

    mosaic: MosaicRequest | SkipJsonSchema[None] = optional(
        "Several scenes that are merged: adjacent or overlapping, of one pixel grid, or reprojected to a stated "
        "`grid`. `radiometry` applies to every scene that has none of its own."
    )
    datetime: Time | SkipJsonSchema[None] = optional(
        "Acquisition time of the scene with a time zone, for the STAC item and for models that use it. Default: "
        "the time in the `sidecar`, else in the `stac` item, else in the file's tags (SENSING_TIME of HLS, or "
        "ACQUISITIONDATETIME)."
    )

    @model_validator(mode="after")
    def _documents_belong_to_a_scene(self) -> Self:
        if self.mosaic is not None:
            check_without(self, OF_A_SCENE, "belong inside each scene when mosaic is given")
        return self

    def singles(self) -> tuple[SingleScene, ...]:
        """Return the scenes of the mosaic, or the single scene."""
        return (self,) if self.mosaic is None else tuple(self.mosaic.scenes)


def check_without(request: BaseModel, names: Sequence[str], why: str) -> None:
    """Raise `ValueError` if a request has one of these fields."""
    given = [name for name in names if getattr(request, name) is not None]
    if given:
        raise ValueError(f"{' and '.join(given)} {why}")
