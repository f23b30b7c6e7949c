"""The search of `penstock models tune`: which settings of a model to measure next, and which to recommend. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.models import Model

#: Rates within this share of the fastest count as equal: two measurements of the same setting differ by as much.
CLOSE = 0.03
#: Tile sizes to measure, as multiples of the record's.
_FACTORS = (0.25, 0.5, 0.75, 1.0, 4 / 3, 2.0, 3.0)
_MOST_TILE_PX, _MOST_BATCH = 4096, 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings of a model that change its speed and memory."""

    #: Side of a tile without its halo, in pixels; None for a model without tiles.
    tile_px: int | None
    max_batch: int
    #: Threads of a forward pass on a CPU.
    threads: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Trial:
    """The measurement of a candidate."""

    candidate: Candidate
    #: Pixels of the map a second for a model with tiles, prompts a second for others; 0 with a problem.
    per_s: float = 0.0
    #: The most memory of the process, or of the device where that is a GPU, in bytes.
    peak_bytes: int = 0
    #: Prompts that one batch held; a runner may take fewer than `max_batch`.
    batch: int = 1
    #: Reason why there is no measurement.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Space:
    """The values to measure of each setting, and the record's own."""

    start: Candidate
    tiles: tuple[int, ...]
    batches: tuple[int, ...]
    threads: tuple[int, ...]
    dtypes: tuple[str, ...]


def tile_sizes(tile_px: int, halo_px: int, stride_px: int) -> tuple[int, ...]:
    """Return the sizes to measure around a record's: multiples of the stride, inputs of 4096 px at most, ascending."""
    near = {round(tile_px * factor) // stride_px * stride_px for factor in _FACTORS}
    return tuple(sorted({tile_px, *(size for size in near if stride_px <= size <= _MOST_TILE_PX - 2 * halo_px)}))


def batch_sizes(max_batch: int) -> tuple[int, ...]:
    """Return the batches to measure around a record's: powers of two up to four times as many, ascending."""
    most = min(_MOST_BATCH, 4 * max(2, max_batch))
    return tuple(sorted({max_batch, *(2**power for power in range(most.bit_length()) if 2**power <= most)}))


def thread_counts(processors: int) -> tuple[int, ...]:
    """Return the numbers of threads to measure: one, half of the processors, and all."""
    return tuple(sorted({1, max(1, processors // 2), processors}))


def search(space: Space, memory_bytes: int) -> Generator[Candidate, Trial, tuple[Trial, ...]]:
    """Yield candidates to measure and receive their trials; return all trials.

    One setting after the other: the tile, the batch, the threads, the number type, each with the best values so far of
    the others. So the sum of the numbers of values is measured, not their product. A tile or batch is not measured
    after a smaller one took too much memory.
    """
    trials = [(yield space.start)]
    axes: dict[str, Sequence[Any]] = {
        "tile_px": space.tiles, "max_batch": space.batches, "threads": space.threads, "dtype": space.dtypes
    }  # fmt: skip
    for name, values in axes.items():
        found = recommend(trials, memory_bytes)
        base = space.start if found is None else found.candidate
        for value in values:
            candidate = replace(base, **{name: value})
            if not _is_known(candidate, trials) and not _is_beyond(candidate, trials, memory_bytes):
                trials.append((yield candidate))
    return tuple(trials)


def recommend(trials: Sequence[Trial], memory_bytes: int) -> Trial | None:
    """Return the best trial within the memory; None if no candidate fits.

    Of the trials that are within `CLOSE` of the fastest, the first measured wins if it is the record's own settings;
    then the one with the least memory.
    """
    fitting = [trial for trial in trials if trial.problem is None and trial.peak_bytes <= memory_bytes]
    if not fitting:
        return None
    fastest = max(trial.per_s for trial in fitting)
    close = [trial for trial in fitting if trial.per_s >= (1 - CLOSE) * fastest]
    return trials[0] if trials[0] in close else min(close, key=lambda trial: trial.peak_bytes)


def changes(start: Candidate, best: Candidate) -> dict[str, tuple[object, object]]:
    """Return the settings that differ, by name: (of the record, recommended)."""
    names = ("tile_px", "max_batch", "threads", "dtype")
    pairs = {name: (getattr(start, name), getattr(best, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def changes_results(names: Iterable[str]) -> bool:
    """Return True if one of these settings is part of a result's bits: tile size, number type or threads of a pass."""
    return bool({"tile_px", "dtype", "threads"} & set(names))


def tuned(model: Model, candidate: Candidate, *, with_threads: bool = False) -> Model:
    """Return the record with the settings of a candidate; with its threads where they are an option of the record."""
    given = {"tile_px": candidate.tile_px, "threads": candidate.threads if with_threads else None}
    options = {**model.options, **{name: value for name, value in given.items() if value is not None}}
    new = {"max_batch": candidate.max_batch, "dtype": candidate.dtype, "options": options}
    return model.model_copy(update=new)


def _is_known(candidate: Candidate, trials: Sequence[Trial]) -> bool:
    """Return True if a candidate was measured, or runs as one that was: a runner's largest batch bounds all others."""
    for trial in trials:
        if replace(trial.candidate, max_batch=candidate.max_batch) != candidate:
            continue
        most = trial.batch if trial.problem is None and trial.batch < trial.candidate.max_batch else None
        if trial.candidate.max_batch == candidate.max_batch or (most is not None and candidate.max_batch >= most):
            return True
    return False


def _is_beyond(candidate: Candidate, trials: Sequence[Trial], memory_bytes: int) -> bool:
    """Return True if a trial with a smaller tile or batch, and otherwise the same settings, took too much memory."""
    for trial in trials:
        other = trial.candidate
        smaller = (other.tile_px or 0) <= (candidate.tile_px or 0) and other.max_batch <= candidate.max_batch
        same = replace(other, tile_px=candidate.tile_px, max_batch=candidate.max_batch) == candidate
        if same and smaller and trial.peak_bytes > memory_bytes:
            return True
    return False
