"""TerraTorch's arguments for building a network: from a config, or from the record's `options.terratorch`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pydantic import ValidationError

from penstock.errors import ModelUnavailable
from penstock.workers.engine.terratorch import clay, mmsegmentation
from penstock.workers.engine.terratorch.clay import Clay
from penstock.workers.engine.terratorch.mmsegmentation import Temporal

Task = Literal["segmentation", "regression", "embedding_generation"]

#: Tasks by the names of TerraTorch's classes.
TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "SemanticSegmentationTask": "segmentation",
        "PixelwiseRegressionTask": "regression",
        "EmbeddingGenerationTask": "embedding_generation",
    }
)
#: File that describes a published network, unless a YAML file or the record does.
CONFIG = "config.json"
FACTORIES = ("EncoderDecoderFactory", "PrithviModelFactory")
#: Networks that are put together here, by the name of what makes them elsewhere: the task and the arguments.
OWN: Mapping[str, tuple[Task, type[Clay] | type[Temporal]]] = MappingProxyType(
    {clay.FACTORY: ("embedding_generation", Clay), mmsegmentation.FACTORY: ("segmentation", Temporal)}
)

#: A class by its Python path, which TerraTorch would import and call, as in `final_act`.
_PYTHON_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_LAYER = re.compile(r"torch\.nn\.(modules\.[a-z_]+\.)?[A-Z]\w*")

#: Bands of backbones whose arguments do not list them, by the beginning of the backbone's name.
_BANDS = MappingProxyType({"prithvi_eo": 6, "clay_v1": 6})
#: Bands of TerraMind's modalities, which are images.
_MODALITIES = MappingProxyType({"S2L2A": 12, "S2L1C": 13, "S2RGB": 3, "S1GRD": 2, "S1RTC": 2, "DEM": 1})


@dataclass(frozen=True, slots=True)
class Recipe:
    """TerraTorch's arguments for building a network."""

    task: Task
    factory: str
    #: Arguments of the factory.
    args: Mapping[str, Any]
    #: Place of the arguments, for errors: a file's name, or an option.
    file: str = CONFIG
    #: Index of the backbone's layer that gives embeddings.
    layer: int = -1
    #: The network, if it is put together here.
    own: Clay | Temporal | None = None

    @property
    def channels(self) -> int | None:
        """The number of channels of the answer, if the arguments have it."""
        if self.task == "segmentation":
            return self._number("num_classes")
        return None if self.task == "embedding_generation" else self._number("num_outputs") or 1

    @property
    def bands(self) -> int | None:
        """The number of bands of each date, if it is known."""
        if self.own is not None:
            return self.own.band_count
        if self.modalities:
            return sum(self.bands_of(name) for name in self.modalities)
        bands = self._of_backbone("bands") or self.args.get("bands")
        if isinstance(bands, list):
            return len(bands)
        if isinstance(bands, dict):
            return sum(len(names) for names in bands.values() if isinstance(names, list))
        if self.factory != FACTORIES[0]:
            return None
        return next((count for name, count in _BANDS.items() if self.backbone.startswith(name)), None)

    @property
    def backbone(self) -> str:
        """The backbone's name."""
        return str(self.args.get("backbone"))

    @property
    def parts(self) -> Iterator[tuple[str, str]]:
        """The parts that TerraTorch builds by name: the backbone, the decoder and the necks."""
        if self.own is not None:
            return
        yield "backbone", self.backbone
        if isinstance(decoder := self.args.get("decoder"), str):
            yield "decoder", decoder
        necks = self.args.get("necks")
        for neck in necks if isinstance(necks, list) else ():
            if isinstance(neck, Mapping) and isinstance(name := neck.get("name"), str):
                yield "neck", name

    @property
    def modalities(self) -> Sequence[str]:
        """The backbone's modalities; empty for a backbone of images alone."""
        found = self._of_backbone("modalities")
        return found if isinstance(found, list) else ()

    def bands_of(self, modality: str) -> int:
        """Return the number of bands of a modality: those that the arguments list, or all."""
        bands = self._of_backbone("bands")
        if isinstance(bands, list) and len(self.modalities) == 1:
            return len(bands)
        listed = bands.get(modality) if isinstance(bands, dict) else None
        return len(listed) if isinstance(listed, list) else _MODALITIES[modality]

    @property
    def dates(self) -> int:
        """The number of dates."""
        frames = self._of_backbone("num_frames") or self.args.get("num_frames") or 1
        return frames if isinstance(frames, int) else 1

    @property
    def side_px(self) -> int | None:
        """The only side of the input in pixels; None for a backbone that takes others."""
        side = self._of_backbone("img_size") or 256
        return side if self.backbone.startswith("clay_v1") and isinstance(side, int) else None

    @property
    def stacks_dates(self) -> bool:
        """True if dates have an axis of their own, even for a single date."""
        return self.dates > 1 or bool(self._of_backbone("use_temporal"))

    def _number(self, name: str) -> int | None:
        value = self.args.get(name)
        return value if isinstance(value, int) else None

    def _of_backbone(self, name: str) -> Any:
        kwargs = self.args.get("backbone_kwargs")
        return kwargs.get(name) if isinstance(kwargs, dict) else self.args.get(f"backbone_{name}")


def read_recipe(config: Mapping[str, Any], file: str = CONFIG, *, dates: int = 1) -> Recipe:
    """Return the recipe in the config of a file, of a TerraTorch task or of a published Prithvi backbone.

    `dates` is the number of dates for a backbone, which takes any. Raises `ModelUnavailable` if the recipe is missing
    or names code.
    """
    published = config.get("pretrained_cfg", config)
    model = published.get("model") if isinstance(published, dict) else None
    if model is None and isinstance(config.get("architecture"), str):
        return recipe_of(
            {"backbone": config["architecture"], "backbone_num_frames": dates}, "embedding_generation", file=file
        )
    settings = model.get("init_args") if isinstance(model, dict) else None
    args = settings.get("model_args") if isinstance(settings, dict) else None
    if not isinstance(model, dict) or not isinstance(settings, dict) or not isinstance(args, dict):
        where = "pretrained_cfg.model" if file == CONFIG else "model"
        raise ModelUnavailable(f"{file} has no {where}.init_args.model_args, the arguments of the network")
    name = str(model.get("class_path")).rpartition(".")[2]
    if name not in TASKS:
        raise ModelUnavailable(f"{file} names the task {name}; known tasks: {', '.join(TASKS)}")
    factory = str(settings.get("model_factory", FACTORIES[0]))
    layers = settings.get("layers") or [-1]
    if not isinstance(layers, list) or len(layers) != 1 or not isinstance(layers[0], int):
        raise ModelUnavailable(f"{file} asks for the layers {layers}: embeddings are made of one layer")
    return recipe_of(args, TASKS[name], factory=factory, file=file, layer=layers[0])


def recipe_of(
    args: Mapping[str, Any], task: Task, *, factory: str = FACTORIES[0], file: str = CONFIG, layer: int = -1
) -> Recipe:
    """Return the recipe of a factory's arguments; raise `ModelUnavailable` where they name code or several inputs."""
    if factory in OWN:
        return _own_recipe(args, task, factory, file)
    if factory not in FACTORIES:
        known = ", ".join([*FACTORIES, *OWN])
        raise ModelUnavailable(f"{file} names the factory {factory}; known factories: {known}")
    if not isinstance(args.get("backbone"), str):
        raise ModelUnavailable(f"{file} names no backbone")
    for key, value in args.items():
        if key != "backbone":
            _refuse_code(key, value, file)
    recipe = Recipe(task, factory, args, file, layer)
    modalities = recipe.modalities
    images = bool(modalities) and all(isinstance(one, str) and one in _MODALITIES for one in modalities)
    if recipe.backbone.startswith("terramind") and not images:
        raise ModelUnavailable(
            f"{file} has the modalities {list(modalities)}: give backbone_modalities, whose bands are images: some of "
            f"{', '.join(_MODALITIES)}"
        )
    return recipe


def _own_recipe(args: Mapping[str, Any], task: Task, factory: str, file: str) -> Recipe:
    served, form = OWN[factory]
    if task != served:
        raise ModelUnavailable(f"{file} names the factory {factory}, which is served for the task {served} alone")
    try:
        return Recipe(task, factory, args, file, own=form.model_validate(dict(args)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ModelUnavailable(
            f"{file} is not of {factory}: {': '.join(filter(None, (where, first['msg'])))}"
        ) from error


def _refuse_code(key: str, value: Any, file: str) -> None:
    """Raise `ModelUnavailable` for a class that is not a layer of torch: building the network would call it."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in values:
        _refuse_code(key, part, file)
    if isinstance(value, str) and _PYTHON_PATH.fullmatch(value) and not _LAYER.fullmatch(value):
        raise ModelUnavailable(f"{file} names the Python object {value} in {key}: only layers of torch.nn are allowed")
