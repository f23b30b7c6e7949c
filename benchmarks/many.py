"""Cost of the job store with many jobs, models, tenants and workers, beside its cost with ten jobs.

    python -m benchmarks.many [--jobs 100000] [--models 1000] [--tenants 1000] [--workers 200]

Jobs are queued for random pairs of model and tenant; the workers only report that they live. One client submits
(reserve and confirm), claims, ends and lists, in turns on a queue of ten jobs and on the full one. These are two
servers beside each other: other load on the machine meets both. The figures are Valkey's own processor time. Syncs of
its log are off, because their cost depends on the disk and not on the number of jobs.
"""

from __future__ import annotations

import argparse
import random
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

from benchmarks.job_queue import fresh_valkey
from penstock.jobs import Claim, JobKey, State, Submission
from penstock.storage.redis import listing, queues, records, upkeep
from penstock.storage.redis.records import JobStore, Outcome, QueueLimits
from penstock.storage.redis.scripts import source
from penstock.up.valkey import SMALL_RECORDS

QUEUE = "many"
LIMITS = QueueLimits(10**9, 10**9, 3600, 3, durable=True)
#: Rounds of each measurement, and calls of a round.
ROUNDS, CALLS = 15, 40
#: Most that a submit or a claim may cost, times its cost with ten jobs.
GOAL = 1.2
#: Models of a worker for which no job waits.
OTHERS = [f"other-{number}" for number in range(8)]


@dataclass(slots=True)
class Side:
    """A server with some jobs."""

    store: JobStore
    models: Sequence[str]
    tenants: Sequence[str]
    claims: list[Claim]

    def submission(self) -> Submission:
        """Return a job of a random model and tenant."""
        key = JobKey(random.choice(self.tenants), str(uuid.uuid4()))  # noqa: S311
        return Submission(key, random.choice(self.models), QUEUE, {"text": "nothing"}, "f" * 64)  # noqa: S311

    def submit(self) -> None:
        """Reserve and confirm a job, as a durable submit does around the put of its request."""
        wanted = self.submission()
        made = self.store.run(records.submit(wanted, LIMITS)).job
        self.store.run(records.confirm(wanted.key, round(made.created_s * 1_000_000)))

    def claim(self, models: Sequence[str]) -> None:
        """Claim a job."""
        command = records.claim(
            QUEUE, slot=uuid.uuid4().hex, nonce="n", n=1, lease_s=600, max_tenant_running=10**9, worker="w",
            models=models,
        )  # fmt: skip
        self.claims += self.store.run(command)

    def end(self) -> None:
        """Propose and commit the end of a claimed job."""
        if self.claims:
            held = self.claims.pop()
            reply = self.store.run(records.complete(held, Outcome(State.SUCCEEDED, text="x")))
            self.store.run(records.commit_end(held.key, reply.proposal or ""))

    def list_tenant(self) -> None:
        """Read the first page of a tenant's jobs."""
        self.store.run(listing.list_jobs(random.choice(self.tenants), limit=50))  # noqa: S311

    def cpu_s(self) -> float:
        """Return the processor time of the server so far."""
        used = self.store.client.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    def memory_bytes(self) -> int:
        """Return the memory of the server."""
        return int(self.store.client.info("memory")["used_memory"])


@contextmanager
def side(jobs: int, models: int, tenants: int, workers: int) -> Iterator[Side]:
    """Yield a server with so many queued jobs."""
    with fresh_valkey() as valkey:
        store = JobStore.open(valkey.url)
        for name, value in {**SMALL_RECORDS, "appendfsync": "no", "auto-aof-rewrite-percentage": "0"}.items():
            store.client.config_set(name, value)
        store.run(upkeep.recovering("many", begin=True))
        store.run(upkeep.recovering("many", begin=False))
        for number in range(workers):
            store.run(queues.seen(QUEUE, f"worker-{number}", 4, alive_s=36_000))
        found = Side(store, [f"model-{n}" for n in range(models)], [f"tenant-{n}" for n in range(tenants)], [])
        fill(found, jobs)
        yield found
        store.close()


def fill(at: Side, jobs: int) -> None:
    """Queue jobs, many in a round trip."""
    submit, confirm = (at.store.client.script_load(source(name)) for name in ("submit", "confirm"))
    for begin in range(0, jobs, 500):
        wanted = [at.submission() for _ in range(min(500, jobs - begin))]
        replies = _all(at, submit, (records.submit(each, LIMITS).argument for each in wanted))
        made = zip(wanted, replies, strict=True)
        _all(at, confirm, (records.confirm(each.key, int(reply[1])).argument for each, reply in made))


def _all(at: Side, script: str, arguments: Iterable[str]) -> list[list[str]]:
    with at.store.client.pipeline(transaction=False) as pipe:
        for argument in arguments:
            pipe.evalsha(script, 0, argument)
        return pipe.execute()


def compare(few: Side, many: Side, act: Callable[[Side], object]) -> tuple[float, float]:
    """Return the microseconds of an action on each server: medians over rounds in turns."""
    took: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(ROUNDS):
        for n, at in enumerate((few, many)):
            begun = at.cpu_s()
            for _ in range(CALLS):
                act(at)
            took[n].append((at.cpu_s() - begun) / CALLS * 1_000_000)
    return median(took[0]), median(took[1])


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=200)
    chosen = parser.parse_args(arguments)
    with ExitStack() as stack:
        few, many = (
            stack.enter_context(side(jobs, chosen.models, chosen.tenants, chosen.workers)) for jobs in (10, chosen.jobs)
        )
        say(f"| Valkey's processor time | 10 jobs | {chosen.jobs} jobs | times |\n| --- | --- | --- | --- |")
        queued = (many.memory_bytes() - few.memory_bytes()) / (chosen.jobs - 10)
        rows: dict[str, Callable[[Side], object]] = {
            "submit: reserve and confirm": Side.submit,
            "claim, a worker with all models": lambda at: at.claim(at.models),
            "claim that finds nothing, a worker with other models": lambda at: at.claim(OTHERS),
            "end: propose and commit": Side.end,
            "first page of a tenant's jobs (few have any of the ten)": Side.list_tenant,
        }
        for name, act in rows.items():
            small, large = compare(few, many, act)
            goal = f" (goal {GOAL})" if name.startswith(("submit", "claim")) else ""
            say(f"| {name} | {small:.0f} us | {large:.0f} us | {large / small:.2f}{goal} |")
        say(f"| memory of a queued job | | {queued / 1000:.1f} kB | |")


def say(line: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
