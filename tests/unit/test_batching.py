from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.workers.batching import Batch, compose

QUEUES = st.lists(st.lists(st.sampled_from("ab"), max_size=6), max_size=5)
LIMITS = st.fixed_dictionaries({"a": st.integers(1, 5), "b": st.integers(1, 5)})


def drain(queues: list[list[str]], limits: dict[str, int]) -> list[list[tuple[int, int]]]:
    """Compose until nothing waits, as the engine does; return the (queue, original position) of every batch."""
    rest = [[(queue, position, bucket) for position, bucket in enumerate(b)] for queue, b in enumerate(queues)]
    served = []
    while batch := compose([[bucket for *_, bucket in queue] for queue in rest], limits.__getitem__):
        members = [rest[queue][position] for queue, position in batch.picks]
        served.append([(queue, position) for queue, position, _ in members])
        rest = [[item for item in queue if item not in members] for queue in rest]
        rest = [rest[index] for index in batch.order]
    return served


def test_nothing_waiting_makes_no_batch() -> None:
    assert compose([], lambda _: 4) is None
    assert compose([[], []], lambda _: 4) is None


def test_jobs_take_turns_inside_a_batch() -> None:
    batch = compose([["a"] * 9, ["a"], ["a"] * 9], lambda _: 5)
    assert batch == Batch("a", ((0, 0), (1, 0), (2, 0), (0, 1), (2, 1)), (1, 0, 2))


def test_the_next_turn_is_of_the_job_that_was_passed_over() -> None:
    batch = compose([["a"] * 9, ["a"] * 9, ["a"]], lambda _: 2)
    assert batch is not None
    assert batch.order == (2, 0, 1)


def test_the_oldest_prompt_of_the_first_job_gives_the_bucket() -> None:
    batch = compose([[], ["b", "a", "b"], ["a", "b"]], lambda _: 8)
    assert batch == Batch("b", ((1, 0), (2, 1), (1, 2)), (0, 2, 1))


@given(QUEUES, LIMITS)
def test_every_prompt_is_served_once_and_no_batch_is_mixed_or_too_large(
    queues: list[list[str]], limits: dict[str, int]
) -> None:
    batches = drain(queues, limits)
    served = [pick for batch in batches for pick in batch]
    assert sorted(served) == [(q, p) for q, queue in enumerate(queues) for p in range(len(queue))]
    for batch in batches:
        buckets = {queues[queue][position] for queue, position in batch}
        assert len(buckets) == 1
        assert len(batch) <= limits[buckets.pop()]


@given(QUEUES, LIMITS)
def test_a_job_is_served_in_its_order_within_a_bucket(queues: list[list[str]], limits: dict[str, int]) -> None:
    served = [pick for batch in drain(queues, limits) for pick in batch]
    for number, queue in enumerate(queues):
        for bucket in "ab":
            positions = [p for q, p in served if q == number and queue[p] == bucket]
            assert positions == sorted(positions)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 7))
def test_while_jobs_wait_they_get_the_same_share(sizes: list[int], limit: int) -> None:
    batches = drain([["a"] * size for size in sizes], {"a": limit})
    got: Counter[int] = Counter()
    for batch in batches:
        got.update(queue for queue, _ in batch)
        unfinished = [got[queue] for queue, size in enumerate(sizes) if got[queue] < size]
        assert max(unfinished, default=0) - min(unfinished, default=0) <= 1


@given(QUEUES, LIMITS)
def test_a_waiting_job_is_served_within_as_many_batches_as_there_are_jobs(
    queues: list[list[str]], limits: dict[str, int]
) -> None:
    batches = drain(queues, limits)
    for number, queue in enumerate(queues):
        rounds = [index for index, batch in enumerate(batches) if any(q == number for q, _ in batch)]
        waits = [later - earlier for earlier, later in zip([-1, *rounds], rounds, strict=False)]
        assert max(waits, default=0) <= len(queues), queue
