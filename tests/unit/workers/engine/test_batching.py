from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.workers.engine.batching import Batch, Limit, Pick, Turn, compose


@dataclass(frozen=True)
class Item:
    bucket: str
    cost: int = 1
    begun: bool = False
    awake: bool = True


@dataclass
class Job:
    items: list[Item]
    turn: Turn = (-1, -1)
    left: float = 0
    #: Positions of the items that wait, oldest first.
    positions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.positions = list(range(len(self.items)))

    @property
    def waiting(self) -> list[Item]:
        return [self.items[position] for position in self.positions]


def jobs(*buckets: str) -> list[Job]:
    """Return jobs whose prompts have the buckets that the letters name; the first job's turn was the longest ago."""
    return [Job([Item(letter) for letter in letters], turn=(number - 100, 0)) for number, letters in enumerate(buckets)]


def at_most(prompts: int, cost: float = float("inf")) -> Callable[[str], Limit]:
    return lambda _: Limit(prompts, cost)


def picks(batch: Batch[str] | None) -> list[tuple[int, int]]:
    assert batch is not None
    return [(pick.queue, pick.position) for pick in batch.picks]


ITEMS = st.builds(Item, st.sampled_from("ab"), st.integers(1, 6))
JOBS = st.lists(st.builds(Job, st.lists(ITEMS, max_size=6), left=st.integers(0, 3)), max_size=5)
LIMITS = st.fixed_dictionaries(
    {bucket: st.builds(Limit, st.integers(1, 5), st.integers(1, 12)) for bucket in ("a", "b")}
)


def drain(queues: list[Job], limits: dict[str, Limit]) -> list[list[tuple[int, int]]]:
    """Compose until nothing waits, as the engine does; return the (job, original position) of every batch."""
    served = []
    while batch := compose(queues, limits.__getitem__):
        members = [(pick.queue, queues[pick.queue].positions[pick.position]) for pick in batch.picks]
        for place, (queue, position) in enumerate(members):
            queues[queue].positions.remove(position)
            queues[queue].turn = (len(served), place)
        served.append(members)
    return served


def test_nothing_waiting_makes_no_batch() -> None:
    assert compose([], at_most(4)) is None
    assert compose(jobs("", ""), at_most(4)) is None


def test_jobs_take_turns_inside_a_batch() -> None:
    batch = compose(jobs("aaaaaaaaa", "a", "aaaaaaaaa"), at_most(5))
    assert batch == Batch("a", (Pick(0, 0), Pick(1, 0), Pick(2, 0), Pick(0, 1), Pick(2, 1)), full=True)


def test_the_job_whose_last_turn_is_the_longest_ago_is_next() -> None:
    queues = jobs("aa", "aa", "a")
    assert drain(queues, {"a": Limit(2)})[:2] == [[(0, 0), (1, 0)], [(2, 0), (0, 1)]]


def test_the_oldest_prompt_of_the_first_job_gives_the_bucket() -> None:
    batch = compose(jobs("", "bab", "ab"), at_most(8))
    assert picks(batch) == [(1, 0), (2, 1), (1, 2)]


def test_of_jobs_with_the_same_turn_the_one_with_the_least_work_left_goes_first() -> None:
    queues = [Job([Item("a")], (0, -1), left=left) for left in (529, 1, 9)]
    assert picks(compose(queues, at_most(2))) == [(1, 0), (2, 0)]
    queues[0].turn = (-1, 0)
    assert picks(compose(queues, at_most(2))) == [(0, 0), (1, 0)]


def test_a_batch_is_bounded_by_cost_too() -> None:
    queues = [Job([Item("a", cost) for cost in costs]) for costs in ((5, 1), (6,), (4,))]
    batch = compose(queues, at_most(8, cost=10))
    assert picks(batch) == [(0, 0), (2, 0), (0, 1)], "the job whose prompt is too large is passed over, others are not"
    assert batch is not None
    assert batch.full


def test_a_prompt_beyond_the_cost_of_a_batch_goes_alone() -> None:
    queues = [Job([Item("a", 50), Item("a", 1)]), Job([Item("a", 1)])]
    assert drain(queues, {"a": Limit(8, 10)}) == [[(0, 0)], [(1, 0), (0, 1)]]


def test_a_batch_that_could_grow_is_not_full() -> None:
    batch = compose([Job([Item("a", 4)])], at_most(2, cost=10))
    assert batch is not None
    assert not batch.full


@given(JOBS, LIMITS)
def test_every_prompt_is_served_once_and_no_batch_is_mixed_or_too_large(
    queues: list[Job], limits: dict[str, Limit]
) -> None:
    batches = drain(queues, limits)
    served = [pick for batch in batches for pick in batch]
    assert sorted(served) == [(q, p) for q, queue in enumerate(queues) for p in range(len(queue.items))]
    for batch in batches:
        members = [queues[queue].items[position] for queue, position in batch]
        (bucket,) = {item.bucket for item in members}
        assert len(members) <= limits[bucket].prompts
        assert len(members) == 1 or sum(item.cost for item in members) <= limits[bucket].cost


@given(JOBS, LIMITS)
def test_nothing_waits_that_would_have_fitted(queues: list[Job], limits: dict[str, Limit]) -> None:
    batch = compose(queues, limits.__getitem__)
    if batch is None:
        assert not any(queue.waiting for queue in queues)
        return
    limit, cost = limits[batch.bucket], sum(queues[p.queue].waiting[p.position].cost for p in batch.picks)
    for number, queue in enumerate(queues):
        of_bucket = [(index, item) for index, item in enumerate(queue.waiting) if item.bucket == batch.bucket]
        left = [item for index, item in of_bucket if (number, index) not in picks(batch)]
        if left:
            assert batch.full
            assert len(batch.picks) == limit.prompts or cost + left[0].cost > limit.cost


@given(JOBS, LIMITS)
def test_a_job_is_served_in_its_order_within_a_bucket(queues: list[Job], limits: dict[str, Limit]) -> None:
    served = [pick for batch in drain(queues, limits) for pick in batch]
    for number, queue in enumerate(queues):
        for bucket in "ab":
            positions = [p for q, p in served if q == number and queue.items[p].bucket == bucket]
            assert positions == sorted(positions)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 7))
def test_while_jobs_wait_they_get_the_same_share(sizes: list[int], limit: int) -> None:
    batches = drain([Job([Item("a")] * size) for size in sizes], {"a": Limit(limit)})
    got: Counter[int] = Counter()
    for batch in batches:
        got.update(queue for queue, _ in batch)
        unfinished = [got[queue] for queue, size in enumerate(sizes) if got[queue] < size]
        assert max(unfinished, default=0) - min(unfinished, default=0) <= 1


@given(JOBS, LIMITS)
def test_a_waiting_job_is_served_within_as_many_batches_as_there_are_jobs(
    queues: list[Job], limits: dict[str, Limit]
) -> None:
    batches = drain(queues, limits)
    for number, queue in enumerate(queues):
        rounds = [index for index, batch in enumerate(batches) if any(q == number for q, _ in batch)]
        waits = [later - earlier for earlier, later in zip([-1, *rounds], rounds, strict=False)]
        assert max(waits, default=0) <= len(queues), queue


@given(st.integers(0, 5), st.lists(st.integers(0, 3), min_size=1, max_size=30), LIMITS)
def test_a_large_job_is_not_starved_by_small_ones_that_keep_coming(
    already: int, coming: list[int], limits: dict[str, Limit]
) -> None:
    """After every batch some jobs come that have less work left than the large one."""
    large = Job([Item("a", 6)], left=10**9)
    queues = [Job([Item("b")], left=1) for _ in range(already)] + [large]
    for number, new in enumerate(coming):
        batch = compose(queues, limits.__getitem__)
        if batch is None:
            break
        for place, pick in enumerate(batch.picks):
            del queues[pick.queue].positions[pick.position]
            queues[pick.queue].turn = (number, place)
        assert not large.positions or number < already, "jobs that came later were served before it"
        queues = [queue for queue in queues if queue.positions]
        queues += [Job([Item("b")], turn=(number, -1), left=1) for _ in range(new)]


def test_no_more_prompts_begin_than_may_and_those_that_began_do_not_count() -> None:
    queues = [Job([Item("a", begun=True), Item("a"), Item("a")]), Job([Item("a"), Item("a")])]
    batch = compose(queues, lambda _: Limit(8, begin=2))
    assert batch == Batch("a", (Pick(0, 0), Pick(1, 0), Pick(0, 1)), full=True, begun=True)


def test_sleeping_prompts_are_passed_over_and_make_no_batch_alone() -> None:
    asleep = Item("a", begun=True, awake=False)
    assert compose([Job([asleep]), Job([Item("a")])], lambda _: Limit(8, begin=0)) is None
    queues = [Job([asleep, Item("a")]), Job([Item("b")])]
    batch = compose(queues, lambda bucket: Limit(8, begin=0 if bucket == "a" else 8))
    assert batch == Batch("b", (Pick(1, 0),), full=False)


def test_places_go_round_the_jobs_however_many_prompts_one_has() -> None:
    queues = [Job([Item("a") for _ in range(9)], turn=(-9, 0)), *(Job([Item("a")], turn=(-8, n)) for n in range(4))]
    begun = [drain_one(queues, begin=1, number=number) for number in range(6)]
    assert begun == [0, 1, 2, 3, 4, 0]


def drain_one(queues: list[Job], *, begin: int, number: int) -> int:
    """Let one prompt begin and leave, and return its job."""
    batch = compose(queues, lambda _: Limit(8, begin=begin))
    assert batch is not None
    [pick] = batch.picks
    queues[pick.queue].positions.pop(pick.position)
    queues[pick.queue].turn = (number, 0)
    return pick.queue
