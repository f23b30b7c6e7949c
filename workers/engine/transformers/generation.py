"""Text generation: each step adds one token to every text of the batch.

Each text is a call of the library's `generate` (see `stepwise`), with its own key-value cache and its own forward pass
inside the step, without padding: its tokens do not depend on the other texts of the batch, on a CPU in float32 bit for
bit. A batch padded by the library would change them, and its texts would begin and end together. The texts of all jobs
advance together without sharing the reading of the weights; vLLM shares it (docs/decisions/0120).
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Runner
from penstock.workers.engine.encoder_cache import EncoderCache
from penstock.workers.engine.resumable import Paused, Resumable
from penstock.workers.engine.torch.device import Sent, TorchDevice, weights_bytes
from penstock.workers.engine.transformers.beginnings import EMBEDS, checked_embeddings
from penstock.workers.engine.transformers.inputs import IDS, MASK, network_inputs, with_lists
from penstock.workers.engine.transformers.sampling import Sampling
from penstock.workers.engine.transformers.stepwise import Held, HeldState, StepwiseRunner, begun
from penstock.workers.engine.transformers.texts import checked_tokens, max_tokens_of


class Encodings(Protocol):
    """The encodings of images that earlier prompts of a tenant had."""

    @property
    def cache(self) -> EncoderCache[Any]:
        """The cache of encodings."""
        ...

    def of(self, prompt: Prompt, counts: dict[str, int]) -> AbstractContextManager[None]:
        """Use the encodings for a prompt in the block, and count them."""
        ...


@dataclass(slots=True)
class Text(Held):
    """A text under way."""

    #: Tokens (T,), embeddings (T, D), or None where `inputs` have them.
    given: Sent | None
    sampling: Sampling
    #: The prompt without its data.
    prompt: Prompt
    #: Inputs beside the tokens, by the library's names.
    inputs: Mapping[str, Sent]
    new: list[int] = field(default_factory=list)
    #: Counters of the output, see `Output.counts`.
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GenerationRunner(StepwiseRunner[Text]):
    """A runner that continues texts: prompts have `input_ids`, int64 (T,), and plain data, see `Sampling.of`.

    Further inputs of the network are arrays `inputs.NAME` with their batch axis; numbered ones (`inputs.NAME.0`) make a
    list. Instead of tokens prompts may have `inputs_embeds`, float32 (T, D).

    Outputs have `token_ids`, the new ones without the end token, and `finish_reason`: "stop" at an end token, "length"
    after `max_new_tokens`. Partial outputs have the `token_ids` so far.
    """

    vocabulary: int
    max_tokens: int | None
    ends: frozenset[int]
    #: Names of inputs beside the tokens that each prompt must have.
    needed: tuple[str, ...] = ()
    takes_mask: bool = True
    images: Encodings | None = None

    @property
    def encodings(self) -> EncoderCache[Any] | None:
        """The cache of encoded images, if the network takes images."""
        return None if self.images is None else self.images.cache

    def bucket(self, prompt: Prompt) -> Hashable:  # noqa: ARG002
        """Return one key for all texts: they advance together."""
        return "texts"

    def admit(self, prompt: Prompt) -> HeldState[Text]:
        """Return the prompt's inputs on their way to the device."""
        arrays = network_inputs(prompt)
        given = self._given(prompt, arrays)
        sampling = Sampling.of(prompt.data)
        if given is not None:
            self._require_room(len(given), sampling.max_new_tokens)
        self._require_inputs(arrays)
        inputs = {name: self.device.send(array) for name, array in arrays.items()}
        sent = None if given is None else self.device.send(given)
        return HeldState(Text(sent, sampling, replace(prompt, data={}), inputs))

    def close(self) -> None:
        """Free the device's memory."""
        StepwiseRunner.close(self)
        if self.images is not None:
            self.images.cache.clear()

    def advance(self, held: Text) -> Output:
        """Choose one more token; return all so far."""
        held.generation = held.generation or self._begun(held)
        came = held.generation.resume()
        return self._output(held, came.value if isinstance(came, Paused) else None)

    def _given(self, prompt: Prompt, arrays: Mapping[str, Array]) -> Array | None:
        """Return the checked tokens or embeddings; None for a prompt of other inputs alone."""
        if EMBEDS in prompt.data:
            return checked_embeddings(prompt.data[EMBEDS], self.network, self.max_tokens)
        ids = prompt.data.get(IDS)
        if arrays and isinstance(ids, np.ndarray) and not len(ids):
            return None
        return checked_tokens(ids, self.vocabulary, self.max_tokens)

    def _require_room(self, given: int, new: int) -> None:
        taken = max(given, new) if self.network.config.is_encoder_decoder else given + new
        if self.max_tokens is not None and taken > self.max_tokens:
            raise InvalidInput(
                f"the network's context is {self.max_tokens} tokens: the prompt has {given} and {new} more "
                "are asked for"
            )

    def _require_inputs(self, arrays: Mapping[str, Array]) -> None:
        """Raise `InvalidInput` for a prompt without an input that the network always needs, such as an image."""
        lacking = [name for name in self.needed if name not in arrays]
        if lacking:
            raise InvalidInput(f"the network answers prompts with an image alone: this one lacks {', '.join(lacking)}")

    def _output(self, text: Text, token: int | None) -> Output:
        if token is None and not text.new:
            raise ProcessorFailed(f"{type(self.network).__name__} does not make tokens one by one")
        ended = token is None or token in self.ends
        if token is None:  # a part of the network has an end token of its own
            text.new.pop()
        elif not ended:
            text.new.append(token)
        if ended or len(text.new) == text.sampling.max_new_tokens:
            text.close()
            text.given, text.inputs = None, {}
            reason = "stop" if ended else "length"
            return Output({"token_ids": list(text.new), "finish_reason": reason}, counts=text.counts)
        return Output({"token_ids": list(text.new)}, partial=True)

    def _begun(self, text: Text) -> Resumable:
        """Return a call of `generate` that has chosen the tokens so far."""
        text.counts.clear()
        around = nullcontext() if self.images is None else self.images.of(text.prompt, text.counts)
        generation = begun(self.network, self.device, self._inputs(text), text.sampling, text.new, around)
        self.generations.add(generation)
        return generation

    def _inputs(self, text: Text) -> dict[str, Any]:
        inputs = with_lists({name: self._received(sent) for name, sent in text.inputs.items()})
        if text.given is None:
            return inputs
        given = self.device.receive(text.given)
        if given.is_floating_point():
            inputs[EMBEDS] = given[None].to(self.network.get_input_embeddings().weight.dtype)
        else:
            inputs[IDS] = given[None]
        # Without a mask the library would leave out tokens of padding that a user wrote.
        if not text.inputs and self.takes_mask:
            inputs[MASK] = torch.ones((1, len(given)), dtype=torch.long, device=given.device)
        return inputs

    def _received(self, sent: Sent) -> Tensor:
        tensor = self.device.receive(sent)
        return tensor.to(self.network.dtype) if tensor.is_floating_point() else tensor


def generator_of(network: Any, model: Model, device: TorchDevice, images: Encodings | None = None) -> Runner:
    """Place a network that the library can generate with, and return its runner."""
    device.place(network)
    text = network.config.get_text_config()
    return GenerationRunner(
        network,
        device,
        max_batch=model.max_batch,
        memory_bytes=weights_bytes(network),
        vocabulary=text.vocab_size,
        max_tokens=max_tokens_of(text),
        ends=ends_of(network),
        needed=_needed(network),
        takes_mask=MASK in inspect.signature(network.forward).parameters,
        images=images,
    )


def _needed(network: Any) -> tuple[str, ...]:
    """Return the parameters of a network's `generate` without a default, but for the tokens."""
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = inspect.signature(network.generate).parameters.values()
    return tuple(one.name for one in known if one.default is one.empty and one.kind in plain and one.name != IDS)


def ends_of(network: Any) -> frozenset[int]:
    """Return the end tokens of `generation_config.json`, else of `config.json`."""
    ends = network.generation_config.eos_token_id
    ends = getattr(network.config.get_text_config(), "eos_token_id", None) if ends is None else ends
    return frozenset([ends] if isinstance(ends, int) else ends or ())
