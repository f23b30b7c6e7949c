"""When a Whisper's tokens are spoken: by where in the sound some heads of its decoder look while they write them.

The way of https://github.com/openai/whisper/blob/main/whisper/timing.py and of transformers: what the heads named in
`generation_config.json` look at is evened out, and the cheapest way through it (dynamic time warping) is the time of
each token.
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

#: A layer of the decoder, and a head of it.
Head = tuple[int, int]
#: Ways to a cell of the table: from the cell before both, from the one above, from the one on its left.
_BOTH, _ABOVE, _LEFT = 0, 1, 2


@dataclass(frozen=True)
class Aligner:
    """Finds out when tokens are spoken."""

    decoder: Any
    heads: Sequence[Head]
    #: How many steps of the sound are evened out together, an odd number.
    median: int

    def steps(self, tokens: Sequence[int], ignored: int, sound: Tensor, heard: int) -> list[int]:
        """Return at which step of the sound each token but the first `ignored` is over; the sound has `heard` steps."""
        ids = torch.tensor([list(tokens)], device=sound.device)
        looks = self._looks(ids, sound)[:, ignored:, : max(1, heard)]
        spread, mean = torch.std_mean(looks, dim=-2, keepdim=True, correction=0)
        even = _median_filtered((looks - mean) / spread, self.median).mean(dim=0)
        return first_steps(-even.cpu().double().numpy())

    def _looks(self, ids: Tensor, sound: Tensor) -> Tensor:
        """Return how much each head looks at each step of the sound for each token, float32 (heads, tokens, steps)."""
        asked: dict[int, Tensor] = {}
        layers = self.decoder.layers
        with ExitStack() as hooks:
            for at in {layer for layer, _ in self.heads}:
                hook = layers[at].encoder_attn.register_forward_pre_hook(_keeping(asked, at), with_kwargs=True)
                hooks.callback(hook.remove)
            self.decoder(input_ids=ids, encoder_hidden_states=sound, use_cache=False)
        return torch.stack([_look(layers[at].encoder_attn, asked[at], sound, head) for at, head in self.heads])


def aligner_of(network: Any) -> Aligner | None:
    """Return the aligner of a network; None for one whose `generation_config.json` names no heads.

    Raises `ModelUnavailable` for heads that it does not have.
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
    """Return in which column the cheapest way through costs (rows, columns), down and to the right, enters each row."""
    entered = dict(_cheapest_way(costs))  # from its end: what is said last of a row is where it begins
    return [int(entered[row]) for row in sorted(entered)]


def _cheapest_way(costs: npt.NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """Yield the cells of the way, from its end."""
    ways = _ways(costs)
    row, column = costs.shape
    while row > 0 and column > 0:
        yield row - 1, column - 1
        way = ways[row, column]
        row, column = row - (way != _LEFT), column - (way != _ABOVE)


def _ways(costs: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """Return from where each cell is reached cheapest, for rows and columns that count from 1.

    Cells of one diagonal do not need each other: the table is filled diagonal by diagonal, of which two are kept. In a
    table that is laid out flat, a diagonal's cells lie in steps of a row less one.
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


def _keeping(asked: dict[int, Tensor], layer: int) -> Any:
    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        asked[layer] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]

    return keep


def _look(attention: Any, asked: Tensor, sound: Tensor, head: int) -> Tensor:
    size = attention.head_dim
    part = slice(head * size, (head + 1) * size)
    query = (attention.q_proj(asked) * attention.scaling)[0, :, part]
    return torch.softmax(query @ attention.k_proj(sound)[0, :, part].T, dim=-1).float()


def _median_filtered(looks: Tensor, width: int) -> Tensor:
    """Return the median around each step, float32 (heads, tokens, steps)."""
    half = width // 2
    if looks.shape[-1] <= half:
        return looks
    padded = torch.nn.functional.pad(looks, (half, half), mode="reflect")
    return padded.unfold(-1, width, 1).sort()[0][..., half]
