"""The search for a model's settings: what is measured, and what is recommended within the memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.local.tuning import (
    CLOSE,
    Candidate,
    Space,
    Trial,
    batch_sizes,
    changes,
    changes_results,
    recommend,
    search,
    thread_counts,
    tile_sizes,
    tuned,
)
from penstock.models import Model

START = Candidate(768, 1, 2, "float32")
SPACE = Space(START, (192, 384, 768, 1536), (1, 2, 4), (1, 2), ("float32", "bfloat16"))

candidates = st.builds(
    Candidate, st.sampled_from(SPACE.tiles), st.sampled_from(SPACE.batches), st.sampled_from(SPACE.threads),
    st.sampled_from(SPACE.dtypes),
)  # fmt: skip
measured = st.builds(
    Trial, candidates, st.floats(1, 1e9), st.integers(1, 2**34), st.integers(1, 4), st.none() | st.just("refused")
)


def run(space: Space, measure: Callable[[Candidate], Trial], memory_bytes: int = 2**40) -> tuple[Trial, ...]:
    """Drive a search to its end."""
    steps = search(space, memory_bytes)
    candidate = next(steps)
    while True:
        try:
            candidate = steps.send(measure(candidate))
        except StopIteration as end:
            trials: tuple[Trial, ...] = end.value
            return trials


@settings(deadline=None)
@given(st.lists(measured, min_size=1, max_size=12), st.integers(1, 2**34))
def test_the_recommended_fits_and_no_other_that_fits_is_much_faster(trials: list[Trial], memory_bytes: int) -> None:
    best = recommend(trials, memory_bytes)
    fitting = [trial for trial in trials if trial.problem is None and trial.peak_bytes <= memory_bytes]
    if best is None:
        assert fitting == []
        return
    assert best in fitting
    assert all(best.per_s >= (1 - CLOSE) * trial.per_s for trial in fitting)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1e9), st.integers(1, 2**30)), min_size=5, max_size=9), st.integers(1, 4))
def test_a_search_begins_with_the_record_measures_nothing_twice_and_ends(
    truth: list[tuple[float, int]], most: int
) -> None:
    seen: list[Candidate] = []

    def measure(candidate: Candidate) -> Trial:
        seen.append(candidate)
        per_s, peak_bytes = truth[len(seen) % len(truth)]
        return Trial(candidate, per_s, peak_bytes, min(most, candidate.max_batch))

    trials = run(SPACE, measure, 2**29)
    tried = [trial.candidate for trial in trials]
    assert tried[0] == START
    assert len(set(tried)) == len(tried) <= 1 + 1 + 3 + 2 + 1


def test_the_record_stays_where_it_is_as_fast_as_any() -> None:
    trials = [Trial(START, 98.0, 500), Trial(replace(START, tile_px=1536), 100.0, 100)]
    assert recommend(trials, 1000) == trials[0]


def test_of_equally_fast_ones_the_one_with_least_memory_is_recommended() -> None:
    slow, big, small = Trial(START, 50.0, 1), Trial(replace(START, tile_px=1536), 100.0, 900), None
    small = Trial(replace(START, tile_px=384), 98.0, 100)
    assert recommend([slow, big, small], 1000) == small


def test_larger_tiles_than_one_that_took_too_much_memory_are_not_measured() -> None:
    trials = run(SPACE, lambda each: Trial(each, 1.0, (each.tile_px or 0) ** 2), memory_bytes=384**2)
    assert {trial.candidate.tile_px for trial in trials} == {192, 384, 768}
    best = recommend(trials, 384**2)
    assert best is not None
    assert best.candidate.tile_px in (192, 384)


def test_a_runner_that_takes_one_prompt_at_a_time_is_not_asked_for_more() -> None:
    trials = run(SPACE, lambda each: Trial(each, 1.0, 1, batch=1))
    assert {trial.candidate.max_batch for trial in trials} == {1, 2}


def test_a_refused_candidate_is_a_row_and_the_search_goes_on() -> None:
    def measure(each: Candidate) -> Trial:
        return Trial(each, problem="refused") if each.dtype == "bfloat16" else Trial(each, float(each.tile_px or 0), 1)

    trials = run(SPACE, measure)
    assert [trial.problem for trial in trials].count("refused") == 1
    best = recommend(trials, 10)
    assert best is not None
    assert best.candidate == replace(START, tile_px=1536)


@settings(deadline=None)
@given(st.integers(1, 256), st.integers(0, 6), st.sampled_from([1, 8, 14, 16, 32]))
def test_tile_sizes_are_multiples_of_the_stride_around_the_record(tiles: int, halo: int, stride_px: int) -> None:
    tile_px, halo_px = tiles * stride_px, halo * stride_px
    sizes = tile_sizes(tile_px, halo_px, stride_px)
    assert tile_px in sizes
    assert list(sizes) == sorted(set(sizes))
    assert all(size % stride_px == 0 and size >= stride_px for size in sizes)
    assert all(size + 2 * halo_px <= max(4096, tile_px + 2 * halo_px) for size in sizes)


def test_known_sizes() -> None:
    assert tile_sizes(768, 96, 16) == (192, 384, 576, 768, 1024, 1536, 2304)
    assert batch_sizes(1) == (1, 2, 4, 8)
    assert batch_sizes(12) == (1, 2, 4, 8, 12, 16, 32)
    assert batch_sizes(128) == (1, 2, 4, 8, 16, 32, 64, 128)
    assert [thread_counts(n) for n in (1, 2, 16)] == [(1,), (1, 2), (1, 8, 16)]


@pytest.mark.parametrize(
    ("names", "changed"),
    [
        (["tile_px"], True),
        (["dtype", "max_batch"], True),
        (["max_batch", "threads"], True),
        (["max_batch"], False),
        ([], False),
    ],
)
def test_tiles_number_types_and_threads_are_part_of_a_results_bits(names: list[str], changed: bool) -> None:
    assert changes_results(names) is changed


def test_a_tuned_record_differs_in_the_settings_alone() -> None:
    model = Model(
        name="m", title="M", runner="torch", processor="p", source="s", revision="1",
        options={"tile_px": 768, "halo_px": 96},
    )  # fmt: skip
    best = Candidate(1024, 4, 1, "bfloat16")
    assert changes(START, best) == {
        "tile_px": (768, 1024), "max_batch": (1, 4), "threads": (2, 1), "dtype": ("float32", "bfloat16")
    }  # fmt: skip
    new = tuned(model, best)
    assert (new.options, new.max_batch, new.dtype) == ({"tile_px": 1024, "halo_px": 96}, 4, "bfloat16")
    assert tuned(model, replace(best, tile_px=None, max_batch=1, dtype="float32")) == model
