"""Text embedding. Texts of similar lengths share a batch, padded to the longest and masked.

On a CPU in float32 a text alone gets the same bits every time; other texts of its batch change the last bits only (they
are masked, but sums are taken in another order).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Done, Runner
from penstock.workers.engine.remembering import remembering
from penstock.workers.engine.torch.device import Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.pooling import Pooling, pooling_of

#: Texts whose lengths are equal when rounded up to a multiple of this share a batch.
LENGTH_STEP = 32

#: Model types whose positions begin after the padding token's id, which leaves fewer positions.
_SHIFTED_POSITIONS = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "data2vec-text", "roberta-prelayernorm"}
)


@dataclass(frozen=True, slots=True)
class SentText:
    """A text on its way to the device."""

    sent: Sent
    #: The number of tokens at the beginning that do not count in the pooling.
    skipped: int


@dataclass(frozen=True, slots=True)
class TextRunner:
    """A network that embeds texts: prompts have `input_ids`, int64 (T,), with special tokens.

    The first `prompt_tokens` [0] of them are read by the network and left out of the pooling. Outputs have `embedding`,
    float32 (D,).
    """

    network: Any
    device: TorchDevice
    pooling: Pooling
    max_batch: int
    memory_bytes: int
    vocabulary: int
    max_tokens: int | None

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the rounded length: texts of similar lengths share a batch."""
        return -(-len(prompt.data["input_ids"]) // LENGTH_STEP)

    def admit(self, prompt: Prompt) -> SentText:
        """Return the token ids on their way to the device."""
        ids = checked_tokens(prompt.data.get("input_ids"), self.vocabulary, self.max_tokens)
        skipped = prompt.data.get("prompt_tokens", 0)
        if type(skipped) is not int or not 0 <= skipped < len(ids):
            raise ProcessorFailed("the network takes `prompt_tokens`, a whole number below that of all tokens")
        return SentText(self.device.send(ids), skipped)

    def step(self, states: Sequence[SentText]) -> Sequence[Done]:
        """Run the network once."""
        with self.device.running():
            ids, mask = _padded([self.device.receive(state.sent) for state in states])
            embedded = self._embed(ids, mask, [state.skipped for state in states])
            return [Done(Output({"embedding": array})) for array in arrays_of(embedded)]

    def close(self) -> None:
        """Free the device's memory."""
        self.device.free(self.network)

    def _embed(self, ids: Tensor, mask: Tensor, skipped: Sequence[int]) -> Tensor:
        hidden = self.network(input_ids=ids, attention_mask=mask).last_hidden_state
        counted = mask.clone()
        for row, count in zip(counted, skipped, strict=True):
            row[:count] = 0
        return self.pooling(hidden, counted)


def load_text_embedder(directory: HubDirectory) -> Runner:
    """Load a network that returns `embedding`; see `pooling_of` and `load_image_embedder` for its options."""
    model, pooling = directory.model, pooling_of(directory)
    device = TorchDevice.of(model)
    network = directory.load("AutoModel", unused=lambda name: name.startswith("pooler."))
    device.place(network)
    runner = TextRunner(
        network,
        device,
        pooling,
        max_batch=model.max_batch,
        memory_bytes=weights_bytes(network),
        vocabulary=network.config.vocab_size,
        max_tokens=max_tokens_of(network.config),
    )
    return remembering(runner, model)


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


def _padded(texts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return token ids and mask, both (N, T); the mask is 0 for padding."""
    ids = torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return ids, mask


def max_tokens_of(config: Any) -> int | None:
    """Return the tokens of the longest text that a network of texts takes; None without a bound."""
    places = getattr(config, "max_position_embeddings", None)
    if not isinstance(places, int) or places < 1:
        return None
    shifted = config.model_type in _SHIFTED_POSITIONS
    return places - (config.pad_token_id + 1) if shifted else places
