"""The price of counting usage in a commit: Valkey's own time per call, with and without the counting, in turns.

    python -m benchmarks.usage [--jobs 400] [--rounds 15]

Both are the script `complete.lua` as this tree sends it, for jobs of `durability = "redis"`, which it ends by itself;
one has no calls of the functions that count. Each round ends as many jobs by each; the figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

from penstock.jobs import Claim, JobKey, State, Submission, Usage
from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore, Outcome, QueueLimits
from penstock.storage.redis.scripts import source
from tests.support.valkey import start_valkey

#: Calls of the functions that count usage, as `common.lua` has them.
COUNTING = (
    "  count_usage(job.tenant, job.model, state, now, job)\n",
    "  if state == 'succeeded' then count_kept(job.tenant, tonumber(job.bytes_out or '') or 0) end\n",
    "  count_up(P .. 'counts:used', used)\n",
)
LIMITS = QueueLimits(10**6, 10**6, 3600, 3)
USED = Usage(1.5, 10_000, 20_000)
METRICS = {"fetch_ms": 1.0, "preprocess_ms": 2.0, "inference_ms": 3.0, "postprocess_ms": 1.0, "upload_ms": 2.0}


def claims(store: JobStore, count: int) -> list[Claim]:
    """Return jobs that run."""
    for _ in range(count):
        key = JobKey("default", str(uuid.uuid4()))
        store.run(records.submit(Submission(key, "m", "q", {}, "f"), LIMITS))
    held: list[Claim] = []
    while len(held) < count:
        command = records.claim(
            "q", slot="s", nonce=str(time.monotonic_ns()), n=100, lease_s=300, max_tenant_running=10**6, worker="w",
            models=["m"],
        )  # fmt: skip
        held += store.run(command)
    return held


def price_us(store: JobStore, script: str, held: list[Claim]) -> float:
    """End jobs by a script; return the microseconds of the server for each."""
    outcome = Outcome(State.SUCCEEDED, text="done", metrics=METRICS, usage=USED)
    sha = store.client.script_load(script)
    store.client.config_resetstat()
    for claim in held:
        reply = store.client.evalsha(sha, 0, records.complete(claim, outcome).argument)
        if reply[0] != "ok":
            raise RuntimeError(f"the job did not end: {reply}")
    stats = store.client.info("commandstats")["cmdstat_evalsha"]
    return float(stats["usec_per_call"])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    counting = bare = source("complete")
    for call in COUNTING:
        if bare.count(call) != 1:
            raise RuntimeError(f"common.lua no longer has {call!r}")
        bare = bare.replace(call, "")
    with tempfile.TemporaryDirectory() as folder:
        server = start_valkey(Path(folder))
        store = JobStore.open(server.url)
        try:
            rounds = [
                (price_us(store, bare, claims(store, given.jobs)), price_us(store, counting, claims(store, given.jobs)))
                for _ in range(given.rounds)
            ]
        finally:
            store.close()
            server.stop()
    without, with_it = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(after / before for before, after in rounds)
    sys.stdout.write(
        f"commit of a job: {without:.0f} us without, {with_it:.0f} us with usage; ratio in a round {ratio:.2f} "
        f"({given.rounds} rounds of {given.jobs} jobs)\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
