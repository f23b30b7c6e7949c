"""Faults of model processes: functions that die, hang, print and take memory beside jobs of other models."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.arena import Summary
from tests.chaos.clients import jobs
from tests.chaos.history import Wanted
from tests.chaos.run import Run

FUNCTIONS = Path(__file__).with_name("functions.py")
#: Models whose jobs fail, with the code; those that end well whatever happens beside them.
BAD = {
    "segfaults": "processor_failed", "exits": "processor_failed", "kills": "processor_failed",
    "eats": "processor_failed", "hangs": "execution_timeout",
}  # fmt: skip
GOOD = ("chaos", "calm", "chatters")


def model_processes(run: Run) -> Summary:
    """Functions segfault, exit, are killed, hang, print and take memory; no job of another model has a second try."""
    bad, good, kills = run.pick(2, 40), run.pick(12, 600), run.pick(2, 60)
    begun = time.monotonic()
    with run.arena(workers=2, slots=4, models=(str(FUNCTIONS),)) as arena:
        victims = arena.fleet.folder / "victims"
        victims.mkdir()
        well = [job for model in GOOD for job in _jobs(model, good if model != "chatters" else bad)]
        spoilt = [replace(job, ends=("failed",), code=code) for model, code in BAD.items() for job in _jobs(model, bad)]
        hit = [replace(job, ends=("succeeded", "failed")) for job in _jobs("struck", bad + kills, folder=str(victims))]
        canceled = [replace(job, ends=("canceled", "failed"), code="execution_timeout") for job in _jobs("hangs", bad)]
        mixed = [*well, *spoilt, *hit, *canceled]
        arena.draws.shuffle(mixed)
        arena.submit(mixed, forgotten_model=True)  # workers may not have told of the functions yet
        canceling = arena.cancel([job.id for job in canceled])
        struck = 0

        def strike() -> None:
            nonlocal struck
            for path in victims.iterdir():
                path.unlink()
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(int(path.name))
                    if "penstock.functions.child" in process.cmdline():
                        process.kill()
                        struck += 1
                        return

        arena.repeat(strike, every_s=(0.2, 0.8), enough=lambda: struck >= kills)
        canceling.join()
        arena.finish()
        again = {key.rpartition(":")[2] for key in arena.past_attempts()} & {job.id for job in well}
        assert not again, f"{len(again)} jobs of other models had a second attempt: {sorted(again)[:5]}"
        assert not arena.deaths(), f"processes of the service died: {arena.deaths()}"
        assert struck, "no process was killed from outside"
        return run.done("model_processes", arena, begun, kills=struck, spoilt=len(spoilt), beside=len(well))


def _jobs(model: str, count: int, **input: Any) -> list[Wanted]:  # noqa: A002
    return [replace(job, model=model) for job in jobs(count, **input)]
