"""Loading a hub directory for the task it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.workers.engine.base import Runner
from penstock.workers.engine.encodings import limit_bytes
from penstock.workers.engine.transformers.conversation import load_conversation
from penstock.workers.engine.transformers.directory import HubDirectory, library, text_config
from penstock.workers.engine.transformers.generation import load_generator
from penstock.workers.engine.transformers.images import load_classifier, load_image_embedder, load_segmenter
from penstock.workers.engine.transformers.likeness import load_zero_shot_classifier
from penstock.workers.engine.transformers.photos import (
    load_depth_estimator,
    load_detector,
    load_instance_segmenter,
)
from penstock.workers.engine.transformers.sounds import load_audio_classifier
from penstock.workers.engine.transformers.speech import load_transcriber
from penstock.workers.engine.transformers.tasks import Task
from penstock.workers.engine.transformers.texts import load_text_embedder

#: How each task's network is loaded.
LOADERS: Mapping[Task, Callable[[HubDirectory], Runner]] = MappingProxyType(
    {
        Task.IMAGE_CLASSIFICATION: load_classifier,
        Task.SEMANTIC_SEGMENTATION: load_segmenter,
        Task.INSTANCE_SEGMENTATION: load_instance_segmenter,
        Task.OBJECT_DETECTION: load_detector,
        Task.DEPTH_ESTIMATION: load_depth_estimator,
        Task.ZERO_SHOT_CLASSIFICATION: load_zero_shot_classifier,
        Task.IMAGE_EMBEDDING: load_image_embedder,
        Task.IMAGE_TEXT_TO_TEXT: load_conversation,
        Task.TEXT_EMBEDDING: load_text_embedder,
        Task.TEXT_GENERATION: load_generator,
        Task.SPEECH_RECOGNITION: load_transcriber,
        Task.AUDIO_CLASSIFICATION: load_audio_classifier,
    }
)


def load_transformers(model: Model) -> Runner:
    """Load the model's directory; raise `ModelUnavailable` naming what is missing, damaged or does not fit."""
    with _about(model):
        directory = _directory(model)
        return _load_continuous(directory) if is_continuous(model) else LOADERS[directory.task](directory)


def check_transformers(model: Model) -> None:
    """Look at what `load_transformers` would load, without reading any weights; raise `ModelUnavailable`."""
    with _about(model):
        _directory(model)


def _directory(model: Model) -> HubDirectory:
    """Look at the directory and at how its texts are to be batched."""
    directory = HubDirectory.of(model)
    limit_bytes(model)
    if is_continuous(model) and directory.task != Task.TEXT_GENERATION:
        raise ModelUnavailable(f"`options.batching` is for the task {Task.TEXT_GENERATION!s}, not {directory.task!s}")
    return directory


def is_continuous(model: Model) -> bool:
    """Return whether a model's texts share passes; raise `ModelUnavailable` for options that say neither."""
    batching = model.options.get("batching")
    if batching not in (None, "continuous"):
        raise ModelUnavailable(f"`options.batching` is 'continuous' or left out, not {batching!r}")
    tokens = model.options.get("cache_tokens")
    if tokens is not None and (type(tokens) is not int or tokens < 1):
        raise ModelUnavailable(f"`options.cache_tokens` is a number of tokens, not {tokens!r}")
    return batching is not None


def cache_bytes(model: Model) -> int:
    """Return what the cache of a model's texts will take, 0 where they share no passes; raise `ModelUnavailable`."""
    if not is_continuous(model):
        return 0
    with _library_since():
        from penstock.workers.engine.transformers.continuous import cache_bytes_of
    config = text_config(Path(model.source))
    try:
        return cache_bytes_of(model, config)
    except (AttributeError, ValueError) as error:  # a network without heads, or whose layers have no pages
        raise ModelUnavailable(f"config.json does not say how large a cache is ({error})") from error


def _load_continuous(directory: HubDirectory) -> Runner:
    """Load a network whose texts share passes."""
    with _library_since():
        from penstock.workers.engine.transformers.continuous import load_continuous
    return load_continuous(directory)


@contextmanager
def _library_since() -> Iterator[None]:
    """Import inside what is made of parts of the library that older versions lack."""
    try:
        yield
    except ImportError as error:
        installed = library().__version__
        raise ModelUnavailable(
            f"`options.batching` needs transformers as it is since 5.23, and {installed} is installed: {error}"
        ) from error


@contextmanager
def _about(model: Model) -> Iterator[None]:
    """Begin what is wrong with a directory with the model's name."""
    try:
        yield
    except ModelUnavailable as error:
        if repr(model.name) in error.detail:
            raise
        raise ModelUnavailable(f"model {model.name!r} cannot be loaded: {error.detail}") from error
