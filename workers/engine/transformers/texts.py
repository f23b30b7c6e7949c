"""Texts as embeddings. Texts of nearly one length share a batch, padded to the longest and masked.

On a CPU in float32 a text alone gets the same bits every time; neighbours in its batch change the last bits only (the
mask keeps them out, but sums are taken in another order).
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
from penstock.workers.engine.torch_device import Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.pooling import Pooling, pooling_of

#: Texts whose lengths are equal when rounded up to a multiple of this share a batch.
LENGTH_STEP = 32

#: Their positions begin behind the padding token's id, which takes places off the table.
_SHIFTED_POSITIONS = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "data2vec-text", "roberta-prelayernorm"}
)


@dataclass(frozen=True, slots=True)
class TextRunner:
    """Embeds texts: prompts have `input_ids`, int64 (T,), special tokens included.

    Outputs have `embedding`, float32 (D,).
    """

    network: Any
    device: TorchDevice
    pooling: Pooling
    max_batch: int
    memory_bytes: int
    vocabulary: int
    max_tokens: int | None

    def bucket(self, prompt: Prompt) -> Hashable:
        """Texts of nearly one length share a batch."""
        return -(-len(prompt.data["input_ids"]) // LENGTH_STEP)

    def admit(self, prompt: Prompt) -> Sent:
        """Return the token ids on their way to the device."""
        return self.device.send(checked_tokens(prompt.data.get("input_ids"), self.vocabulary, self.max_tokens))

    def step(self, states: Sequence[Sent]) -> Sequence[Done]:
        """Run the network once."""
        with self.device.running():
            ids, mask = _padded([self.device.receive(state) for state in states])
            embedded = self._embed(ids, mask)
            return [Done(Output({"embedding": array})) for array in arrays_of(embedded)]

    def close(self) -> None:
        """Free the device's memory."""
        self.device.free(self.network)

    def _embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.pooling(self.network(input_ids=ids, attention_mask=mask).last_hidden_state, mask)


def load_text_embedder(directory: HubDirectory) -> Runner:
    """Load a network that answers `embedding`; see `pooling_of` for its options, and `load_image_embedder`."""
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
        max_tokens=_max_tokens(network.config),
    )
    return remembering(runner, model)


def checked_tokens(ids: Array, vocabulary: int, max_tokens: int | None) -> Array:
    """Return token ids that fit a network, or raise `InvalidInput`, or `ProcessorFailed` for what are none."""
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
    """Return token ids and mask, both (N, T); what stands in the padding is masked and of no matter."""
    ids = torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return ids, mask


def _max_tokens(config: Any) -> int | None:
    places = getattr(config, "max_position_embeddings", None)
    if not isinstance(places, int) or places < 1:
        return None
    shifted = config.model_type in _SHIFTED_POSITIONS
    return places - (config.pad_token_id + 1) if shifted else places
