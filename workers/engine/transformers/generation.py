"""Text generation: each step adds one token to every text of the batch.

Each text has its own key-value cache and its own forward pass inside the step, without padding: its tokens do not
depend on the other texts of the batch, on a CPU in float32 bit for bit. The texts of all jobs advance together without
sharing the reading of the weights; vLLM shares it (docs/decisions/0120).
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Continue, Done, Runner, Step
from penstock.workers.engine.encoder_cache import EncoderCache
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, weights_bytes
from penstock.workers.engine.transformers.beginnings import EMBEDS, checked_embeddings, named
from penstock.workers.engine.transformers.directory import library
from penstock.workers.engine.transformers.sampling import Sampling
from penstock.workers.engine.transformers.texts import checked_tokens, max_tokens_of

#: Counters of an output, see `Output.counts`.
Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Opening:
    """Inputs of a text's first step beside its tokens."""

    #: The prompt's images, for the first step.
    images: Any = None
    #: Positions of the tokens, (axes, T), for networks that do not count them.
    positions: Array | None = None

    @property
    def shift(self) -> int | None:
        """The next token's position minus the number of tokens before it; None without positions."""
        return None if self.positions is None else int(self.positions.max()) + 1 - self.positions.shape[1]


class Opener(Protocol):
    """Makes the first step's input for prompts with more than tokens."""

    @property
    def encodings(self) -> EncoderCache[Tensor]:
        """The cache of encoded images."""
        ...

    def admit(self, prompt: Prompt, device: TorchDevice) -> Opening:
        """Return a prompt's inputs beside the tokens, on their way to the device; raise as `Runner.admit` does."""
        ...

    def inputs(self, tokens: Tensor, opening: Opening, device: TorchDevice) -> tuple[dict[str, Any], Counts]:
        """Return the network's inputs for tokens (T,) with their opening, and counters."""
        ...

    def close(self) -> None:
        """Free the device's memory."""
        ...


@dataclass(frozen=True, slots=True)
class TextState:
    """The state of a text. Steps make new states and leave this one valid."""

    prompt: Sent
    sampling: Sampling
    opening: Opening = field(default_factory=Opening)
    #: Keys and values of everything but the last new token; None before the first step.
    cache: Any = None
    new: tuple[int, ...] = ()
    counts: Counts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GenerationRunner(NetworkRunner):
    """A runner that continues texts: prompts have `input_ids`, int64 (T,), and plain data, see `Sampling.of`.

    Without an opener prompts may have `inputs_embeds` instead, float32 (T, D).

    Outputs have `token_ids`, the new ones without the end token, and `finish_reason`: "stop" at an end token, "length"
    after `max_new_tokens`. Partial outputs have the `token_ids` so far.
    """

    vocabulary: int
    max_tokens: int | None
    ends: frozenset[int]
    #: Arguments of the network beside the inputs.
    arguments: dict[str, Any]
    opener: Opener | None = None

    @property
    def encodings(self) -> EncoderCache[Tensor] | None:
        """The cache of encoded images, if the network takes images."""
        return None if self.opener is None else self.opener.encodings

    def bucket(self, prompt: Prompt) -> Hashable:  # noqa: ARG002
        """Return one key for all texts: they advance together."""
        return "texts"

    def admit(self, prompt: Prompt) -> TextState:
        """Return the prompt's tokens, or their embeddings, on their way to the device."""
        embedded = self.network if self.opener is None else None
        given, sampling = checked_prompt(prompt, self.vocabulary, self.max_tokens, embedded)
        opening = Opening() if self.opener is None else self.opener.admit(prompt, self.device)
        return TextState(self.device.send(given), sampling, opening)

    def step(self, states: Sequence[TextState]) -> Sequence[Step]:
        """Choose one more token for every text."""
        with self.device.running(grows=True):
            return [self._advance(state) for state in states]

    def close(self) -> None:
        """Free the device's memory."""
        if self.opener is not None:
            self.opener.close()
        self.device.free(self.network)

    def _advance(self, state: TextState) -> Step:
        cache = library().DynamicCache(config=self.network.config) if state.cache is None else branch(state.cache)
        inputs, counts = self._first(state) if state.cache is None else (self._next(state), state.counts)
        cached = {cache_name(): cache, "use_cache": True}
        logits: Tensor = self.network(**inputs, **cached, **self.arguments).logits
        token = state.sampling.choose(logits[0, -1].float(), len(state.new))
        if token in self.ends:
            return done(state.new, "stop", counts)
        new = (*state.new, token)
        if len(new) == state.sampling.max_new_tokens:
            return done(new, "length", counts)
        # The key-value cache holds the images now.
        opening = replace(state.opening, images=None)
        following = replace(state, opening=opening, cache=cache, new=new, counts=counts)
        return Continue(following, Output({"token_ids": list(new)}, partial=True))

    def _first(self, state: TextState) -> tuple[dict[str, Any], Counts]:
        tokens = self.device.receive(state.prompt)
        if self.opener is None:
            return named(tokens, self.network), {}
        return self.opener.inputs(tokens, state.opening, self.device)

    def _next(self, state: TextState) -> dict[str, Any]:
        device, shift, positions = self.device.device, state.opening.shift, state.opening.positions
        inputs = {"input_ids": torch.tensor(state.new[-1:], device=device)[None]}
        if shift is None or positions is None:
            return inputs
        place = state.cache.get_seq_length() + shift
        return {**inputs, "position_ids": torch.full((len(positions), 1, 1), place, device=device)}


def generator_of(network: Any, model: Model, device: TorchDevice, opener: Opener | None = None) -> Runner:
    """Place a network and return its runner; raise `ModelUnavailable` for a network without a key-value cache."""
    check_cache(network)
    device.place(network)
    text = network.config.get_text_config()
    keeps = "logits_to_keep" in inspect.signature(network.forward).parameters
    return GenerationRunner(
        network,
        device,
        max_batch=model.max_batch,
        memory_bytes=weights_bytes(network),
        vocabulary=text.vocab_size,
        max_tokens=max_tokens_of(text),
        ends=ends_of(network),
        arguments={"logits_to_keep": 1} if keeps else {},
        opener=opener,
    )


def checked_prompt(
    prompt: Prompt, vocabulary: int, max_tokens: int | None, embedded: Any = None
) -> tuple[Array, Sampling]:
    """Return a prompt's checked tokens and sampling; raise as `Runner.admit` does.

    For the network `embedded` the tokens may be embeddings.
    """
    if EMBEDS in prompt.data:
        given = checked_embeddings(prompt.data[EMBEDS], embedded, max_tokens)
    else:
        given = checked_tokens(prompt.data.get("input_ids"), vocabulary, max_tokens)
    sampling = Sampling.of(prompt.data)
    if max_tokens is not None and len(given) + sampling.max_new_tokens > max_tokens:
        raise InvalidInput(
            f"the network's context is {max_tokens} tokens: the prompt has {len(given)} and "
            f"{sampling.max_new_tokens} more are asked for"
        )
    return given, sampling


def check_cache(network: Any) -> None:
    """Raise `ModelUnavailable` for a network without a key-value cache."""
    if not keeps_cache(type(network), network.config):
        raise ModelUnavailable(
            f"{type(network).__name__} keeps no key-value cache of its text, which this runner needs"
        )


def keeps_cache(network: Any, config: Any) -> bool:
    """Return True if a class of networks keeps its whole state in a cache whose layers `branch` can copy."""
    if config.is_encoder_decoder or getattr(network, "_is_stateful", False):
        return False
    if cache_name() not in inspect.signature(network.forward).parameters:  # GPT 1 reads the whole text every time
        return False
    layers = library().DynamicCache(config=config).layers
    # Recurrent and convolutional layers write into their state.
    return not any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


@functools.cache
def cache_name() -> str:
    """Return the name of the networks' argument for a key-value cache, which changed in transformers 5.24."""
    known = inspect.signature(library().GenerationMixin.prepare_inputs_for_generation).parameters
    return "cache" if "cache" in known else "past_key_values"


def done(tokens: Sequence[int], reason: str, counts: Counts = MappingProxyType({})) -> Done:
    """Return the end of a text."""
    return Done(Output({"token_ids": list(tokens), "finish_reason": reason}, counts=counts))


def ends_of(network: Any) -> frozenset[int]:
    """Return the end tokens of `generation_config.json`, else of `config.json`."""
    ends = network.generation_config.eos_token_id
    ends = getattr(network.config.get_text_config(), "eos_token_id", None) if ends is None else ends
    return frozenset([ends] if isinstance(ends, int) else ends or ())


def branch(cache: Any) -> Any:
    """Return a copy of a cache that can grow alone: layers replace their tensors and never write into them."""
    grown = copy.copy(cache)
    grown.layers = [copy.copy(layer) for layer in cache.layers]
    return grown
