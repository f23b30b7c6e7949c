"""Object events over HTTP: access, outcomes, and the events of a real Ceph gateway."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.api_keys import new_key
from penstock.config_tables import DropRule
from penstock.errors import Overloaded
from penstock.storage.journal.api_keys import put_key
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import drop_events, listing
from penstock.storage.redis.counts import counts
from penstock.storage.redis.records import JobStore
from penstock.workers.keeper.drop_watch import GIVE_UP_S, DropWatch
from penstock.workers.keeper.drops import open_drops
from tests.support.api_server import listening
from tests.support.ceph import Ceph
from tests.support.echo_processor import Bench, open_bench
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

SECRET = "of the tests"


def rule(bucket: str = "scenes", **changes: Any) -> DropRule:
    fields = {
        "name": "inbox", "bucket": f"s3://{bucket}", "prefix": "in/", "suffixes": (".txt",), "model": "echo",
        "field": "text", "output_prefix": "out/", "events": "webhook",
    }  # fmt: skip
    return DropRule(**(fields | changes))


def records(*keys: str, bucket: str = "scenes", name: str = "ObjectCreated:Put") -> dict[str, Any]:
    return {
        "Records": [
            {"eventSource": "ceph:s3", "eventName": name, "s3": {"bucket": {"name": bucket}, "object": {"key": key}}}
            for key in keys
        ]
    }


def key(service: Service, tenant: str = "default", scopes: Any = ("events",)) -> str:
    record, text = new_key(SECRET, tenant=tenant, name="", scopes=scopes, created_s=time.time(), expires_s=None)
    put_key(service.objects, record)
    return text


def basic(password: str, user: str = "ceph") -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}


async def tell(service: Service, body: Any, **headers: str) -> httpx2.Response:
    return await service.http.post("/v1/events/s3", json=body, headers=headers)


async def waiting(service: Service) -> int:
    return (await service.jobs.run(counts())).waiting_drop_events


@pytest.fixture
async def waits(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    """A service with keys, and rules of two tenants that wait for events."""
    rules = (
        rule(),
        rule(name="listed", prefix="listed/", output_prefix="o1/", events=None),
        rule("acmes", name="acme", tenant="acme"),
    )
    async with serving(valkey.url, tmp_path, access="keys", drops=rules) as service:
        yield service


class TestWhoMay:
    async def test_nobody_where_no_rule_waits(self, service: Service) -> None:
        problem = assert_problem(await tell(service, records("in/a.txt")), 404, "events_not_awaited")
        assert "events = 'webhook'" in problem["detail"]

    async def test_minio_with_a_key_as_its_token(self, waits: Service) -> None:
        answer = await tell(waits, records("in/a.txt"), Authorization=f"Bearer {key(waits)}")
        assert (answer.status_code, answer.json()["queued"]) == (202, 1)

    async def test_ceph_with_a_key_as_its_password(self, waits: Service) -> None:
        answer = await tell(waits, records("in/a.txt"), **basic(key(waits)))
        assert (answer.status_code, answer.json()["queued"]) == (202, 1)

    @pytest.mark.parametrize(
        "headers", [{}, basic(""), basic("nonsense"), {"Authorization": "Basic ***"}, {"Authorization": "Basic"}]
    )
    async def test_nobody_without_one(self, waits: Service, headers: dict[str, str]) -> None:
        assert_problem(await tell(waits, records("in/a.txt"), **headers), 401, "unauthorized")
        assert await waiting(waits) == 0

    async def test_a_password_opens_no_other_route(self, waits: Service) -> None:
        everything = key(waits, scopes=("read", "submit", "monitor", "admin", "webhooks", "events"))
        assert_problem(await waits.http.get("/v1/jobs", headers=basic(everything)), 401, "unauthorized")

    async def test_no_key_for_anything_else(self, waits: Service) -> None:
        other = key(waits, scopes=("read", "submit", "monitor", "admin", "webhooks"))
        answer = await tell(waits, records("in/a.txt"), Authorization=f"Bearer {other}")
        assert_problem(answer, 403, "insufficient_scope")

    async def test_no_tenant_for_anothers_rule(self, waits: Service) -> None:
        both = {"Records": records("in/a.txt")["Records"] + records("in/a.txt", bucket="acmes")["Records"]}
        answer = await tell(waits, both, Authorization=f"Bearer {key(waits, 'acme')}")
        assert (answer.json()["queued"], answer.json()["foreign"]) == (1, 1)
        [lent] = await waits.jobs.run(drop_events.lease(10))
        assert lent.event.bucket == "acmes"
        nobody = await tell(waits, both, Authorization=f"Bearer {key(waits, 'other')}")
        assert_problem(nobody, 404, "events_not_awaited")


class TestWhatComes:
    @pytest.fixture
    async def sender(self, waits: Service) -> dict[str, str]:
        return {"Authorization": f"Bearer {key(waits)}"}

    async def test_each_event_is_said_once_what_becomes_of_it(self, waits: Service, sender: dict[str, str]) -> None:
        body = {
            "Records": [
                *records("in/a.txt", "in/b.txt", "in/a.txt", "in/a.tif", "out/a.txt", "listed/a.txt")["Records"],
                *records("in/")["Records"],
                *records("in/a.txt", name="ObjectRemoved:Delete")["Records"],
                {},
            ]
        }
        answer = await tell(waits, body, **sender)
        expected = {"queued": 2, "duplicate": 1, "foreign": 3, "ignored": 2, "unreadable": 1}
        assert answer.json() == {"object": "events"} | expected
        del expected["queued"]
        found = await waits.jobs.run(counts())
        assert found.drop_events == {("webhook", name): n for name, n in expected.items()}
        assert found.waiting_drop_events == 2

    @pytest.mark.parametrize("body", [{}, {"Type": "SubscriptionConfirmation"}])
    async def test_what_is_no_notification_is_refused_and_counted(
        self, waits: Service, sender: dict[str, str], body: Any
    ) -> None:
        assert_problem(await tell(waits, body, **sender), 422, "invalid_request")
        assert (await waits.jobs.run(counts())).drop_events == {("webhook", "unreadable"): 1}


class TestTheQueue:
    """Objects that wait for the keeper, in Redis."""

    def told(self, store: JobStore, *keys: str) -> None:
        store.run(drop_events.add([drop_events.ObjectEvent("scenes", name) for name in keys]))

    def test_past_its_bound_it_asks_for_patience(self, store: JobStore) -> None:
        events = [drop_events.ObjectEvent("scenes", name) for name in "abc"]
        with pytest.raises(Overloaded) as refused:
            store.run(drop_events.add(events, limit=2))
        assert refused.value.retry_after_s == 30
        assert {each.event.key for each in store.run(drop_events.lease(10))} == {"a", "b"}

    def test_what_is_lent_comes_again_unless_it_is_done(self, store: JobStore) -> None:
        self.told(store, "a", "b")
        first, second = store.run(drop_events.lease(10))
        assert store.run(drop_events.lease(10)) == ()
        assert store.run(drop_events.done([first])) == 1
        for object_ in store.client.zrange("penstock:drops:events", 0, -1):
            store.client.zadd("penstock:drops:events", {object_: 0})  # its lease is over
        [again] = store.run(drop_events.lease(10))
        assert again.object == second.object
        assert again.age_s > 0

    def test_what_was_told_anew_since_is_not_done(self, store: JobStore) -> None:
        self.told(store, "a")
        [old] = store.run(drop_events.lease(10))
        store.client.zadd("penstock:drops:events", {old.object: 5})
        assert store.run(drop_events.done([old])) == 0
        assert len(store.run(drop_events.lease(10))) == 1


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path, ceph: Ceph) -> Iterator[Bench]:
    """A worker's parts, and a rule on a bucket of the real gateway that waits for events."""
    with open_bench(valkey.url, tmp_path, drops=(rule(ceph.bucket()),), s3=ceph.s3) as bench:
        yield bench


def jobs(bench: Bench) -> list[str]:
    return [job.key.id for job in bench.store.run(listing.list_jobs("default")).jobs]


class TestTheKeepersPart:
    def tell(self, bench: Bench, *keys: str) -> DropWatch:
        [dropped] = bench.settings.drops
        bucket = dropped.bucket.removeprefix("s3://")
        bench.store.run(drop_events.add([drop_events.ObjectEvent(bucket, name) for name in keys]))
        return DropWatch(open_drops(bench.settings, bench.store, bench.objects), bench.store)

    def test_an_event_makes_a_job_and_its_end_the_result_without_a_listing(self, bench: Bench) -> None:
        bucket = open_store(bench.settings.drops[0].bucket, bench.settings)
        bucket.put_bytes("in/ä b+c%2Fd.txt", b"hi", content_type="text/plain")
        watch = self.tell(bench, "in/ä b+c%2Fd.txt", "in/gone.txt")
        watch.check_waiting()
        assert len(jobs(bench)) == 1
        bench.slots.work("default")
        watch.check_waiting()
        marker = json.loads(bucket.get_bytes("out/ä b+c%2Fd.txt.done.json", limit_bytes=10_000))
        assert marker["id"] == jobs(bench)[0]
        found = bench.store.run(counts())
        assert found.drop_events == {("webhook", "submitted"): 1, ("webhook", "missing"): 1}
        assert found.waiting_drop_events == 0
        assert bench.store.client.zcard("penstock:drops:ended") == 0

    def test_the_end_of_a_job_whose_object_is_gone_asks_for_nothing(self, bench: Bench) -> None:
        bucket = open_store(bench.settings.drops[0].bucket, bench.settings)
        bucket.put_bytes("in/a.txt", b"hi", content_type="text/plain")
        watch = self.tell(bench, "in/a.txt")
        watch.check_waiting()
        bench.slots.work("default")
        bucket.delete("in/a.txt")
        watch.check_waiting()
        assert list(bucket.list("out/")) == []
        assert bench.store.client.zcard("penstock:drops:ended") == 0

    def test_what_cannot_be_done_yet_comes_again_until_the_listing_is_left_to_it(self, bench: Bench) -> None:
        bucket = open_store(bench.settings.drops[0].bucket, bench.settings)
        bucket.put_bytes("in/a.txt", b"hi", content_type="text/plain")
        watch = self.tell(bench, "in/a.txt")
        [drop] = watch._drops.values()
        drop.rule = drop.rule.model_copy(update={"model": "nobodys"})
        watch.check_waiting()
        [waits] = bench.store.client.zrange("penstock:drops:events", 0, -1)
        assert bench.store.run(counts()).drop_events == {("webhook", "postponed"): 1}
        bench.store.client.zadd("penstock:drops:events", {waits: 0})
        bench.store.client.hincrby("penstock:drops:since", waits, -round((GIVE_UP_S + 1) * 1e6))
        watch.check_waiting()
        assert bench.store.run(counts()).waiting_drop_events == 0


class TestCeph:
    async def notify(self, ceph: Ceph, bucket: str, address: str) -> None:
        sns, s3 = ceph.client("sns"), ceph.client("s3")
        options = {"push-endpoint": address, "persistent": "false"}
        topic = await asyncio.to_thread(sns.create_topic, Name=f"t-{bucket}", Attributes=options)
        configuration = {"Id": "n", "TopicArn": topic["TopicArn"], "Events": ["s3:ObjectCreated:*"]}
        await asyncio.to_thread(
            s3.put_bucket_notification_configuration,
            Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [configuration]},
        )  # fmt: skip

    async def test_a_real_gateway_tells_of_objects_by_its_password(
        self, valkey: ValkeyProcess, tmp_path: Path, ceph: Ceph
    ) -> None:
        bucket = ceph.bucket()
        options = {"access": "keys", "drops": (rule(bucket),), "s3": ceph.s3}
        async with serving(valkey.url, tmp_path, **options) as service, listening(service) as server:
            address = server.url.replace("http://", f"http://ceph:{key(service)}@") + "/v1/events/s3"
            await self.notify(ceph, bucket, address)
            s3 = ceph.client("s3")
            for name in ("in/ä b+c%2Fd&.txt", "in/folder/", "in/a.tif"):
                await asyncio.to_thread(s3.put_object, Bucket=bucket, Key=name, Body=b"hi")
            upload = await asyncio.to_thread(s3.create_multipart_upload, Bucket=bucket, Key="in/parts.txt")
            where = {"Bucket": bucket, "Key": "in/parts.txt", "UploadId": upload["UploadId"]}
            part = await asyncio.to_thread(s3.upload_part, **where, PartNumber=1, Body=b"hi")
            parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
            await asyncio.to_thread(s3.complete_multipart_upload, **where, MultipartUpload=parts)
            # Not persistent: the gateway has told before it answers the upload.
            lent = await service.jobs.run(drop_events.lease(10))
            assert {each.event.key for each in lent} == {"in/ä b+c%2Fd&.txt", "in/parts.txt"}
            found = (await service.jobs.run(counts())).drop_events
            assert found == {("webhook", "ignored"): 1, ("webhook", "foreign"): 1}
