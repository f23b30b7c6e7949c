"""Beginnings of texts for the first step: tokens, or vectors in the place of their embeddings."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.base import Array

#: Float32 (T, D): embeddings as of the network's own table.
EMBEDS = "inputs_embeds"


def checked_embeddings(embeds: Array, network: Any, max_tokens: int | None) -> Array:
    """Return checked embeddings; raise `InvalidInput` for wrong sizes, `ProcessorFailed` for any other value.

    Without a network (None) embeddings are always invalid.
    """
    if network is None:
        raise InvalidInput("this model takes tokens, and no embeddings of them")
    if not isinstance(embeds, np.ndarray) or embeds.dtype != np.float32 or embeds.ndim != 2:
        raise ProcessorFailed(f"the network takes `{EMBEDS}`, a float32 array (tokens, hidden size)")
    if EMBEDS not in inspect.signature(network.forward).parameters:
        raise InvalidInput(f"{type(network).__name__} takes tokens, and no embeddings of them")
    width = network.get_input_embeddings().weight.shape[1]
    if not len(embeds) or embeds.shape[1] != width:
        raise InvalidInput(f"the network takes embeddings (tokens, {width}), the prompt has {embeds.shape}")
    if max_tokens is not None and len(embeds) > max_tokens:
        raise InvalidInput(f"the network takes at most {max_tokens} tokens, the prompt has {len(embeds)}")
    return embeds
