"""Faults of catalogues, and of the keepers that look at them."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2

from penstock.jobs import JobKey
from penstock.storage.journal.manifests import read_manifest
from tests.chaos.arena import Arena, Summary
from tests.chaos.clients import jobs
from tests.chaos.run import Run
from tests.support.stac_api import FAULTS, Fault, StacApi, seconds, stac_api, stac_item

LOOK_BACK_S = 3600.0
#: Kills around the submission of a job, among them the moment between two jobs and that before the progress is stored.
_DEATHS = {
    name: {"action": "kill", "chance": 0.04, "limit": 2}
    for name in ("before_submit", "after_submit", "after_request", "before_confirm")
}
#: Seconds that a stopped keeper sleeps: longer than its lease, so that another one leads meanwhile.
_ASLEEP_S = 12.0


def subscriptions(run: Run) -> Summary:
    """A catalogue that publishes late, corrects, withdraws, repeats and reorders, and that fails; keepers that die.

    Redis is emptied twice, and a keeper sleeps past its lease beside another one. Each version that stayed published
    becomes one job, and no version becomes two.
    """
    count = run.pick(30, 1500)
    begun = time.monotonic()
    with stac_api(page_items=7) as web:
        options = {"allowed_hosts": (f"127.0.0.1:{web.port}",), "min_subscription_every_s": 1.0}
        with run.arena(durability="manifest", failpoints={"keeper": _DEATHS}, **options) as arena:
            arena.fleet.add_keeper("keeper1")
            _create(arena, web)
            arena.submit(jobs(10, takes_s=0.05), forgotten_model=True)
            catalogue = Catalogue(web, random.Random(run.seed), count)
            thread = threading.Thread(target=catalogue.live, name="catalogue")
            thread.start()
            for share in (3, 2):
                arena.until(lambda share=share: len(_made(arena)) >= count // share, within_s=arena.patience_s * 2)
                arena.struck.append(time.time())
                arena.valkey.flush()
                arena.fleet.one(f"keeper{1 if share == 2 else ''}").signal(signal.SIGKILL)
            sleeper = arena.fleet.one("keeper")
            sleeper.signal(signal.SIGSTOP)
            threading.Event().wait(_ASLEEP_S)
            sleeper.signal(signal.SIGCONT)
            thread.join()
            catalogue.heal()
            arena.until(lambda: catalogue.final <= _made(arena).keys(), within_s=arena.patience_s * 3)
            arena.until(lambda: _live(arena) == 0, within_s=arena.patience_s)
            arena.finish()
            made = _made(arena)
            doubled = [version for version, number in made.items() if number > 1]
            unknown = made.keys() - catalogue.published
            assert not doubled, f"doubled: {doubled}"
            assert not unknown, f"never published: {unknown}"
            deaths = sum(death.name.startswith("keeper") for death in arena.deaths())
            return run.done(
                "subscriptions", arena, begun, items=count, versions=len(catalogue.published), jobs_made=len(made),
                faults=catalogue.faults, keeper_deaths=deaths, missed=0, versions_doubled=0,
            )  # fmt: skip


class Catalogue:
    """The life of a catalogue: what it published, and what stayed published."""

    def __init__(self, web: StacApi, draws: random.Random, count: int) -> None:
        self._web, self._draws, self._count = web, draws, count
        #: Versions as (item, updated) that were ever published, and those that were still there at the end.
        self.published: set[tuple[str, str]] = set()
        self.faults = 0
        web.fault, web.arrange = self._fault, self._arrange

    @property
    def final(self) -> set[tuple[str, str]]:
        """The versions that are published now."""
        with self._web.lock:
            return {_version(item) for item in self._web.items.values()}

    def live(self) -> None:
        """Publish all items, correct and withdraw some."""
        for number in range(self._count):
            late_s = self._draws.uniform(0, LOOK_BACK_S * 0.8)
            self._publish(f"item-{number}", time.time() - late_s)
            known = sorted(self._web.items)
            if self._draws.random() < 0.3:
                again = self._web.items[self._draws.choice(known)]
                self._publish(again["id"], _time(again))
            if self._draws.random() < 0.1:
                self._web.withdraw(self._draws.choice(known))
            threading.Event().wait(1.0)

    def heal(self) -> None:
        """Answer well from now on."""
        self._web.fault, self._web.arrange = (lambda: None), (lambda found: found)

    def _publish(self, name: str, time_s: float) -> None:
        item = stac_item(name, round(time_s, 3), updated_s=round(time.time(), 6), assets={})
        self.published.add(_version(item))
        self._web.put(item)

    def _fault(self) -> Fault | None:
        if self._draws.random() >= 0.4:
            return None
        self.faults += 1
        return self._draws.choice(FAULTS)

    def _arrange(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self._draws.shuffle(found)
        return [*found[:2], *found]  # pages that repeat and reorder: an item may be on none of them this time


def _create(arena: Arena, web: StacApi) -> None:
    body = {
        "name": "catalogue", "stac": web.url, "collections": ["scenes"], "model": "chaos", "every": 1,
        "look_back": LOOK_BACK_S, "input": {"text": "subscription"},
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - LOOK_BACK_S)),
    }  # fmt: skip
    answer = httpx2.post(f"{arena.fleet.url}/v1/subscriptions", json=body, timeout=30)
    assert answer.status_code == 201, answer.text


def _made(arena: Arena) -> Counter[tuple[str, str]]:
    """Return the number of jobs of each version, as the object store has them, which no loss of Redis hides."""
    return Counter(_version(each["input"]["stac"]) for each in _requests(arena) if "stac" in each["input"])


def _requests(arena: Arena) -> Iterator[Mapping[str, Any]]:
    for info in list(arena.objects.list("tenants/default/jobs/")):
        if info.key.endswith("/request.json"):
            manifest = read_manifest(arena.objects, JobKey("default", info.key.split("/")[3]))
            if manifest is not None:
                yield {"input": manifest.submission.input}


def _live(arena: Arena) -> int:
    """Return the number of jobs without an outcome."""
    names = [info.key for info in arena.objects.list("tenants/default/jobs/")]
    ended = {name.split("/")[3] for name in names if name.endswith("/outcome.json")}
    return len({name.split("/")[3] for name in names if name.endswith("/request.json")} - ended)


def _version(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["id"], item["properties"]["updated"]


def _time(item: Mapping[str, Any]) -> float:
    return seconds(item["properties"]["datetime"])
