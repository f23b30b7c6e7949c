"""Language models: every network that continues a text, or answers one (encoder-decoders such as T5 and BART)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from penstock.errors import ModelUnavailable
from penstock.workers.engine.base import Runner
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.transformers.directory import HubDirectory, library, read_config, require_network
from penstock.workers.engine.transformers.generation import generator_of

#: Class of networks of an encoder and a decoder.
_BOTH = "AutoModelForSeq2SeqLM"
#: Model types that make no text from a text alone, or not token by token -> the reason.
REFUSED: Mapping[str, str] = MappingProxyType({"xmod": "needs a language beside the text, which prompts do not name"})


def load_language(directory: HubDirectory) -> Runner:
    """Load a network that continues or answers texts. With `dtype` bfloat16 its weights are bfloat16, for speed."""
    check_language(directory)
    device = TorchDevice.of(directory.model)
    network = directory.load(_auto_class(read_config(directory.model)), dtype=device.dtype)
    return generator_of(network, directory.model, device)


def check_language(directory: HubDirectory) -> Any:
    """Return the class of a directory's network without reading weights.

    Raises `ModelUnavailable` for a network that does not continue texts token by token.
    """
    config = read_config(directory.model)
    kind = config.model_type
    if kind in REFUSED:
        raise ModelUnavailable(f"the model_type {kind!r} {REFUSED[kind]}")
    if config.is_encoder_decoder and _auto_class(config) != _BOTH:
        raise ModelUnavailable(f"the model_type {kind!r} answers something other than texts")
    found = _networks(_auto_class(config)).get(type(config), None)
    if found is None or not found.can_generate():
        raise ModelUnavailable(f"the network of the model_type {kind!r} does not make texts")
    if not config.is_encoder_decoder and getattr(config, "is_decoder", True) is False and kind in _encoders():
        raise ModelUnavailable(f"its config.json lacks `is_decoder`: as it is, {found.__name__} fills gaps of a text")
    _require_start(directory, config)
    require_network(found, config)
    return found


def _auto_class(config: Any) -> str:
    both = config.is_encoder_decoder and type(config) in _networks(_BOTH)
    return _BOTH if both else "AutoModelForCausalLM"


def _networks(auto_class: str) -> Any:
    """Return the library's networks by the class of their config."""
    both = auto_class == _BOTH
    return library().MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if both else library().MODEL_FOR_CAUSAL_LM_MAPPING


def _encoders() -> Any:
    from transformers.models.auto import modeling_auto

    return modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _require_start(directory: HubDirectory, config: Any) -> None:
    """Raise `ModelUnavailable` for an encoder-decoder whose answers have no first token."""
    if not config.is_encoder_decoder:
        return
    settings = library().GenerationConfig.from_model_config(config)
    if (directory.path / "generation_config.json").is_file():
        settings = library().GenerationConfig.from_pretrained(directory.path, local_files_only=True)
    starts = (getattr(settings, "decoder_start_token_id", None), getattr(settings, "bos_token_id", None))
    if starts == (None, None):
        raise ModelUnavailable("its config.json names no `decoder_start_token_id`, the first token of answers")
