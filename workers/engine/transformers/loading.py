"""Loading of a hub directory, by its task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.multimodal.items import TOWERS
from penstock.workers.engine.base import Runner
from penstock.workers.engine.encoder_cache import limit_bytes
from penstock.workers.engine.transformers.audio import load_audio_classifier
from penstock.workers.engine.transformers.conversation import check_conversation, load_conversation
from penstock.workers.engine.transformers.directory import HubDirectory, library, read_config
from penstock.workers.engine.transformers.images import (
    load_classifier,
    load_image_embedder,
    load_segmenter,
    only_size_of,
)
from penstock.workers.engine.transformers.language import check_language, load_language
from penstock.workers.engine.transformers.messages import check_messages
from penstock.workers.engine.transformers.passes import load_masker, load_word_detector
from penstock.workers.engine.transformers.photos import (
    load_depth_estimator,
    load_detector,
    load_instance_segmenter,
)
from penstock.workers.engine.transformers.pooling import pooling_of
from penstock.workers.engine.transformers.similarity import load_zero_shot_classifier
from penstock.workers.engine.transformers.speech import load_transcriber
from penstock.workers.engine.transformers.supported_types import require_supported
from penstock.workers.engine.transformers.tasks import Task
from penstock.workers.engine.transformers.texts import load_text_classifier, load_text_embedder
from penstock.workers.engine.transformers.towers import load_text_image_embedder
from penstock.workers.engine.weights import naming

#: Mappings of the library to the networks of processors of scenes, whose tiles have one size.
_OF_TILES = {"raster-detection": "MODEL_FOR_OBJECT_DETECTION_MAPPING", "raster-embedding": "MODEL_MAPPING"}
#: Loading functions by task.
LOADERS: Mapping[Task, Callable[[HubDirectory], Runner]] = MappingProxyType(
    {
        Task.IMAGE_CLASSIFICATION: load_classifier,
        Task.SEMANTIC_SEGMENTATION: load_segmenter,
        Task.INSTANCE_SEGMENTATION: load_instance_segmenter,
        Task.OBJECT_DETECTION: load_detector,
        Task.DEPTH_ESTIMATION: load_depth_estimator,
        Task.ZERO_SHOT_CLASSIFICATION: load_zero_shot_classifier,
        Task.ZERO_SHOT_OBJECT_DETECTION: load_word_detector,
        Task.MASK_GENERATION: load_masker,
        Task.IMAGE_EMBEDDING: load_image_embedder,
        Task.IMAGE_TEXT_TO_TEXT: load_conversation,
        Task.TEXT_CLASSIFICATION: load_text_classifier,
        Task.TEXT_EMBEDDING: load_text_embedder,
        Task.TEXT_IMAGE_EMBEDDING: load_text_image_embedder,
        Task.TEXT_GENERATION: load_language,
        Task.SPEECH_RECOGNITION: load_transcriber,
        Task.AUDIO_CLASSIFICATION: load_audio_classifier,
    }
)


def load_transformers(model: Model) -> Runner:
    """Load the model's directory; raise `ModelUnavailable` for missing, damaged or wrong files."""
    with naming(model):
        directory = _directory(model)
        return LOADERS[directory.task](directory)


def import_network(model: Model) -> None:
    """Import the library's classes for a model's network, which takes seconds; loading it reports what is wrong."""
    with suppress(Exception):
        _ = library().MODEL_MAPPING[type(read_config(model))]


def check_transformers(model: Model) -> None:
    """Check the files that `load_transformers` would load, without reading weights; raise `ModelUnavailable`."""
    with naming(model):
        directory = _directory(model)
        if directory.task is Task.IMAGE_TEXT_TO_TEXT:
            check_conversation(directory)
        if directory.task is Task.TEXT_EMBEDDING:
            pooling_of(directory)
        if directory.task is Task.TEXT_IMAGE_EMBEDDING and directory.config["model_type"] not in TOWERS:
            check_messages(directory)
        if directory.task is Task.TEXT_GENERATION:
            check_language(directory)
        if model.processor in _OF_TILES:
            _check_tiles(model)


def _check_tiles(model: Model) -> None:
    """Compare the tiles of scenes with the images that the network takes; raise `ModelUnavailable`."""
    config, options = read_config(model), model.options
    tile_px, patch_px = options.get("tile_px", 512), options.get("patch_px")
    network = getattr(library(), _OF_TILES[model.processor]).get(type(config), None)
    only = None if network is None else only_size_of(network, config)
    if only not in (None, (tile_px, tile_px)):
        sides = " x ".join(map(str, only or ()))
        raise ModelUnavailable(f"the network takes images of {sides} pixels, and options.tile_px is {tile_px}")
    own = getattr(config, "patch_size", None)
    if options.get("pooling") == "patches" and isinstance(own, int) and own != patch_px:
        raise ModelUnavailable(f"the network's patches have {own} pixels, and options.patch_px is {patch_px}")
    bands = len(options.get("bands", ())) * options.get("dates", 1)
    channels = getattr(config, "num_channels", bands)
    if channels != bands:
        raise ModelUnavailable(f"the network takes {channels} channels, and the record has {bands} bands")


def _directory(model: Model) -> HubDirectory:
    """Return the checked directory after checking its type and the option of the encoder cache."""
    directory = HubDirectory.of(model)
    require_supported(directory.task, str(directory.config["model_type"]), model.options)
    limit_bytes(model)
    return directory
