"""Results of subscriptions: a STAC collection that pystac opens and validates, conditions, and their webhook."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pystac
import pytest
from standardwebhooks import Webhook as Verifier

from penstock.intake.guard import GuardedClient
from penstock.jobs import Artifact, Delivery, State
from penstock.processors.geo.read.gdal import rasterio
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.subscriptions import change_subscription
from penstock.storage.objects.local import LocalStore
from penstock.storage.objects.opening import tenant_webhook_secret
from penstock.storage.redis import deliveries, listing
from penstock.storage.redis.records import JobStore, Outcome
from penstock.workers.keeper.webhooks import Deliverer
from tests.support.claims import claim_up_to
from tests.support.geo.stac_schemas import core_problems
from tests.support.stac_api import square, stac_api, stac_item
from tests.support.subscribing import DAY_S, KEY, Subscribed
from tests.support.valkey import ValkeyProcess
from tests.support.webhook_receivers import receiving

CLASSES = [{"value": 0, "name": "land", "title": "land"}, {"value": 1, "name": "water", "title": "water"}]
CONDITION = "gained(water) > 1 km2"


@pytest.fixture
def desk(store: JobStore, tmp_path: Path) -> Iterator[Subscribed]:
    with stac_api() as api:
        yield Subscribed(api, store, LocalStore(tmp_path / "objects"), tmp_path)


def finish(desk: Subscribed, **water: float) -> None:
    """End the jobs of these items with class maps of 1° x 1° at 0° N 0° E: the share of water from the west."""
    claims = claim_up_to(desk.store, 100, "default", models=["mapper"], max_tenant_running=200)
    for claim in claims:
        job = Journal(desk.store, desk.objects).run(journal.read(claim.key))
        source = job.submission.input["stac"]
        ids = np.zeros((100, 100), np.uint8)
        ids[:, : round(100 * water[source["id"]])] = 1
        path = desk.folder / f"{claim.key.id}.tif"
        with rasterio.open(
            path, "w", driver="GTiff", width=100, height=100, count=1, dtype="uint8", crs="EPSG:4326", nodata=255,
            transform=rasterio.Affine(0.01, 0, 0, 0, -0.01, 1),
        ) as file:  # fmt: skip
            file.write(ids, 1)
        item = {
            "type": "Feature", "stac_version": "1.1.0", "id": "of-the-worker", "geometry": square(0, 0, 1),
            "stac_extensions": ["https://stac-extensions.github.io/classification/v1.1.0/schema.json"],
            "bbox": [0, 0, 1, 1], "properties": {"datetime": source["properties"]["datetime"]}, "links": [],
            "assets": {"classes.tif": {"href": "./classes.tif", "classification:classes": CLASSES}},
        }  # fmt: skip
        contents = {"classes.tif": path.read_bytes(), "item.json": json.dumps(item).encode()}
        artifacts = []
        for name, data in contents.items():
            desk.objects.put_bytes(claim.prefix + name, data, content_type="image/tiff")
            artifacts.append(Artifact(name, "image/tiff", len(data), "", claim.prefix + name))
        Journal(desk.store, desk.objects).run(
            journal.complete(claim, Outcome(State.SUCCEEDED, artifacts=tuple(artifacts)))
        )


def publish(desk: Subscribed, *items: tuple[str, float, float], updated_s: float | None = None) -> None:
    """Have the catalogue publish items (name, days ago, share of water), the jobs run, and the results be published."""
    for name, days_ago, _ in items:
        desk.api.put(stac_item(name, round(desk.now_s - days_ago * DAY_S), updated_s=updated_s))
    keeper = desk.keeper()
    desk.look(keeper, after_s=900)
    finish(desk, **{name: share for name, _, share in items})
    keeper.step()


def collection(desk: Subscribed) -> pystac.Collection:
    return pystac.Collection.from_file(str(desk.folder / "objects" / KEY.results / "collection.json"))


def test_the_results_are_a_collection_that_pystac_opens_and_validates(desk: Subscribed) -> None:
    desk.create()
    publish(desk, ("b", 1, 0.5), ("a", 2, 0.2))
    found = collection(desk)
    items = list(found.get_items())
    assert [item.id for item in items] == ["a", "b"]
    for item in items:
        assert item.get_collection() is not None
        href = item.assets["classes.tif"].get_absolute_href()
        assert href is not None
        with rasterio.open(href) as file:
            assert file.shape == (100, 100)
        assert item.collection_id == "lagoon"
        assert core_problems(item.to_dict()) == []
    assert core_problems(found.to_dict()) == []
    assert found.extent.spatial.bboxes == [[0, 0, 1, 1]]
    interval = found.extent.temporal.intervals[0]
    assert interval == [items[0].datetime, items[1].datetime]


def test_a_corrected_item_replaces_its_result(desk: Subscribed) -> None:
    desk.create()
    publish(desk, ("a", 1, 0.5), updated_s=desk.now_s - 100)
    [first] = desk.progress().published
    publish(desk, ("a", 1, 0.2), updated_s=desk.now_s)
    [second] = desk.progress().published
    assert first.job != second.job
    assert [item.id for item in collection(desk).get_items()] == ["a"]
    folders = {name.split("/")[1] for name in desk.object_names(KEY.results) if "/" in name}
    assert folders == {second.folder}


def test_the_results_of_a_deleted_subscription_are_not_those_of_the_next_one_of_its_name(desk: Subscribed) -> None:
    desk.create()
    publish(desk, ("a", 1, 0.5))
    change_subscription(desk.objects, KEY, lambda found: replace(found, deleted=True))
    desk.create(uid="uid-2")  # before a keeper sees the deletion
    desk.look()
    assert desk.object_names(KEY.results) == []


def test_a_result_without_an_item_of_its_own_has_the_place_of_its_source(desk: Subscribed) -> None:
    desk.create()
    desk.api.put(stac_item("a", round(desk.now_s - DAY_S)))
    keeper = desk.keeper()
    desk.look(keeper)
    [key] = desk.end()
    keeper.step()
    [item] = collection(desk).get_items()
    assert (item.id, item.bbox, item.geometry) == ("a", [0, 0, 1, 1], square(0, 0, 1))
    assert str(key.id)[:13] in str(item.get_self_href())


def test_a_failed_job_publishes_nothing(desk: Subscribed) -> None:
    desk.create()
    desk.api.put(stac_item("a", round(desk.now_s - DAY_S)))
    keeper = desk.keeper()
    desk.look(keeper)
    desk.end(State.FAILED)
    keeper.step()
    assert desk.object_names(KEY.results) == []


def test_a_condition_compares_with_the_result_before_in_each_polygon(desk: Subscribed) -> None:
    features = [
        {"type": "Feature", "properties": {"name": name}, "geometry": square(west, 0.2, 0.4)}
        for name, west in (("west", 0.05), ("east", 0.55))
    ]
    desk.create(area={"type": "FeatureCollection", "features": features}, condition=CONDITION)
    publish(desk, ("a", 3, 0.2), ("b", 2, 0.2), ("c", 1, 0.3))
    by_item = {each.item: each.change for each in desk.progress().published}
    assert by_item["scenes/a"] == {"holds": False, "before": None, "polygons": []}
    assert [part["holds"] for part in (by_item["scenes/b"] or {})["polygons"]] == [False, False]
    changed = by_item["scenes/c"] or {}
    assert (changed["holds"], changed["before"]) == (True, "scenes/b")
    west, east = changed["polygons"]
    # 0.1° x 0.4° at the equator: 11.13 km x 44.23 km
    assert west["m2"]["gained(water)"] == pytest.approx(11_132 * 44_230, rel=1e-3)
    assert (west["name"], west["holds"], east["holds"], east["m2"]["gained(water)"]) == ("west", True, False, 0)


def test_with_a_condition_results_are_judged_in_the_order_of_their_items(desk: Subscribed) -> None:
    desk.create(condition=CONDITION)
    desk.api.put(*(stac_item(name, round(desk.now_s - days * DAY_S)) for name, days in (("a", 2), ("b", 1))))
    keeper = desk.keeper()
    desk.look(keeper)
    first, second = claim_up_to(desk.store, 9, "default", models=["mapper"], max_tenant_running=9)
    Journal(desk.store, desk.objects).run(journal.complete(second, Outcome(State.SUCCEEDED)))
    keeper.step()
    assert desk.progress().published == ()
    Journal(desk.store, desk.objects).run(journal.complete(first, Outcome(State.FAILED)))
    keeper.step()
    [published] = desk.progress().published
    assert published.item == "scenes/b"


def test_a_condition_that_cannot_be_judged_holds_and_says_why(desk: Subscribed) -> None:
    desk.create(condition="area(lava) > 1 m2")
    publish(desk, ("a", 1, 0.5))
    [published] = desk.progress().published
    assert published.change == {"holds": True, "problem": "the map has no class 'lava'; its classes are land, water"}


def test_the_receiver_is_told_of_changes_alone_once_and_again_after_a_loss_of_redis(
    desk: Subscribed, valkey: ValkeyProcess
) -> None:
    with receiving() as receiver:
        desk.create(condition=CONDITION, webhook=receiver.url)
        publish(desk, ("a", 3, 0.2), ("b", 2, 0.2), ("c", 1, 0.3))
        assert [job.submission.webhook for job in desk.store.run(listing.list_jobs("default")).jobs] == [None] * 3
        valkey.flush()  # before it was sent
        desk.publish()
        keeper = desk.keeper()
        keeper.step()
        settings = desk.settings.model_copy(update={"allowed_hosts": (receiver.pair,)})
        deliverer = Deliverer(desk.store, desk.objects, GuardedClient(settings), base_url="http://api")
        assert deliverer.deliver_due() == 1
        deliverer.close()
        headers, body = receiver.got.get(timeout=30)
        event = Verifier(tenant_webhook_secret(desk.objects, "default")).verify(body, headers)
        keeper.step()
        keeper.step()
        assert receiver.got.empty()
    data: Any = event["data"]
    assert (event["type"], data["item"], data["before"], data["condition"]) == (
        "subscription.changed", "c", "scenes/b", CONDITION
    )  # fmt: skip
    assert data["polygons"][0]["m2"]["gained(water)"] > 1e6
    assert data["links"]["item"].endswith("/item.json")
    assert [each.told for each in desk.progress().published] == [False, False, True]
    delivery = desk.store.run(deliveries.delivery("default", headers["webhook-id"]))
    assert delivery.state is Delivery.DELIVERED


def test_without_a_condition_each_job_has_the_webhook(desk: Subscribed) -> None:
    desk.create(webhook="http://files.test/hook")
    desk.api.put(stac_item("a", round(desk.now_s - DAY_S)))
    desk.look()
    [job] = desk.jobs()
    assert job.submission.webhook is not None
    assert job.submission.webhook.url == "http://files.test/hook"


def test_old_results_leave_the_collection(desk: Subscribed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.workers.keeper.subscription_results.MAX_RESULTS", 2)
    desk.create()
    publish(desk, ("a", 3, 0.2), ("b", 2, 0.2), ("c", 1, 0.3))
    assert [item.id for item in collection(desk).get_items()] == ["b", "c"]
    assert len({name.split("/")[1] for name in desk.object_names(KEY.results) if "/" in name}) == 2
    assert replace(desk.progress(), revision=0).published[0].item == "scenes/b"
