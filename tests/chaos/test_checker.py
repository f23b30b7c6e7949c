"""The checker itself: it is silent about a good run and names what is wrong with each bad one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos import (
    on_catalogues,
    on_chains,
    on_fleet,
    on_functions,
    on_parts,
    on_processes,
    on_redis,
    on_stops,
    on_surroundings,
    on_web,
)
from tests.chaos.checker import check
from tests.chaos.history import Answer, History, Leftovers, Look, Received, Wanted
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.survival import scenarios_of

ARTIFACT = "tenants/default/jobs/a/attempts/7/said.txt"


def view(status: str, text: str = "x:1", done: str | None = "t") -> dict[str, Any]:
    ended = status == "succeeded"
    artifacts = [{"name": "said.txt", "sha256": text, "uri": "u"}] if ended else []
    output = {"text": text} if ended else None
    return {"status": status, "output": output, "artifacts": artifacts, "error": None, "completed_at": done}


def hook(event: str = "job.succeeded", webhook_id: str = "m", body: str = "") -> Received:
    return Received(webhook_id, json.dumps({"type": event, "data": {"id": "a", "x": body}}).encode(), 200)


class Bad:
    """A good run, to be spoilt."""

    def __init__(self) -> None:
        self.history = History()
        self.history.want([Wanted("a", {"text": "x"}, webhook="http://w")])
        self.history.accepted.add("a")
        self.see("queued", 1, done=None)
        self.see("succeeded", 2)
        self.hooks = [hook(), hook()]
        record = {"penstock:tenant:default:job:a": ("hash", -1, 30)}
        sums = {("default/9", "m succeeded"): 1, ("default/9", "m device_us"): 5}
        self.left = Leftovers(
            record, frozenset({ARTIFACT}), {"a": (ARTIFACT,)}, {"a": "delivered"}, sums, dict(sums)
        )  # fmt: skip

    def see(self, status: str, at_s: float, **fields: Any) -> None:
        self.history.saw("a", Look.at(view(status, **fields)), began_s=at_s, ended_s=at_s + 0.5)

    def violations(self) -> list[str]:
        return check(self.history, self.hooks, self.left)

    def leave(self, key: str, ttl_ms: int = -1) -> None:
        self.left = replace(self.left, keys={**self.left.keys, key: ("zset", ttl_ms, 1)})

    def count(self, measure: str, by: int) -> None:
        name = ("default/9", measure)
        self.left = replace(self.left, usage={**self.left.usage, name: self.left.usage.get(name, 0) + by})

    def store(self, key: str) -> None:
        self.left = replace(self.left, objects=self.left.objects | {key})

    def answer(self, status: int, took_s: float = 0.1, retry_after: str | None = None) -> None:
        self.history.answers.append(Answer(0, "submit", "a", status, took_s, retry_after))


def test_a_good_run_has_no_violations() -> None:
    run = Bad()
    run.answer(503, retry_after="2")
    run.answer(0)
    run.see("succeeded", 9)
    run.leave("penstock:claim:s:n", ttl_ms=10)
    run.leave("_kombu.binding_permanent.penstock.default")
    run.store(ARTIFACT.replace("said.txt", "manifest.json"))
    run.store("tenants/default/jobs/a/outcome.json")
    run.store("tenants/default/jobs/a/cancel.json")
    assert run.violations() == []


def test_a_look_that_was_on_its_way_when_the_job_ended_is_no_change() -> None:
    run = Bad()
    run.history.saw("a", Look.at(view("running", done=None)), began_s=2.4, ended_s=9)
    assert run.violations() == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: run.history.over.clear(), "never seen to end"),
        (lambda run: run.history.accepted.clear(), "was never accepted"),
        (lambda run: run.see("running", 3, done=None), "then running"),
        (lambda run: run.see("succeeded", 3, text="x:2"), "then succeeded"),
        (lambda run: run.see("succeeded", 1, text="x:2"), "then succeeded"),
        (lambda run: run.history.want([Wanted("a", {"text": "y"})]), "another job's result"),
        (lambda run: run.history.want([Wanted("a", {"text": "x"}, ends=("failed",))]), "expected ('failed',)"),
        (lambda run: run.answer(200, took_s=5.1), "took 5.1 s"),
        (lambda run: run.answer(503), "503 without Retry-After"),
        (lambda run: run.answer(500), "500"),
        (lambda run: run.hooks.append(hook(webhook_id="n")), "2 webhook ids"),
        (lambda run: run.hooks.append(hook(body="z")), "2 different bodies"),
        (lambda run: run.hooks.append(hook("job.failed")), "its webhooks said"),
        (lambda run: run.hooks.clear(), "never told"),
        (lambda run: run.leave("penstock:leases"), "penstock:leases"),
        (lambda run: run.leave("penstock:tenant:default:live"), "tenant:default:live"),
        (lambda run: run.leave("penstock:claim:s:n"), "never expires"),
        (lambda run: run.store(ARTIFACT.replace("/7/", "/8/")), "attempts/8/said.txt is left"),
        (lambda run: run.store("tenants/default/jobs/b/request.json"), "jobs/b/request.json is left"),
        (lambda run: run.store("tenants/default/jobs/b/cancel.json"), "jobs/b/cancel.json is left"),
        (lambda run: setattr(run, "left", replace(run.left, objects=frozenset())), "is gone"),
        (lambda run: run.count("m device_us", 5), "10 is counted, 5 was committed"),
        (lambda run: run.count("n pixels", 1), "1 is counted, 0 was committed"),
        (lambda run: run.count("m succeeded", -1), "0 succeeded jobs are counted, 1 were seen"),
    ],
)
def test_each_violation_is_named(spoil: Callable[[Bad], object], words: str) -> None:
    run = Bad()
    spoil(run)
    assert any(words in violation for violation in run.violations())


def test_every_scenario_is_run_by_a_test_of_its_module() -> None:
    modules = (
        on_catalogues, on_chains, on_fleet, on_functions, on_parts, on_processes, on_stops, on_redis, on_surroundings,
        on_web,
    )  # fmt: skip
    assert {name for module in modules for name in scenarios_of(module)} == set(SCENARIOS)
