"""A hub directory: its `config.json`, its safetensors, and the network they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from penstock.errors import ModelUnavailable, OutOfMemory, PenstockError, first_line
from penstock.models import Model
from penstock.processors.multimodal.items import TOWERS
from penstock.workers.engine.sources import directory_of
from penstock.workers.engine.transformers.adapters import adapted, find_adapter, without_adapter
from penstock.workers.engine.transformers.quantised import require_no_scales, stays_quantised, unpacked
from penstock.workers.engine.transformers.tasks import Known, Task, resolve, wanted

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True, slots=True)
class HubDirectory:
    """A checked hub directory with its task."""

    model: Model
    path: Path
    config: Mapping[str, Any]
    task: Task
    #: Folder of the adapter, if there is one.
    adapter: Path | None = None
    #: True: the weights are quantised, and stay quantised when loaded.
    quantised: bool = False

    @classmethod
    def of(cls, model: Model) -> HubDirectory:
        """Check a model's directory; raise `ModelUnavailable` with the missing or wrong file."""
        path = directory_of(model)
        adapter = find_adapter(model, path)
        config = read_object(path / "config.json")
        task = resolve(config, wanted(model.processor, model.options.get("task")), known_types())
        _find_weights(path)
        return cls(model, path, config, task, adapter, stays_quantised(config))

    def load(
        self, auto_class: str, *, dtype: torch.dtype = torch.float32, unused: Callable[[str], bool] = lambda _: False
    ) -> Any:
        """Return the network on the CPU; `auto_class` is a class of the library.

        Quantised networks are not cast to `dtype`. Missing weights are an error unless `unused` returns True for their
        names: the library would fill them with random numbers.
        """
        with _load_errors(), without_adapter(self.path) as path:
            network, report = getattr(library(), auto_class).from_pretrained(
                path,
                config=unpacked(_config(path)),
                dtype="auto" if self.quantised else dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # rejected below, where they can be named
            )
            if shapes := wrong_shapes(report["mismatched_keys"]):
                raise ModelUnavailable(f"config.json and the weights do not make a network: {shapes}")
            require_no_scales(report["unexpected_keys"])
            lacking = sorted(name for name in report["missing_keys"] if not unused(name))
            if lacking:
                raise ModelUnavailable(
                    f"{WEIGHTS} lacks {len(lacking)} of the weights that {type(network).__name__} needs, "
                    f"the first is {lacking[0]!r}"
                )
            if self.quantised:
                self._check_precision(network)
            return network if self.adapter is None else adapted(network, self.adapter)

    def _check_precision(self, network: Any) -> None:
        """Raise `ModelUnavailable` for a half-precision network that would get pixels or audio in float32."""
        if self.task not in _OF_TOKENS and network.dtype != torch.float32 and self.model.dtype == "float32":
            raise ModelUnavailable(
                f"the unquantised part of its weights is {str(network.dtype).removeprefix('torch.')} and is not cast: "
                'set `dtype = "bfloat16"` in the model\'s record'
            )


def read_config(model: Model) -> Any:
    """Return the library's config of a model; raise `ModelUnavailable`."""
    with _load_errors():
        return _config(directory_of(model))


def _config(path: Path) -> Any:
    return library().AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def require_network(network: Any, config: Any) -> None:
    """Make a network without memory for its weights; raise `ModelUnavailable` if it cannot be made."""
    with _load_errors(), torch.device("meta"):
        network(config)


def wrong_shapes(mismatched: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> str:
    """Return a sentence on the first weight with another shape than the network's; empty if there is none."""
    wrong = sorted((name, tuple(found), tuple(needed)) for name, found, needed in mismatched)
    if not wrong:
        return ""
    name, found, needed = wrong[0]
    return (
        f"{len(wrong)} weights have other shapes, the first is {name!r}: {found} in the file, {needed} in the network"
    )


@cache
def library() -> Any:
    """Import transformers without progress bars and warnings in the worker's log."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


@cache
def known_types() -> Known:
    """Return the model types of the installed library."""
    from transformers.models.auto import modeling_auto

    def types(mapping: str) -> frozenset[str]:
        return frozenset(getattr(modeling_auto, f"{mapping}_MAPPING_NAMES"))

    images = types("MODEL_FOR_IMAGE") | _IMAGES_AND_TEXT
    answers = types("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM")
    texts = (types("MODEL_FOR_MASKED_LM") | types("MODEL_FOR_CAUSAL_LM")) & types("MODEL") - answers
    found = {
        **{task: types(f"MODEL_FOR_{mapping}") for task, mapping in _MAPPINGS.items()},
        Task.ZERO_SHOT_CLASSIFICATION: _SIMILARITY,
        Task.IMAGE_EMBEDDING: images,
        Task.TEXT_EMBEDDING: texts - images,
        Task.TEXT_IMAGE_EMBEDDING: TOWERS | _MANY_VECTORS | types("MODEL_FOR_IMAGE_TEXT_TO_TEXT"),
        Task.TEXT_GENERATION: types("MODEL_FOR_CAUSAL_LM") | answers,
    }
    return Known(found, frozenset(library().CONFIG_MAPPING.keys()))


def read_object(path: Path) -> Mapping[str, Any]:
    """Return a JSON object from a file; raise `ModelUnavailable` naming the file."""
    data = _read_json(path)
    if not isinstance(data, dict):
        raise ModelUnavailable(f"{path.name} is not a JSON object")
    return data


def read_list(path: Path) -> Sequence[Mapping[str, Any]]:
    """Return a JSON list of objects from a file; raise `ModelUnavailable` naming the file."""
    data = _read_json(path)
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise ModelUnavailable(f"{path.name} is not a JSON list of objects")
    return data


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ModelUnavailable(f"it lacks the file {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise ModelUnavailable(f"{path.name} is not JSON: {error}") from error


def _find_weights(path: Path) -> None:
    if (path / WEIGHTS).is_file():
        return
    if (path / INDEX).is_file():
        parts = read_object(path / INDEX).get("weight_map")
        names = set(parts.values()) if isinstance(parts, dict) else set()
        missing = sorted(name for name in names if not (path / str(name)).is_file())
        if missing or not names:
            raise ModelUnavailable(f"it lacks {missing[0]}, which {INDEX} names" if names else f"{INDEX} names no file")
        return
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickles:
        raise ModelUnavailable(
            f"it has pickled weights only ({pickles[0]}), which can run code when they are read: "
            f"convert them to {WEIGHTS}"
        )
    raise ModelUnavailable(f"it lacks the file {WEIGHTS}")


@contextmanager
def _load_errors() -> Iterator[None]:
    try:
        yield
    except PenstockError:
        raise
    except SafetensorError as error:
        raise ModelUnavailable(f"a safetensors file is damaged: {error}") from error
    except MemoryError as error:
        raise OutOfMemory from error
    except ImportError as error:
        raise ModelUnavailable(f"it needs a library that is not installed: {first_line(error)}") from error
    except Exception as error:  # a wrong config raises errors of any type
        sentence = f"config.json and the weights do not make a network ({type(error).__name__}: {first_line(error)})"
        raise ModelUnavailable(sentence) from error


#: Mappings of the library that list the types of a task.
_MAPPINGS = {
    Task.IMAGE_CLASSIFICATION: "IMAGE_CLASSIFICATION",
    Task.SEMANTIC_SEGMENTATION: "SEMANTIC_SEGMENTATION",
    Task.INSTANCE_SEGMENTATION: "UNIVERSAL_SEGMENTATION",
    Task.OBJECT_DETECTION: "OBJECT_DETECTION",
    Task.DEPTH_ESTIMATION: "DEPTH_ESTIMATION",
    Task.ZERO_SHOT_OBJECT_DETECTION: "ZERO_SHOT_OBJECT_DETECTION",
    Task.MASK_GENERATION: "MASK_GENERATION",
    Task.IMAGE_TEXT_TO_TEXT: "IMAGE_TEXT_TO_TEXT",
    Task.TEXT_CLASSIFICATION: "SEQUENCE_CLASSIFICATION",
    Task.SPEECH_RECOGNITION: "SPEECH_SEQ_2_SEQ",
    Task.AUDIO_CLASSIFICATION: "AUDIO_CLASSIFICATION",
}
#: Model types with one method for embeddings of images and one for texts.
_IMAGES_AND_TEXT = frozenset({"clip", "siglip", "siglip2", "align", "altclip", "chinese_clip", "groupvit"})

#: Tasks whose networks take tokens, or cast their inputs.
_OF_TOKENS = frozenset({Task.IMAGE_TEXT_TO_TEXT, Task.TEXT_CLASSIFICATION, Task.TEXT_EMBEDDING, Task.TEXT_GENERATION})
#: Model types that make a vector for each token.
_MANY_VECTORS = frozenset({"colmodernvbert", "colpali", "colqwen2"})
#: Model types that compare images with texts by the product of their embeddings.
_SIMILARITY = frozenset({"clip", "metaclip_2", "siglip"})
