"""Scenes as annotations of functions: bands and tiles in, classes, quantities, objects or vectors out.

The options have the names that they have in `models.toml`, whose raster processors read, tile and stitch the scene.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal

#: Colours of classes that name none, in order.
_COLOURS = (
    "#8c9a4b", "#2166ac", "#e6c84f", "#2d6a31", "#b2182b", "#f7f7f7", "#7fc8b8", "#8073ac", "#e08214", "#4d4d4d",
    "#d6604d", "#a6e3f0",
)  # fmt: skip
#: Data types whose numbers are taken as they are, unless the file or the request says more.
_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
#: Most that the sum of a pixel's probabilities differs from 1.
_SUM_ERROR = 0.02
#: Options of maps only; the other raster models have tiles of one size.
_OF_MAPS = ("overlap", "halo_exact")
#: An annotation of each kind of answer, to be copied.
_ANSWERS = (
    'write `-> Annotated[np.ndarray, penstock.Classes(["land", "water"])]`, '
    '`-> Annotated[np.ndarray, penstock.Quantities({"height": "m"})]`, '
    '`-> Annotated[penstock.Boxes, penstock.Classes(["ship"])]` or `-> penstock.Vector`'
)
#: An annotation of tiles, to be copied.
_SCENE = 'write `tile: Annotated[np.ndarray, penstock.Scene(["green", "nir"], halo_px=0)]`'


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """A band of `Scene`: its name, other names of it, and the mean, standard deviation and range of the training data.

    The function gets `(value - mean) / std`; by default the value.
    """

    name: str
    synonyms: Sequence[str] = ()
    mean: float = 0.0
    std: float = 1.0
    range: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the band as `models.toml` has it."""
        given = {"name": self.name, "synonyms": list(self.synonyms), "mean": self.mean, "std": self.std}
        return given | ({"range": list(self.range)} if self.range else {})


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A scene that comes in tiles: `Annotated[np.ndarray, Scene(["green", "nir"], halo_px=32)]`.

    A tile is float32 (bands, height, width) in the bands' order, in the unit of the scene after scale and offset;
    pixels without data have the value 0 before `mean` and `std` of a `Band`.

    * `halo_px`: how far the function looks beyond a pixel, in pixels: 0 for a rule of each pixel alone.
    * `tile_px`: the largest side of a tile without its halo; for `overlap="hann"`, objects and vectors, its side.
    * `overlap`: "hann" averages overlapping tiles, for networks that see their whole input; `overlap_px` pixels, by
      default half a tile.
    * `reflectance`: the number for reflectance 1. Files of 16 bits that declare no scale are then taken as
      reflectance x 10000, with 0 for no data.
    * `dates`: the bands of so many dates, one after the other.
    * `halo_exact`, `stride_px`, `border_px`, `plausible_mean`, `default_radiometry`: as in `models.toml`.
    """

    bands: Sequence[str | Band]
    _: KW_ONLY
    halo_px: int | None = None
    tile_px: int | None = None
    overlap: Literal["halo", "hann"] | None = None
    overlap_px: int | None = None
    halo_exact: bool | None = None
    stride_px: int | None = None
    border_px: float | None = None
    dates: int | None = None
    reflectance: float | None = None
    plausible_mean: float | None = None
    default_radiometry: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for a scene that no model can have."""
        if isinstance(self.bands, str) or not self.bands or not all(isinstance(b, str | Band) for b in self.bands):
            raise ValueError('name the bands in a list: Scene(["green", "nir"], halo_px=0)')
        if self.overlap not in (None, "halo", "hann"):
            raise ValueError(f'overlap is "halo" or "hann", not {self.overlap!r}')

    def options(self) -> dict[str, Any]:
        """Return the options of the record."""
        names = (one.name for one in fields(self) if one.name not in ("_", "bands"))
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        bands = [(Band(one) if isinstance(one, str) else one).to_json() for one in self.bands]
        return {"bands": bands, "default_radiometry": self._numbers(), **given}

    def _numbers(self) -> list[dict[str, Any]]:
        """Return the meaning of numbers that nobody declared."""
        if self.reflectance is None:
            return [{"dtypes": list(_DTYPES)}]
        whole = {"dtypes": ["uint16", "int16"], "scale": self.reflectance / 10_000, "nodata": 0.0}
        return [whole, {"dtypes": ["float32", "float64"]}]


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Classes by name, in the order of their ids, or names with colours: `Classes({"water": "#2166ac", ...})`.

    `Annotated[np.ndarray, Classes(["land", "water"])]` is a tile's class ids, integers (height, width), or
    probabilities, floats (classes, height, width) with the sum 1. `Annotated[Boxes, Classes(["ship", "plane"])]` are
    objects with these labels, in pixels of the tile.
    """

    names: Sequence[str] | Mapping[str, str]

    def __post_init__(self) -> None:
        """Raise `ValueError` for names that are none, or appear twice."""
        _check_names(self.names, 'name the classes in a list: Classes(["land", "water"])')

    def to_json(self) -> list[dict[str, Any]]:
        """Return the classes as `models.toml` has them."""
        colours = self.names if isinstance(self.names, Mapping) else {}
        return [
            {"id": at, "name": name, "colour": colours.get(name, _COLOURS[at % len(_COLOURS)])}
            for at, name in enumerate(self.names)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Quantities:
    """Quantities by name, or names with units: `Quantities({"height": "m"})`.

    A tile's answer is floats (quantities, height, width), or (height, width) for one quantity.
    """

    names: Sequence[str] | Mapping[str, str]

    def __post_init__(self) -> None:
        """Raise `ValueError` for names that are none, or appear twice."""
        _check_names(self.names, 'name the quantities with their units: Quantities({"height": "m"})')

    def to_json(self) -> list[dict[str, Any]]:
        """Return the quantities as `models.toml` has them."""
        units = self.names if isinstance(self.names, Mapping) else {}
        return [{"name": name, "unit": units.get(name, "")} for name in self.names]


def _check_names(names: Sequence[str] | Mapping[str, str], instead: str) -> None:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names) or not names:
        raise ValueError(instead)
    if twice := next((name for at, name in enumerate(names) if name in list(names)[:at]), None):
        raise ValueError(f"{twice!r} appears twice")


_WORDS = (Scene, Classes, Quantities)


def refuse_bare(annotation: Any) -> None:
    """Raise `ValueError` for `Scene` and the like as a type, which is that of an array."""
    if isinstance(annotation, _WORDS) or annotation in _WORDS:
        raise ValueError(_for_arrays(annotation if isinstance(annotation, type) else type(annotation)))


def codec_of(is_array: bool, is_boxes: bool, extra: Sequence[Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the codec and the options of an annotation that says `Scene`, `Classes` or `Quantities`; else None.

    Raises `ValueError` for such words on another type.
    """
    said = next((one for one in extra if isinstance(one, _WORDS)), None)
    if said is None:
        return None
    if isinstance(said, Classes) and is_boxes:
        return "boxes", {"labels": list(said.names)}
    if not is_array:
        raise ValueError(_for_arrays(type(said)))
    if isinstance(said, Scene):
        return "scene", said.options()
    if isinstance(said, Quantities):
        return "quantities", {"quantities": said.to_json()}
    if len(said.names) < 2:
        raise ValueError('a map has two classes or more: write `penstock.Classes(["land", "water"])`')
    return "classes", {"classes": said.to_json()}


def _for_arrays(word: type) -> str:
    name = word.__name__
    return f"penstock.{name} is for arrays: write `Annotated[np.ndarray, penstock.{name}(...)]`"


def raster_of(
    parameters: Mapping[str, Any], answers: Mapping[str, Any], *, streams: bool, batched: bool
) -> dict[str, Any] | None:
    """Return the processor and options of a function of tiles, by its kinds; None for any other function.

    Raises `ValueError` with what to write instead.
    """
    scene = next((name for name, kind in parameters.items() if kind.codec == "scene"), None)
    if scene is None:
        if any(kind.codec in ("classes", "quantities") for kind in answers.values()):
            raise ValueError(f"the answer is a map, and no parameter is a scene: {_SCENE}")
        return None
    if others := [f"`{name}`" for name in parameters if name != scene]:
        raise ValueError(
            f"a function of a scene's tiles has no other parameters, and {', '.join(others)} is one: make it a "
            "constant of the file"
        )
    if streams or "" not in answers:
        raise ValueError(f"a scene's tile has one answer: {_ANSWERS}")
    answer = answers[""]
    if not batched and (parameters[scene].is_list or answer.is_list):
        raise ValueError("lists of tiles are batches: write `@penstock.model(max_batch=8)`")
    return _record(parameters[scene].options, answer.codec, answer.options)


def _record(scene: Mapping[str, Any], answer: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the processor and options of a record with these tiles and this codec of answers with its options."""
    if answer in ("classes", "quantities"):
        if "halo_px" not in scene and scene.get("overlap") != "hann":
            raise ValueError(
                "Scene lacks halo_px, the pixels beyond a tile that the function needs to see: write `halo_px=0` for "
                'a rule of each pixel alone, the receptive radius of a convolutional network, or `overlap="hann"` for '
                "a network that sees its whole input"
            )
        processor = "raster-segmentation" if answer == "classes" else "raster-regression"
        return {"processor": processor, "options": {**scene, **said}}
    for name in _OF_MAPS:
        if name in scene:
            raise ValueError(f"`{name}` is for maps, and the answer is none: remove it")
    if answer == "vector":
        return {"processor": "raster-embedding", "options": dict(scene)}
    if answer == "boxes" and said.get("labels"):
        return {"processor": "raster-detection", "options": {**scene, "detector": "boxes", **said}}
    raise ValueError(f"the answer to a scene's tile is a map, objects or a vector: {_ANSWERS}")


def schema_of(scene: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the request's schema that every job needs."""
    media = {"type": "string", "format": "media"}
    one = {"type": "object", "properties": {"scene": media}, "required": ["scene"], "additionalProperties": False}
    if (dates := scene.get("dates", 1)) == 1:
        return one
    several = {"type": "array", "items": one, "minItems": dates, "maxItems": dates}
    return {"type": "object", "properties": {"dates": several}, "required": ["dates"], "additionalProperties": False}


def output_of(codec: str, options: Mapping[str, Any], answer: Any, tile: Any) -> dict[str, Any]:
    """Return the arrays of a tile's output as the raster processors read them; raise `ValueError` or `TypeError`."""
    if codec == "boxes":
        return _objects(answer, options["labels"])
    array = _array(answer)
    if codec == "vector":
        if array.ndim != 1 or not array.size or array.dtype.kind not in "fiu":
            raise ValueError(f"a vector is numbers (dimensions), not {_said(array)}")
        return {"embedding": array.astype("float32", copy=False)}
    height, width = tile.shape[1:]
    if codec == "classes":
        return {"probability": _scores(array, len(options["classes"]), height, width)}
    count = len(options["quantities"])
    if array.ndim == 2 and count == 1:
        array = array[None]
    if array.shape != (count, height, width) or array.dtype.kind not in "fiu":
        raise ValueError(f"quantities are floats {(count, height, width)}, not {_said(array)}")
    return {"values": array.astype("float32", copy=False)}


def _array(answer: Any) -> Any:
    import numpy as np

    if hasattr(answer, "detach"):  # torch
        answer = answer.detach().cpu()
        answer = (answer.float() if answer.is_floating_point() else answer).numpy()
    if not isinstance(answer, np.ndarray | list):
        raise TypeError(f"an array is needed, not {type(answer).__name__}")
    return np.asarray(answer)


def _scores(array: Any, count: int, height: int, width: int) -> Any:
    """Return float32 (classes, height, width) of class ids or of probabilities."""
    import numpy as np

    if array.shape == (height, width) and array.dtype.kind in "iub":
        ids = array.astype(np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < count:
            raise ValueError(f"class ids are 0 to {count - 1}, and the answer has {ids.min()} to {ids.max()}")
        return (ids == np.arange(count)[:, None, None]).astype(np.float32)
    if array.shape != (count, height, width) or array.dtype.kind != "f":
        raise ValueError(
            f"classes are integers {(height, width)}, or floats {(count, height, width)}, not {_said(array)}"
        )
    scores = array.astype(np.float32, copy=False)
    sums = scores.sum(axis=0)
    if sums.size and not np.abs(sums - 1).max() <= _SUM_ERROR:
        raise ValueError(
            f"the probabilities of a pixel have the sum 1, and the answer has {sums.min():.3g} to {sums.max():.3g}: "
            "apply softmax, or answer class ids"
        )
    return scores


def _objects(answer: Any, labels: Sequence[str]) -> dict[str, Any]:
    import numpy as np

    ids = {name: at for at, name in enumerate(labels)}
    if unknown := next((str(one["label"]) for one in answer if one["label"] not in ids), None):
        raise ValueError(f"the label {unknown!r} is none of {', '.join(labels)}")
    boxes = np.array([one["box"] for one in answer], np.float32).reshape(-1, 4)
    return {
        "boxes": boxes,
        "scores": np.array([one["score"] for one in answer], np.float32),
        "labels": np.array([ids[one["label"]] for one in answer], np.int64),
    }


def _said(array: Any) -> str:
    return f"{array.dtype} {array.shape}"
