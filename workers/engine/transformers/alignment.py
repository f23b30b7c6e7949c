"""Times of a Whisper's tokens, from the cross-attention of some heads of the decoder to the audio.

As in https://github.com/openai/whisper/blob/main/whisper/timing.py and transformers: the attention of the heads named
in `generation_config.json` is normalised and median-filtered, and dynamic time warping assigns times to the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.errors import ModelUnavailable

#: A layer of the decoder, and a head of the layer.
Head = tuple[int, int]
#: Predecessors of a cell in the table: the cell above on the left, the cell above, the cell on the left.
_BOTH, _ABOVE, _LEFT = 0, 1, 2


@dataclass(frozen=True)
class Aligner:
    """Computes the times of tokens from the decoder's attention."""

    decoder: Any
    heads: Sequence[Head]
    #: Width of the median filter in steps of the audio, an odd number.
    median: int

    def steps(self, tokens: Sequence[int], ignored: int, audio: Tensor, length: int) -> list[int]:
        """Return the step of the audio, of `length` steps, at which each token but the first `ignored` ends."""
        ids = torch.tensor([list(tokens)], device=audio.device)
        weights = self._attention(ids, audio)[:, ignored:, : max(1, length)]
        deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, correction=0)
        even = _median_filtered((weights - mean) / deviation, self.median).mean(dim=0)
        return first_steps(-even.cpu().double().numpy())

    def _attention(self, ids: Tensor, audio: Tensor) -> Tensor:
        """Return the attention of each head to each step of the audio, float32 (heads, tokens, steps)."""
        hidden: dict[int, Tensor] = {}
        layers = self.decoder.layers
        with ExitStack() as hooks:
            for at in {layer for layer, _ in self.heads}:
                hook = layers[at].encoder_attn.register_forward_pre_hook(_keeping(hidden, at), with_kwargs=True)
                hooks.callback(hook.remove)
            self.decoder(input_ids=ids, encoder_hidden_states=audio, use_cache=False)
        return torch.stack(
            [_head_attention(layers[at].encoder_attn, hidden[at], audio, head) for at, head in self.heads]
        )


def aligner_of(network: Any) -> Aligner | None:
    """Return the aligner of a network; None if its `generation_config.json` names no heads.

    Raises `ModelUnavailable` for heads that the network does not have.
    """
    named = getattr(network.generation_config, "alignment_heads", None)
    if not named:
        return None
    config = network.config
    for head in named:
        numbers = list(head) if isinstance(head, list | tuple) else []
        if len(numbers) != 2 or not all(type(number) is int for number in numbers):
            raise ModelUnavailable("generation_config.json has `alignment_heads` that are no pairs of layer and head")
        if not 0 <= numbers[0] < config.decoder_layers or not 0 <= numbers[1] < config.decoder_attention_heads:
            raise ModelUnavailable(f"generation_config.json has an alignment head {numbers} that the network lacks")
    return Aligner(network.model.decoder, [(layer, head) for layer, head in named], config.median_filter_width)


def first_steps(costs: npt.NDArray[np.float64]) -> list[int]:
    """Return the column where the cheapest path, down and to the right, enters each row of costs (rows, columns)."""
    entered = dict(_cheapest_way(costs))  # from the end: a row's last entry is its first cell
    return [int(entered[row]) for row in sorted(entered)]


def _cheapest_way(costs: npt.NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """Yield the cells of the path, from its end."""
    ways = _ways(costs)
    row, column = costs.shape
    while row > 0 and column > 0:
        yield row - 1, column - 1
        way = ways[row, column]
        row, column = row - (way != _LEFT), column - (way != _ABOVE)


def _ways(costs: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """Return the cheapest predecessor of each cell, for rows and columns that count from 1.

    Cells of one diagonal do not depend on each other: the table is filled by diagonals, of which two are kept. In a
    flat table the cells of a diagonal are one row less one cell apart.
    """
    rows, columns = costs.shape
    flat, ways = costs.ravel(), np.full((rows + 1) * (columns + 1), _LEFT, np.int8)
    last_but_one, last = np.full((2, rows + 1), np.inf, np.float32)
    last_but_one[0] = 0
    for diagonal in range(2, rows + columns + 1):
        low, high = max(1, diagonal - columns), min(rows, diagonal - 1)
        both, above, left = last_but_one[low - 1 : high], last[low - 1 : high], last[low : high + 1]
        way = np.where((above < both) & (above < left), _ABOVE, _LEFT)
        way[(both < above) & (both < left)] = _BOTH
        before = np.where(way == _BOTH, both, np.where(way == _ABOVE, above, left))
        ways[low * columns + diagonal : high * columns + diagonal + 1 : columns] = way
        begin, end = ((row - 1) * columns + diagonal - row - 1 for row in (low, high))
        now = np.full(rows + 1, np.inf, np.float32)
        now[low : high + 1] = flat[begin : end + 1 : max(1, columns - 1)] + before
        last_but_one, last = last, now
    return ways.reshape(rows + 1, columns + 1)


def _keeping(hidden: dict[int, Tensor], layer: int) -> Any:
    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        hidden[layer] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]

    return keep


def _head_attention(attention: Any, hidden: Tensor, audio: Tensor, head: int) -> Tensor:
    size = attention.head_dim
    part = slice(head * size, (head + 1) * size)
    query = (attention.q_proj(hidden) * attention.scaling)[0, :, part]
    return torch.softmax(query @ attention.k_proj(audio)[0, :, part].T, dim=-1).float()


def _median_filtered(weights: Tensor, width: int) -> Tensor:
    """Return the median around each step, float32 (heads, tokens, steps)."""
    half = width // 2
    if weights.shape[-1] <= half:
        return weights
    padded = torch.nn.functional.pad(weights, (half, half), mode="reflect")
    return padded.unfold(-1, width, 1).sort()[0][..., half]
