"""Chats about images: the library's `generate`, which gets the inputs that the library's own processor made.

Features of images are kept: a second question about the same images does not encode them again. They are those of
the library's `get_image_features`; networks without it encode the images of each chat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Runner
from penstock.workers.engine.encoder_cache import EncoderCache, counted, encoding_key, limit_bytes
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.transformers.directory import HubDirectory, library, read_config
from penstock.workers.engine.transformers.generation import generator_of

#: Name of the library's method that encodes the images of a chat.
_METHOD = "get_image_features"
#: Names of its outputs that hold a tensor for each layer.
_OF_LAYERS = frozenset({"hidden_states", "attentions"})

#: The prompt that the calling thread computes, and its counters.
_CHAT: ContextVar[tuple[Prompt, dict[str, int]] | None] = ContextVar("chat", default=None)


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a network's images, by the inputs that they were made of."""

    model: Model
    cache: EncoderCache[Any]

    @contextmanager
    def of(self, prompt: Prompt, counts: dict[str, int]) -> Iterator[None]:
        """Take features from the cache during the block, for the prompt's tenant, and count them."""
        token = _CHAT.set((prompt, counts))
        try:
            yield
        finally:
            _CHAT.reset(token)

    def keep(self, network: Any) -> None:
        """Have the network keep what its encoder makes."""
        encode: Callable[..., Any] | None = getattr(network.base_model, _METHOD, None)
        if encode is not None:
            setattr(network.base_model, _METHOD, self._keeping(encode))

    def _keeping(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(encode)  # the library reads its parameters
        def kept(*inputs: Any, **named: Any) -> Any:
            chat = _CHAT.get()
            if chat is None:
                return encode(*inputs, **named)
            prompt, counts = chat
            try:
                key = encoding_key(self.model, prompt, _plain([inputs, named]))
            except TypeError:  # an argument of a type without a digest
                return encode(*inputs, **named)
            [made] = self.cache.encode([key], lambda _: [_trimmed(encode(*inputs, **named))])
            for name, count in counted([made]).items():
                counts[name] = counts.get(name, 0) + count
            return made.value

        return kept


def load_conversation(directory: HubDirectory) -> Runner:
    """Load a network that answers chats about images."""
    model = directory.model
    device = TorchDevice.of(model)
    check_conversation(directory)
    network = directory.load("AutoModelForImageTextToText", dtype=device.dtype)
    features = Features(model, EncoderCache(limit_bytes(model), size_of=_bytes_of))
    features.keep(network)
    return generator_of(network, model, device, features)


def check_conversation(directory: HubDirectory) -> None:
    """Raise `ModelUnavailable` for a network that cannot answer chats, without reading its weights."""
    config = read_config(directory.model)
    network = library().MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    if network is None or not network.can_generate():
        raise ModelUnavailable(f"the network of the model_type {config.model_type!r} does not make texts")


def _plain(value: Any) -> Any:
    """Return the arguments of an encoder as values that `digest` takes, with the bytes of tensors."""
    if isinstance(value, Tensor):
        return [str(value.dtype), list(value.shape), value.reshape(-1).view(torch.uint8).cpu().numpy()]
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value


def _trimmed(made: Any) -> Any:
    """Return an encoder's outputs without those of its layers, which no network reads behind the encoder."""
    if not isinstance(made, Mapping):
        return made
    return type(made)(**{name: value for name, value in made.items() if name not in _OF_LAYERS})


def _bytes_of(made: Any) -> int:
    """Return the bytes of all tensors that an encoder returned."""
    if isinstance(made, Tensor):
        return made.nbytes
    parts = made.values() if isinstance(made, Mapping) else made if isinstance(made, list | tuple) else ()
    return sum(map(_bytes_of, parts))
