"""Chats by the library's own `generate`: the general way, for every network without a shape in `conversation.py`.

`generate` prepares a prompt (encoder, cache, positions, processors of logits) and hands it over before its own loop
(`custom_generate`). Each step then makes one token by the same two methods as the library's loop, so that other
models run between the steps, the text is streamed, and a job may end at any token.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed, first_line
from penstock.models import Model
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Continue, Runner, Step
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, weights_bytes
from penstock.workers.engine.transformers.beginnings import EMBEDS
from penstock.workers.engine.transformers.directory import HubDirectory, library, read_config
from penstock.workers.engine.transformers.generation import done
from penstock.workers.engine.transformers.sampling import Sampling
from penstock.workers.engine.transformers.texts import checked_tokens, max_tokens_of

#: Beginning of the names of inputs in a prompt, before the library's names.
PREFIX = "inputs."
IDS = "input_ids"


@dataclass(slots=True)
class Opened:
    """A prompt as `generate` prepared it, and what its passes changed since."""

    #: The network that continues the text: a part of the whole network for some types.
    network: Any
    #: Changes scores of tokens, as the model's `generation_config.json` wants.
    processors: Any
    ends: frozenset[int]
    #: Token ids (1, T), and arguments of the network, for the next pass.
    ids: Tensor
    arguments: dict[str, Any]
    #: True after the first pass.
    begun: bool = False

    def append(self, token: int) -> None:
        """Add a token to the text."""
        self.ids = torch.cat([self.ids, torch.tensor([[token]], device=self.ids.device)], dim=1)


@dataclass(slots=True)
class Chat:
    """A chat under way. Its cache grows in place, so it advances only once from each length."""

    inputs: Mapping[str, Sent]
    sampling: Sampling
    #: The number of steps made so far, and the last of them.
    made: int = 0
    last: Step | None = None
    new: list[int] = field(default_factory=list)
    opened: Opened | None = None


@dataclass(frozen=True, slots=True)
class ChatState:
    """A chat after a number of steps."""

    chat: Chat
    at: int = 0


class _Captured(BaseException):
    """Carries what `generate` prepared out of it."""

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.opened = opened


@dataclass(frozen=True, slots=True)
class GeneralRunner(NetworkRunner):
    """A runner of chats with any inputs: prompts have `input_ids`, int64 (T,), and plain data, see `Sampling.of`.

    Further inputs of the network are arrays `inputs.NAME` with their batch axis; numbered ones (`inputs.NAME.0`) make a
    list. Outputs are those of `GenerationRunner`. Prompts of a batch advance one after the other.
    """

    vocabulary: int
    max_tokens: int | None

    def bucket(self, prompt: Prompt) -> Hashable:  # noqa: ARG002
        """Return one key for all chats."""
        return "chats"

    def admit(self, prompt: Prompt) -> ChatState:
        """Return the prompt's inputs on their way to the device."""
        if EMBEDS in prompt.data:
            raise InvalidInput(f"{type(self.network).__name__} takes no embeddings instead of a prompt's tokens")
        arrays = network_inputs(prompt)
        ids, sampling = prompt.data.get(IDS), Sampling.of(prompt.data)
        if not isinstance(ids, np.ndarray) or len(ids) or not arrays:
            ids = checked_tokens(ids, self.vocabulary, self.max_tokens)
            arrays[IDS] = ids[None]
            self._require_room(len(ids), sampling.max_new_tokens)
        self._require_inputs(arrays)
        return ChatState(Chat({name: self.device.send(array) for name, array in arrays.items()}, sampling))

    def step(self, states: Sequence[ChatState]) -> Sequence[Step]:
        """Choose one more token for every chat."""
        with self.device.running(grows=True):
            return [self._advance(state) for state in states]

    def _require_room(self, given: int, new: int) -> None:
        taken = max(given, new) if self.network.config.is_encoder_decoder else given + new
        if self.max_tokens is not None and taken > self.max_tokens:
            raise InvalidInput(
                f"the network's context is {self.max_tokens} tokens: the prompt has {given}, and {new} more "
                "are asked for"
            )

    def _require_inputs(self, given: Mapping[str, Array]) -> None:
        """Raise `InvalidInput` for a prompt without an input that the network always needs, such as an image."""
        needed = inspect.signature(self.network.generate).parameters.values()
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        lacking = [
            one.name for one in needed if one.default is one.empty and one.kind in plain and one.name not in given
        ]
        if lacking:
            raise InvalidInput(f"the network answers prompts with an image alone: this one lacks {', '.join(lacking)}")

    def _advance(self, state: ChatState) -> Step:
        """Return the step of a state; the one made before if the engine repeats its latest step after an error."""
        chat = state.chat
        if chat.last is not None and state.at < chat.made:
            return chat.last
        try:
            opened = chat.opened or self._reopened(chat)
            step = self._chosen(chat, opened, self._scores(opened))
        except BaseException:
            chat.opened = None  # the cache may be half written: the next step begins anew
            raise
        chat.made, chat.last = chat.made + 1, step
        return step

    def _chosen(self, chat: Chat, opened: Opened, scores: Tensor) -> Step:
        token = chat.sampling.choose(scores, len(chat.new))
        if token in opened.ends:
            return _ended(chat, "stop")
        opened.append(token)
        chat.new.append(token)
        if len(chat.new) == chat.sampling.max_new_tokens:
            return _ended(chat, "length")
        return Continue(ChatState(chat, len(chat.new)), Output({"token_ids": list(chat.new)}, partial=True))

    def _reopened(self, chat: Chat) -> Opened:
        """Prepare a prompt, and repeat the passes of the tokens that were chosen before."""
        inputs = _with_lists({name: self._received(sent) for name, sent in chat.inputs.items()})
        opened = self._captured(inputs, chat.sampling.max_new_tokens)
        for token in chat.new:
            self._scores(opened)
            opened.append(token)
        chat.opened = opened
        return opened

    def _captured(self, inputs: dict[str, Any], new: int) -> Opened:
        try:
            self.network.generate(
                **inputs, custom_generate=_capture, max_new_tokens=new, do_sample=False, num_beams=1,
                return_dict_in_generate=False,
            )  # fmt: skip
        except _Captured as found:
            return found.opened
        except ValueError as error:
            raise InvalidInput(f"the network rejects this prompt: {first_line(error)}") from error
        raise ProcessorFailed(f"{type(self.network).__name__} does not make tokens one by one")

    def _scores(self, opened: Opened) -> Tensor:
        """Run the network for the last tokens; return the scores of the next, float32 (vocabulary,)."""
        network, arguments = opened.network, opened.arguments
        slices = opened.begun and arguments.get("use_cache", True)
        given = network.prepare_inputs_for_generation(
            opened.ids, next_sequence_length=1 if slices else None, is_first_iteration=not opened.begun, **arguments
        )
        try:
            outputs = network(**given, return_dict=True)
        except ValueError as error:
            raise InvalidInput(f"the network rejects this prompt: {first_line(error)}") from error
        # As loops of the library do, its own and those of `custom_generate`.
        opened.arguments = network._update_model_kwargs_for_generation(
            outputs, arguments, is_encoder_decoder=network.config.is_encoder_decoder
        )
        opened.begun = True
        scores: Tensor = opened.processors(opened.ids, outputs.logits[:, -1].float())
        return scores[0]

    def _received(self, sent: Sent) -> Tensor:
        tensor = self.device.receive(sent)
        return tensor.to(self.network.dtype) if tensor.is_floating_point() else tensor


def load_general(directory: HubDirectory, device: TorchDevice) -> Runner:
    """Load a network of images and text that the library can generate with."""
    check_general(read_config(directory.model))
    return general_of(directory.load("AutoModelForImageTextToText", dtype=device.dtype), directory.model, device)


def general_of(network: Any, model: Model, device: TorchDevice) -> Runner:
    """Place a network that the library can generate with, and return its runner."""
    device.place(network)
    text = network.config.get_text_config()
    return GeneralRunner(
        network,
        device,
        max_batch=model.max_batch,
        memory_bytes=weights_bytes(network),
        vocabulary=text.vocab_size,
        max_tokens=max_tokens_of(text),
    )


def check_general(config: Any) -> None:
    """Raise `ModelUnavailable` for a network that does not make a text token by token."""
    network = library().MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    if network is None or not network.can_generate():
        raise ModelUnavailable(f"the network of the model_type {config.model_type!r} does not make texts")


def _capture(
    network: Any, input_ids: Tensor, logits_processor: Any, generation_config: Any = None, **arguments: Any
) -> None:
    """Stand in the place of the library's loop, and leave `generate` with all that it prepared."""
    given = {name: value for name, value in arguments.items() if name not in ("stopping_criteria", "synced_gpus")}
    ends = generation_config.eos_token_id
    known = frozenset([ends] if isinstance(ends, int) else ends or ())
    raise _Captured(Opened(network, logits_processor, known, input_ids, given))


def _ended(chat: Chat, reason: str) -> Step:
    """Return the end of a chat, whose cache and inputs are not needed any more."""
    chat.opened, chat.inputs = None, {}
    return done(chat.new, reason)


def network_inputs(prompt: Prompt) -> dict[str, Array]:
    """Return a prompt's `inputs.NAME` by the library's names; raise `ProcessorFailed` for one that is no array."""
    given = ((name, value) for name, value in prompt.data.items() if name.startswith(PREFIX))
    return {name.removeprefix(PREFIX): _checked(name, value) for name, value in given}


def _checked(name: str, value: Any) -> Array:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise ProcessorFailed(f"the network takes `{name}` as an array of numbers")
    return value


def _with_lists(inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the inputs with numbered ones (`name.0`, `name.1`) as lists."""
    made: dict[str, Any] = {}
    for name, value in inputs.items():
        base, _, number = name.partition(".")
        if number:
            made.setdefault(base, []).append(value)
        else:
            made[name] = value
    return made
