"""Subscriptions against a STAC API, a real Valkey, and both object stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.config_tables import TenantLimits
from penstock.errors import ObjectStoreUnavailable
from penstock.jobs import State
from penstock.storage.journal.subscription_progress import put_progress, read_progress
from penstock.storage.journal.subscriptions import (
    SubscriptionKey,
    change_subscription,
    find_subscription,
    subscriber_key,
)
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.local import LocalStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis.records import JobStore
from penstock.workers.keeper.recovery import recover_if_lost
from tests.support.ceph import Ceph
from tests.support.polling import wait_for
from tests.support.stac_api import square, stac_api, stac_item
from tests.support.subscribing import DAY_S, KEY, Subscribed
from tests.support.valkey import ValkeyProcess

OTHER = SubscriptionKey("default", "other")


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return LocalStore(tmp_path / "objects")
    ceph: Ceph = request.getfixturevalue("ceph")
    from penstock.config import Settings

    return open_store(f"s3://{ceph.bucket()}", Settings(s3=ceph.s3))


@pytest.fixture
def desk(store: JobStore, objects: ObjectStore, tmp_path: Path) -> Iterator[Subscribed]:
    with stac_api(page_items=2) as api:
        yield Subscribed(api, store, objects, tmp_path)


def item(desk: Subscribed, name: str, days_ago: float, **more: Any) -> dict[str, Any]:
    return stac_item(name, round(desk.now_s - days_ago * DAY_S), **more)


def test_new_items_become_jobs_with_their_document_and_area_in_the_order_of_time(desk: Subscribed) -> None:
    desk.create(area=square(0.2, 0.2, 0.3), input={"outputs": ["stats"]})
    desk.api.put(item(desk, "c", 1), item(desk, "a", 3), item(desk, "b", 2))
    progress = desk.look()
    assert desk.items() == ["a", "b", "c"]
    [first, *_] = desk.jobs()
    submitted = first.submission
    assert submitted.input["stac"]["id"] == "a"
    assert submitted.input["outputs"] == ["stats"]
    assert submitted.input["area"]["type"] == "Polygon"
    assert submitted.metadata == {"subscription": "lagoon", "collection": "scenes", "item": "a"}
    assert (progress.jobs, progress.counts.new, progress.waiting) == (3, 3, None)
    desk.api.put(item(desk, "d", 0.5))
    assert desk.look(after_s=800).jobs == 3  # nothing is due yet
    assert desk.look(after_s=100).jobs == 4
    assert desk.items() == ["a", "b", "c", "d"]


def test_skipped_items_are_noted_with_the_reason(desk: Subscribed) -> None:
    desk.create(area=square(0.2, 0.2, 0.3), filter="eo:cloud_cover < 20")
    triangle = {"type": "Polygon", "coordinates": [[[1, 0], [1, 1], [0.9, 1], [1, 0]]]}  # whose box overlaps
    desk.api.put(item(desk, "cloudy", 2, cloud=90), item(desk, "beside", 2, footprint=triangle | {}))
    desk.api.items["beside"]["bbox"] = [0, 0, 1, 1]
    progress = desk.look()
    assert desk.jobs() == []
    said = {note.item: (note.decision.value, note.reason) for note in progress.notes}
    assert said["beside"] == ("area", "does not overlap the area")
    assert said["cloudy"][0] == "filter"
    assert "eo:cloud_cover is 90" in said["cloudy"][1]
    assert (progress.counts.filtered, progress.counts.outside) == (1, 1)


def test_a_keeper_that_died_before_it_stored_its_progress_doubles_nothing(desk: Subscribed) -> None:
    desk.create()
    desk.api.put(item(desk, "a", 2), item(desk, "b", 1))
    desk.look()
    for name in desk.object_names(KEY.progress):
        desk.objects.delete(KEY.progress + name)
    desk.end()
    assert desk.look().jobs == 2
    assert desk.items() == ["a", "b"]


def test_two_keepers_at_once_double_nothing_and_one_of_them_stores_its_progress(desk: Subscribed) -> None:
    desk.create()
    desk.api.put(item(desk, "a", 2))
    one, other = desk.keeper(), desk.keeper()
    desk.look(one)
    other.step()  # it still holds nothing
    desk.api.put(item(desk, "b", 1))
    stale = desk.progress()
    desk.look(one, after_s=900)
    assert put_progress(desk.objects, stale) is None
    desk.look(other, after_s=900)
    assert desk.items() == ["a", "b"]


def test_an_emptied_redis_loses_no_subscription_and_doubles_nothing(desk: Subscribed, valkey: ValkeyProcess) -> None:
    desk.create()
    desk.api.put(item(desk, "a", 2), item(desk, "b", 1))
    keeper = desk.keeper()
    desk.look(keeper)
    desk.end()
    valkey.flush()
    desk.publish()
    desk.api.put(item(desk, "c", 0.5))
    assert desk.look(keeper, after_s=900).jobs == 3
    recover_if_lost(desk.store, desk.objects)
    assert sorted(desk.items()) == ["a", "b", "c"]
    assert {entry.id: entry.end for entry in desk.look().entries.values()} == {
        "a": "succeeded",
        "b": "succeeded",
        "c": None,
    }


def test_a_full_tenant_pauses_the_subscription_and_frees_it_later_without_a_gap(desk: Subscribed) -> None:
    desk.overrides = {"tenants": {"default": TenantLimits(max_jobs=2)}}
    desk.create()
    desk.api.put(*(item(desk, name, 3 - number / 10) for number, name in enumerate("abcd")))
    progress = desk.look()
    assert desk.items() == ["a", "b"]
    assert progress.waiting is not None
    assert (progress.counts.waiting, progress.notes[0].decision.value, progress.notes[0].item) == (2, "waiting", "c")
    desk.end()
    progress = desk.look(after_s=900)
    assert (desk.items(), progress.waiting) == (["a", "b", "c", "d"], None)


def test_a_model_that_is_not_there_makes_items_wait_and_a_refused_input_does_not(desk: Subscribed) -> None:
    desk.create(model="gone")
    desk.api.put(item(desk, "a", 2))
    assert "gone" in str(desk.look().waiting)
    change_subscription(desk.objects, KEY, lambda found: replace(found, model="mapper", input={"size": 3}))
    progress = desk.look(after_s=900)
    assert (progress.waiting, progress.notes[0].decision.value) == (None, "refused")
    assert desk.jobs() == []


def test_the_ends_of_jobs_are_followed(desk: Subscribed) -> None:
    desk.create()
    desk.api.put(item(desk, "a", 2))
    keeper = desk.keeper()
    desk.look(keeper)
    desk.end(State.FAILED)
    keeper.step()
    [entry] = desk.progress().entries.values()
    assert (entry.end, entry.is_open) == ("failed", False)


def test_a_catalogue_that_fails_is_reported_and_nothing_is_lost(desk: Subscribed) -> None:
    desk.create()
    desk.api.put(item(desk, "a", 2))
    desk.api.fault = lambda: (500, b"")
    keeper = desk.keeper()
    progress = desk.look(keeper)
    assert (progress.failures, "status 500" in str(progress.problem), progress.looked_s) == (1, True, None)
    desk.api.fault = lambda: None
    assert desk.look(keeper, after_s=30).problem is None
    assert desk.items() == ["a"]


def test_malformed_items_are_passed_over_and_the_others_count(desk: Subscribed) -> None:
    desk.create()
    good = item(desk, "good", 1)
    wrong: list[Any] = [
        {**good, "id": 3}, {**good, "id": "no-time", "properties": {}}, {**good, "id": "other", "collection": "others"},
        {**good, "id": "no-feature", "type": "Thing"}, {"a": 1}, {**good, "id": "\x1b[2J"},
        {**good, "id": "nul", "assets": {"a": {"href": "\0"}}},
    ]  # fmt: skip
    desk.api.arrange = lambda found: [*wrong, *found]
    desk.api.page_items = 50
    desk.api.put(good)
    progress = desk.look()
    assert desk.items() == ["good"]
    assert [note.item for note in progress.notes if note.decision.value == "refused"] == ["nul"]


def test_a_paused_subscription_looks_at_nothing_and_catches_up_afterwards(desk: Subscribed) -> None:
    desk.create()
    keeper = desk.keeper()
    desk.look(keeper)
    change_subscription(desk.objects, KEY, lambda found: replace(found, paused=True))
    desk.api.put(item(desk, "a", 0.1))
    requests = len(desk.api.requests)
    desk.now_s += 2000
    keeper.step()
    assert len(desk.api.requests) == requests
    change_subscription(desk.objects, KEY, lambda found: replace(found, paused=False))
    desk.look(keeper)
    assert desk.items() == ["a"]


def test_a_deleted_subscription_ends_and_its_name_makes_a_new_one(desk: Subscribed) -> None:
    desk.create()
    desk.api.put(item(desk, "a", 1))
    keeper = desk.keeper()
    desk.look(keeper)
    change_subscription(desk.objects, KEY, lambda found: replace(found, deleted=True))
    keeper.step()
    assert desk.object_names(KEY.progress) == []
    desk.create(uid="uid-2")
    desk.look(keeper)
    assert desk.items() == ["a", "a"]
    assert find_subscription(desk.objects, KEY) is not None
    assert desk.object_names(subscriber_key("default")) == [""]


def test_an_object_store_in_trouble_postpones_a_step_and_not_the_other_subscriptions(
    store: JobStore, tmp_path: Path
) -> None:
    class Troubled(LocalStore):
        def get_bytes(self, key: str, *, limit_bytes: int) -> bytes:
            if "/lagoon/" in key:
                raise ObjectStoreUnavailable("away")
            return super().get_bytes(key, limit_bytes=limit_bytes)

    with stac_api() as api:
        desk = Subscribed(api, store, LocalStore(tmp_path / "objects"), tmp_path)
        desk.create()
        desk.create(key=OTHER, uid="uid-3")
        desk.api.put(item(desk, "a", 1))
        desk.objects = Troubled(tmp_path / "objects")
        desk.keeper().step()
        assert [job.submission.metadata["subscription"] for job in desk.jobs()] == ["other"]
        assert read_progress(desk.objects, OTHER) is not None


def test_a_catalogue_that_hangs_delays_the_subscriptions_of_no_other_tenant(
    store: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.workers.keeper.subscription_polls.STEP_S", 0.1)
    healed, asked = threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        healed.wait(60)

    with stac_api() as bad, stac_api() as good:
        bad.fault = hang
        desk = Subscribed(good, store, LocalStore(tmp_path / "objects"), tmp_path)
        desk.overrides = {"allowed_hosts": (f"127.0.0.1:{bad.port}", f"127.0.0.1:{good.port}")}
        for number in range(5):
            desk.create(key=SubscriptionKey("slow", f"s{number}"), uid=f"uid-s{number}", stac=bad.url)
        desk.create()
        good.put(item(desk, "a", 1))
        keeper = desk.keeper()
        keeper.step()
        assert asked.wait(30)
        wait_for(lambda: desk.items() == ["a"], "the other tenant's item became no job")
        healed.set()
        keeper.close()


def test_an_item_larger_than_a_request_may_be_is_refused(desk: Subscribed) -> None:
    desk.overrides = {"tenants": {"default": TenantLimits(max_body_bytes=2000)}}
    desk.create()
    desk.api.put(item(desk, "a", 1, assets={f"b{number}": {"href": "x" * 20} for number in range(100)}))
    [note] = desk.look().notes
    assert (note.decision.value, "are allowed" in note.reason) == ("refused", True)
