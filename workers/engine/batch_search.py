"""The search for a model's batch: how many prompts fit, and the smallest batch that is about as fast as any. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

#: Batches within this share of the fastest count as equally fast: two measurements of one batch differ by as much.
CLOSE: Final = 0.05


def sizes(most: int) -> Iterator[int]:
    """Yield the batches to measure, the largest first: `most`, and all powers of two below."""
    yield most
    yield from (2**power for power in range(most.bit_length() - 1, -1, -1) if 2**power < most)


def search(most: int) -> Generator[int, float | None, int]:
    """Yield batches, and receive the prompts per second of each; return the smallest of about the highest rate.

    None as a rate ends the search. It also ends at the first batch that is clearly slower than a larger one: still
    smaller ones would be slower yet. Without any rate the answer is `most`.
    """
    rates: dict[int, float] = {}
    for size in sizes(most):
        rate = yield size
        if rate is None:
            break
        rates[size] = rate
        if not _is_close(rate, rates):
            break
    return min((size for size, rate in rates.items() if _is_close(rate, rates)), default=most)


def _is_close(rate: float, rates: dict[int, float]) -> bool:
    return rate >= (1 - CLOSE) * max(rates.values())
