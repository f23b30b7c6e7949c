"""The list of ended jobs whose spans a keeper exports."""

from __future__ import annotations

from penstock.jobs import JobKey, State
from penstock.observation.job_spans import Context, Span
from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore, Outcome
from penstock.workers.keeper.job_traces import KEPT, LIMIT, JobTraces, ended_jobs
from tests.support.bare_store import claim, submit


class Kept:
    """Keeps the spans."""

    wanted = True

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def sampled(self, root: Context) -> bool:  # noqa: ARG002
        return True

    def send(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None:
        """Do nothing."""

    def jobs(self) -> list[str]:
        return [str(span.attributes["penstock.job"]) for span in self.spans if "penstock.status" in span.attributes]


def end(store: JobStore, name: str) -> JobKey:
    key = submit(store, name)
    [held] = claim(store)
    store.run(records.complete(held, Outcome(State.SUCCEEDED)))
    return key


def test_jobs_are_listed_from_the_first_call_of_a_keeper_on(store: JobStore) -> None:
    end(store, "before")
    assert store.client.keys("penstock:spans:*") == []  # without a keeper that exports, an end costs no memory
    assert store.run(ended_jobs([])) == ((), False)
    keys = [end(store, name) for name in ("a", "b")]
    canceled = submit(store, "c")
    store.run(records.cancel(canceled))
    for _ in range(2):  # a lost reply loses no job
        jobs, more = store.run(ended_jobs([]))
        assert ([job.key for job in jobs], more) == ([*keys, canceled], False)
    jobs, _ = store.run(ended_jobs(keys))
    assert [job.key for job in jobs] == [canceled]
    assert 0 < store.client.pttl("penstock:spans:wanted") <= 60_000


def test_a_keeper_exports_each_job_once_and_goes_on_until_none_is_left(store: JobStore) -> None:
    spans = Kept()
    traces = JobTraces(store, spans)
    traces.step()
    names = [f"{number:03d}" for number in range(LIMIT + 5)]
    for name in names:
        end(store, name)
    store.run(records.delete(JobKey("default", names.pop(3))))
    while traces.step():
        pass
    assert spans.jobs() == names
    assert store.client.exists("penstock:spans:ended") == 0
    assert len(spans.spans) == 3 * len(names)  # each is a job, its wait and its attempt


def test_a_keeper_that_is_away_leaves_no_more_than_the_limit(store: JobStore) -> None:
    key = end(store, "real")
    store.client.zadd("penstock:spans:ended", {f"default/{number}": number for number in range(KEPT + 10)})
    store.client.zadd("penstock:spans:ended", {str(key): KEPT + 20})
    store.run(ended_jobs([]))
    assert store.client.zcard("penstock:spans:ended") <= KEPT
    assert store.client.zscore("penstock:spans:ended", str(key)) is not None
