"""Networks of texts: an embedding, or scores of labels. Texts of similar lengths share a batch, padded and masked.

Whatever is as long as a text is padded at its end, and all else is joined along the first axis, as the library's own
processors join it. Types whose answers change by that run one by one (`supported_types.json`).

On a CPU in float32 a text alone gets the same bits every time; other texts of its batch change the last bits only (they
are masked, but sums are taken in another order).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import InvalidInput, ProcessorFailed, first_line
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Done, Runner
from penstock.workers.engine.output_cache import with_output_cache
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.inputs import IDS, MASK
from penstock.workers.engine.transformers.pooling import pooling_of
from penstock.workers.engine.transformers.supported_types import ALONE, BATCHED, ways

#: Texts whose lengths are equal when rounded up to a multiple of this share a batch.
LENGTH_STEP = 32

#: Model types whose positions begin after the padding token's id, which leaves fewer positions.
_SHIFTED_POSITIONS = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "data2vec-text", "roberta-prelayernorm"}
)


#: Returns a prompt's inputs by the network's names, `input_ids` among them, each with a batch axis of 1, and the number
#: of tokens at the beginning that do not count in the pooling. Raises `InvalidInput` and `ProcessorFailed`.
Read = Callable[[Prompt], tuple[Mapping[str, Array], int]]
#: Makes the name and the arrays of outputs from a network, its inputs, and the mask of the tokens that count.
Answer = Callable[[Any, Mapping[str, Tensor], Tensor], tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class SentText:
    """A text on its way to the device."""

    inputs: Mapping[str, Sent]
    #: Names of the inputs with a value for each token.
    of_tokens: frozenset[str]
    skipped: int


@dataclass(frozen=True, slots=True)
class TextRunner(NetworkRunner):
    """A network of texts; the loading functions describe its prompts and outputs."""

    read: Read
    key: Callable[[Prompt], Hashable]
    answer: Answer
    #: Token of the padding; None: padding would change the answers, and the network takes one text at a time.
    padding: int | None
    #: False for networks without a mask of attention.
    takes_mask: bool = True

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the rounded length, and what else texts of a batch have in common."""
        return self.key(prompt)

    def admit(self, prompt: Prompt) -> SentText:
        """Return the inputs on their way to the device."""
        arrays, skipped = self.read(prompt)
        return SentText({name: self.device.send(one) for name, one in arrays.items()}, of_tokens(arrays), skipped)

    def step(self, states: Sequence[SentText]) -> Sequence[Done]:
        """Run the network once; without a token for padding once per text."""
        with self.device.running():
            groups = [states] if self.padding is not None else [[state] for state in states]
            return [done for group in groups for done in self._run(group)]

    def _run(self, states: Sequence[SentText]) -> list[Done]:
        received = [{name: self._received(sent) for name, sent in state.inputs.items()} for state in states]
        for one in received:
            one.setdefault(MASK, torch.ones_like(one[IDS]))
        longest, padded = max(one[IDS].shape[1] for one in received), {MASK}.union(*(one.of_tokens for one in states))

        def joined(name: str) -> Tensor:
            rows = [one[name] if name in one else torch.zeros_like(one[IDS]) for one in received]
            return torch.cat([self._padded(name, row, longest) for row in rows] if name in padded else rows)

        inputs = {name: joined(name) for name in {name: None for one in received for name in one}}
        counted = inputs[MASK].clone()
        for row, state in zip(counted, states, strict=True):
            row[: state.skipped] = 0
        if not self.takes_mask:
            del inputs[MASK]
        try:
            name, answers = self.answer(self.network, inputs, counted)
        except ValueError as error:
            raise InvalidInput(f"the network rejects this prompt: {first_line(error)}") from error
        return [Done(Output({name: array})) for array in arrays_of(answers)]

    def _padded(self, name: str, values: Tensor, length: int) -> Tensor:
        more = (0, length - values.shape[1])
        return torch.nn.functional.pad(values, more, value=(self.padding or 0) if name == IDS else 0)

    def _received(self, sent: Sent) -> Tensor:
        tensor = self.device.receive(sent)
        return tensor.to(self.network.dtype) if tensor.is_floating_point() else tensor


def of_tokens(arrays: Mapping[str, Array]) -> frozenset[str]:
    """Return the names of inputs with a value for each token: tokens, masks and kinds of tokens."""
    ids = arrays.get(IDS)
    whole = () if ids is None else ids.shape
    return frozenset(name for name, one in arrays.items() if one.shape == whole and one.dtype.kind in "biu")


def rounded(tokens: int) -> int:
    """Return a length that is equal for texts of similar lengths."""
    return -(-tokens // LENGTH_STEP)


def load_text_embedder(directory: HubDirectory) -> Runner:
    """Load a network that returns `embedding`, float32 (D,); see `pooling_of` for its options.

    Prompts have `input_ids`, int64 (T,), with special tokens. The first `prompt_tokens` [0] tokens are read by the
    network and left out of the pooling. With the option `encoder_cache_bytes` (0) outputs are cached.
    """
    model, pooling = directory.model, pooling_of(directory)
    network = directory.load("AutoModel", unused=lambda name: name.startswith("pooler."))

    def embed(network: Any, inputs: Mapping[str, Tensor], counted: Tensor) -> tuple[str, Tensor]:
        return "embedding", pooling(network(**inputs).last_hidden_state, counted)

    runner = _runner(directory, network, embed)
    pooling.layers.requires_grad_(requires_grad=False).to(runner.device.device)
    return with_output_cache(runner, model)


def load_text_classifier(directory: HubDirectory) -> Runner:
    """Load a network that returns `logits`, float32 (classes,).

    Prompts have `input_ids`, int64 (T,), with special tokens; `token_type_ids`, int64 (T,) of 0 and 1, name the parts
    of a pair of texts.
    """
    network = directory.load("AutoModelForSequenceClassification")
    config = network.config
    padding = getattr(config.get_text_config(), "pad_token_id", None)
    takes_types = "token_type_ids" in inspect.signature(network.forward).parameters
    return _runner(
        directory,
        network,
        lambda network, inputs, counted: ("logits", network(**inputs).logits.float()),  # noqa: ARG005
        padding,
        takes_types=takes_types and getattr(config, "type_vocab_size", 0) > 1,
        # Networks with a decoder read the vector at the last of these tokens, and count them over the whole batch.
        counted=config.eos_token_id if config.is_encoder_decoder else None,
    )


def _runner(
    directory: HubDirectory,
    network: Any,
    answer: Answer,
    padding: int | None = 0,
    *,
    takes_types: bool = False,
    counted: int | None = None,
) -> TextRunner:
    """Return the runner of a network; `counted` is a token whose number must be the same in all texts of a batch."""
    device, model = TorchDevice.of(directory.model), directory.model
    device.place(network)
    config = network.config.get_text_config()
    vocabulary, max_tokens = config.vocab_size, max_tokens_of(config)
    takes = inspect.signature(network.forward).parameters
    takes_mask = MASK in takes or any(one.kind is one.VAR_KEYWORD for one in takes.values())
    seen = ways(directory.task, str(directory.config["model_type"]))

    def key(prompt: Prompt) -> Hashable:
        ids = prompt.data[IDS]
        return rounded(len(ids)), 0 if counted is None else int(np.count_nonzero(ids == counted))

    def read(prompt: Prompt) -> tuple[dict[str, Array], int]:
        ids = checked_tokens(prompt.data.get(IDS), vocabulary, max_tokens)
        skipped, types = prompt.data.get("prompt_tokens", 0), prompt.data.get("token_type_ids")
        if type(skipped) is not int or not 0 <= skipped < len(ids):
            raise ProcessorFailed("the network takes `prompt_tokens`, a whole number below that of all tokens")
        if types is None or not takes_types:
            return {IDS: ids[None]}, skipped
        if not isinstance(types, np.ndarray) or types.dtype != np.int64 or types.shape != ids.shape:
            raise ProcessorFailed("the network takes `token_type_ids`, an int64 array as long as `input_ids`")
        if not np.isin(types, (0, 1)).all():
            raise InvalidInput("`token_type_ids` are 0 and 1")
        return {IDS: ids[None], "token_type_ids": types[None]}, skipped

    padding = None if ALONE in seen and BATCHED not in seen else padding
    return TextRunner(
        network, device, model.max_batch, weights_bytes(network), read, key, answer, padding, takes_mask=takes_mask
    )


def checked_tokens(ids: Array, vocabulary: int, max_tokens: int | None) -> Array:
    """Return checked token ids; raise `InvalidInput` for wrong ids or lengths, `ProcessorFailed` for other values."""
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
        raise ProcessorFailed("the network takes `input_ids`, an int64 array (tokens,)")
    if not len(ids):
        raise InvalidInput("the network takes no empty text")
    if max_tokens is not None and len(ids) > max_tokens:
        raise InvalidInput(f"the network takes at most {max_tokens} tokens, the prompt has {len(ids)}")
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise InvalidInput(f"the network knows the tokens 0 to {vocabulary - 1}; the prompt has others")
    return ids


def max_tokens_of(config: Any) -> int | None:
    """Return the tokens of the longest text that a network of texts takes; None without a bound."""
    places = getattr(config, "max_position_embeddings", None)
    if not isinstance(places, int) or places < 1:
        return None
    shifted = config.model_type in _SHIFTED_POSITIONS
    return places - (config.pad_token_id + 1) if shifted else places
