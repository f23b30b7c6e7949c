"""The processors of transformers for images and text, loaded without torchvision, network and remote code.

Importing the library takes seconds and hundreds of megabytes, so the fork server imports `PRELOAD` once for all models
(`docs/decisions/0073-general-multimodal.md`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from penstock.errors import InvalidInput, ModelUnavailable, PenstockError, first_line
from penstock.models import Model
from penstock.processors.base import Array
from penstock.processors.directory import read_config

#: Modules and names that processors of all models need: the fork server imports them.
PRELOAD = ("torch", *(f"transformers:Auto{part}" for part in ("Config", "ImageProcessor", "Processor", "Tokenizer")))
#: Arguments of every loading function of the library.
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
#: Attribute of the class that replaces a video processor if torchvision is missing.
REFUSES = "refuses_videos"
#: Files whose `auto_map` names code of the repository.
_FILES = ("processor_config.json", "preprocessor_config.json", "config.json")


def library() -> Any:
    """Import transformers, quiet and offline; raise `ModelUnavailable` if it is not installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError as error:
        raise ModelUnavailable(
            f"it needs transformers where its processor runs: pip install 'penstock[transformers]' ({error})"
        ) from error
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


def load_processor(model: Model) -> Any:
    """Return the library's processor of a model's directory; raise `ModelUnavailable` with the reason.

    Its parts are loaded one by one, because a processor of images and videos would need torchvision for its videos.
    """
    kind = str(read_config(model).get("model_type"))
    with _load_errors(model, kind):
        cls = _processor_class(model, kind)
        if "image_processor" in cls.get_attributes():
            _require_backend(model, kind)
        settings, rest = cls.get_processor_dict(model.source, **_LOCAL)
        settings = {**_older_settings(model, kind), **settings}
        parts = [_part(model, name) for name in cls.get_attributes()]
        return _accepting(cls).from_args_and_dict(parts, settings, **_without(rest, _LOCAL))


def takes_videos(processor: Any) -> bool:
    """Return True if a processor of the library takes videos, and torchvision and PyAV are installed."""
    part = getattr(processor, "video_processor", None)
    return part is not None and not hasattr(type(part), REFUSES) and find_spec("av") is not None


def video_metadata(**fields: Any) -> Any:
    """Return the library's description of a video."""
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(**fields)


def as_array(value: Any) -> Array:
    """Return a processor's value as an array; raise `ValueError` for one that is none."""
    array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"it makes a value of the type {type(value).__name__}, which is no array")
    return np.ascontiguousarray(array)


def as_tensors(**arrays: Array) -> Any:
    """Return arrays as the library's tensors by name, as a network answers them."""
    return library().BatchFeature(arrays, tensor_type="pt")


@contextmanager
def rejecting(what: str) -> Iterator[None]:
    """Translate a processor's errors for a job's input to `InvalidInput`."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"The model's processor rejects these {what}: {first_line(error)}") from error


@contextmanager
def trying(model: Model, processor: Any) -> Iterator[None]:
    """Translate the errors of an example, which the library raises as exceptions of any type."""
    try:
        yield
    except Exception as error:
        reason = first_line(error) or type(error).__name__
        raise ModelUnavailable(
            f"model {model.name!r}: {type(processor).__name__} does not prepare an example: {reason}"
        ) from error


def is_encoder_decoder(model: Model) -> bool:
    """Return True for a network whose answer does not continue the prompt's tokens."""
    with _load_errors(model, "its"):
        return bool(library().AutoConfig.from_pretrained(model.source, **_LOCAL).is_encoder_decoder)


def text_length(model: Model) -> int | None:
    """Return the places of the network's text tower, with the library's default; None if it has no maximum."""
    with _load_errors(model, "its"):
        config = library().AutoConfig.from_pretrained(model.source, **_LOCAL).get_text_config()
        places: int | None = getattr(config, "max_position_embeddings", None)
        shifted = config.model_type in _SHIFTED
        return places - (config.pad_token_id + 1) if shifted and places is not None else places


#: Types of text towers whose positions begin after the padding token's id, which leaves fewer positions.
_SHIFTED = frozenset({"altclip_text_model"})


def _older_settings(model: Model, kind: str) -> dict[str, Any]:
    """Return the settings that directories of LLaVA leave to `config.json` if they are older than transformers 4.46."""
    if kind not in {"llava", "llava_next"}:
        return {}
    config = library().AutoConfig.from_pretrained(model.source, **_LOCAL)
    return {
        "patch_size": config.vision_config.patch_size,
        "vision_feature_select_strategy": config.vision_feature_select_strategy,
        "num_additional_image_tokens": int(config.vision_config.model_type == "clip_vision_model"),
    }


def _processor_class(model: Model, kind: str) -> Any:
    """Return the class that the directory's files name, else the class of the `model_type`."""
    from transformers.models.auto import processing_auto as known

    named = [read_config(model, name).get("processor_class") for name in (*_FILES, "tokenizer_config.json")]
    wanted = next((name for name in named if name), None) or known.PROCESSOR_MAPPING_NAMES.get(kind)  # type: ignore[attr-defined]
    found = None if wanted is None else known.processor_class_from_name(str(wanted))
    if found is not None and hasattr(found, "get_attributes"):
        return found
    if any("auto_map" in read_config(model, name) for name in _FILES):
        raise ModelUnavailable(
            f"the model_type {kind!r} needs code of its own directory (`auto_map`), which Penstock does not run"
        )
    raise ModelUnavailable(
        f"transformers {library().__version__} has no processor of images and text for the model_type {kind!r}"
    )


def _part(model: Model, name: str) -> Any:
    """Return one part of a processor: a tokenizer, an image processor, ... by the name of the argument."""
    auto = library()
    if "tokenizer" in name:
        own = Path(model.source) / name  # further tokenizers, such as `qformer_tokenizer`, have a folder each
        return auto.AutoTokenizer.from_pretrained(own if own.is_dir() else model.source, **_LOCAL)
    if "video" in name and find_spec("torchvision") is None:
        return _no_videos()
    if "image" in name:
        return _image_processor(model)
    if "video" in name:
        return auto.AutoVideoProcessor.from_pretrained(model.source, **_LOCAL)
    return auto.AutoFeatureExtractor.from_pretrained(model.source, **_LOCAL)


def _image_processor(model: Model) -> Any:
    """Return the image processor of the directory, or that of the option `preprocessor` in the place of its file."""
    given, auto = model.options.get("preprocessor"), library().AutoImageProcessor
    if not given:
        return auto.from_pretrained(model.source, **_LOCAL)
    with TemporaryDirectory() as folder:
        for name, data in (("preprocessor_config.json", given), ("config.json", read_config(model))):
            Path(folder, name).write_text(json.dumps(data))
        return auto.from_pretrained(folder, **_LOCAL)


def _require_backend(model: Model, kind: str) -> None:
    """Raise `ModelUnavailable` for images that only torchvision can prepare, where it is not installed."""
    from transformers.models.auto import image_processing_auto

    all_known: Mapping[str, Mapping[str, str]] = image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES  # type: ignore[attr-defined]
    if find_spec("torchvision") is not None:
        return
    nested = read_config(model, "processor_config.json").get("image_processor") or {}
    named = {**nested, **read_config(model, "preprocessor_config.json")}.get("image_processor_type")
    backends = next(
        (known for known in all_known.values() if named and _base(named) in map(_base, known.values())), None
    )
    backends = all_known.get(kind) if backends is None else backends
    if backends and "pil" not in backends:
        raise ModelUnavailable(_needs_torchvision(kind))


def _needs_torchvision(kind: str) -> str:
    return (
        f"the images of the model_type {kind!r} are prepared by torchvision alone, which is not installed here: "
        "`pip install torchvision` in the build (CPU or CUDA) of the installed torch"
    )


def _base(name: str) -> str:
    return name.removesuffix("Fast").removesuffix("Pil")


def _no_videos() -> Any:
    """Return a video processor that refuses all videos, in the place of one that needs torchvision.

    Its settings are None: some processors read them for chats without videos, too.
    """
    from transformers.video_processing_utils import VideoProcessorMixin

    def refuse(*_: Any, **__: Any) -> Any:
        raise ValueError("videos need torchvision")

    def setting(self: Any, name: str) -> Any:  # noqa: ARG001
        if name.startswith("__"):
            raise AttributeError(name)

    parts = {
        "__init__": lambda self: None,  # noqa: ARG005
        "__call__": refuse,
        "__getattr__": setting,
        "model_input_names": [],
        REFUSES: True,
    }
    return type("NoVideos", (VideoProcessorMixin,), parts)()


def _accepting(cls: Any) -> Any:
    """Return a processor's class that takes the processor of `_no_videos`."""

    def check(self: Any, name: str, part: Any) -> Any:
        return type(part) if "video" in name else cls.check_argument_for_proper_class(self, name, part)

    return type(cls.__name__, (cls,), {"check_argument_for_proper_class": check, "__module__": cls.__module__})


def _without(given: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


@contextmanager
def _load_errors(model: Model, kind: str) -> Iterator[None]:
    """Translate the errors of the library, which wrong files raise as exceptions of any type."""
    try:
        library()
        yield
    except PenstockError as error:
        detail = str(error)
        begun = detail.startswith("model ")
        raise ModelUnavailable(detail if begun else f"model {model.name!r}: {detail}") from error
    except ImportError as error:
        if "torchvision" in str(error).lower():
            raise ModelUnavailable(f"model {model.name!r}: {_needs_torchvision(kind)}") from error
        raise ModelUnavailable(
            f"model {model.name!r}: the processor of the model_type {kind!r} needs a package that is not installed: "
            f"{first_line(error)}"
        ) from error
    except Exception as error:
        raise ModelUnavailable(
            f"model {model.name!r}: its files do not make the processor of the model_type {kind!r} "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error
