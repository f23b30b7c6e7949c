"""Documents of the next release: an unknown field, an unknown state and a higher version, in all that is stored."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from penstock.api_keys import Scope, admits, new_key, parse
from penstock.batches import BatchEnd, BatchKey, BatchManifest, BatchStatus, Counts, Cursor
from penstock.config import Settings
from penstock.errors import RecordTooNew
from penstock.formats import CHAINED, READS, RUNS, WRITES
from penstock.jobs import Claim, Job, JobKey, Phase, Progress, State, Status, Submission, Usage, Webhook
from penstock.processors.geo.tiling import strips
from penstock.storage.journal import (
    api_keys,
    batch_journal,
    batch_manifests,
    endpoint_changes,
    endpoints,
    journal,
    manifests,
)
from penstock.storage.journal.endpoints import Endpoint
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import batches, catalogues, deliveries, listing, record, records, upkeep, workers
from penstock.storage.redis.records import JobStore, Outcome
from penstock.workers.keeper.keeper import settle_reservations
from penstock.workers.keeper.recovery import recover_if_lost
from penstock.workers.keeper.retention import GRACE_S, delete_leftovers
from tests.support.bare_store import LIMITS, claim, read, submission, submit, sweep_until
from tests.support.claims import claiming
from tests.support.service import ECHO, Service
from tests.support.webhook_receivers import ENDPOINT, a_key, an_endpoint

NEXT, AFTER = RUNS + 1, READS + 1
DURABLE = replace(LIMITS, durable=True)
KEY = JobKey("default", "a")
#: A field of the next format, whose value a reader that decodes and encodes would change.
NEW = {"new_field": '{"a":[],"n":12345678901234567890}'}


@pytest.fixture
def desk(store: JobStore, tmp_path: Path) -> Journal:
    return Journal(store, LocalStore(tmp_path / "objects"))


def name_of(key: JobKey) -> str:
    return f"penstock:tenant:{key.tenant}:job:{key.id}"


def fields_of(store: JobStore, key: JobKey = KEY) -> dict[str, str]:
    return cast("dict[str, str]", store.client.hgetall(name_of(key)))


def write(store: JobStore, key: JobKey = KEY, **fields: Any) -> None:
    """Write fields into a record as another release would."""
    store.client.hset(name_of(key), mapping=fields)


def rewrite(desk: Journal, name: str, edit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Change a JSON object in the object store as another release would have written it."""
    found: dict[str, Any] = json.loads(desk.objects.get_bytes(name, limit_bytes=10**6))
    edit(found)
    desk.objects.put_bytes(name, json.dumps(found).encode(), content_type="application/json")
    return found


def claim_as_next(store: JobStore, n: int = 9) -> list[Claim]:
    """Claim as a worker of the next release, which runs its format."""
    commands = [claiming(max_tenant_running=99) for _ in range(n)]
    claims = [store.run(replace(command, args={**command.args, "version": NEXT})) for command in commands]
    return [held for held in claims if held is not None]


def jobs_in(store: JobStore) -> list[Job]:
    return list(store.run(listing.list_jobs("default")).jobs)


def test_the_scripts_have_the_same_number() -> None:
    lua = (Path(record.__file__).parent / "lua" / "common.lua").read_text()
    assert re.findall(r"^local READS = (\d+)$", lua, re.M) == [str(READS)]


class TestUnknownFieldOfARecord:
    def test_is_kept_from_submit_to_recovery(self, store: JobStore, desk: Journal) -> None:
        seen: list[dict[str, str]] = []

        def look() -> None:
            seen.append({name: text for name, text in fields_of(store).items() if name in NEW})

        reserved = store.run(records.submit(submission(webhook=Webhook("http://h/")), DURABLE)).job
        write(store, **NEW)
        desk.run(journal.submit(submission(webhook=Webhook("http://h/")), DURABLE))
        look()
        [held] = claim(store)
        store.run(records.heartbeat(held, Phase.INFERRING, Progress(1, 3), checkpoints=1))
        look()
        desk.run(journal.complete(held, Outcome(State.DELAYED)))
        sweep_until(store, lambda: read(store, reserved.key).state is State.QUEUED)
        look()
        [held] = claim(store)
        desk.run(journal.release(held))
        [held] = claim(store)
        store.client.zadd("penstock:leases", {str(KEY): 0})
        store.run(records.sweep())
        look()
        [held] = claim(store)
        assert desk.run(journal.complete(held, Outcome(State.SUCCEEDED, "done"))).visible
        look()
        store.client.flushall()
        recover_if_lost(store, desk.objects)
        look()
        assert read(store, KEY).text == "done"
        assert seen == [NEW] * 6

    def test_is_kept_where_it_was_written_after_the_outcome_was_proposed(self, store: JobStore) -> None:
        store.run(records.submit(submission(), DURABLE))
        store.run(records.confirm(KEY, 1))
        [held] = claim(store)
        proposal = store.run(records.complete(held, Outcome(State.SUCCEEDED))).proposal
        write(store, **NEW)
        store.run(records.commit(KEY, proposal or ""))
        assert fields_of(store)["new_field"] == NEW["new_field"]

    def test_does_not_stop_a_list(self, store: JobStore) -> None:
        submit(store, "a", webhook=Webhook("http://h/"))
        stored = json.loads(fields_of(store)["submission"])
        stored |= {"new_field": 1, "key": {**stored["key"], "new": 1}, "webhook": {**stored["webhook"], "new": [1]}}
        write(store, submission=json.dumps(stored), artifacts=json.dumps([_artifact(new_field=1)]), phase="dreaming")
        submit(store, "b")
        assert {job.key.id for job in jobs_in(store)} == {"a", "b"}
        job = read(store, KEY)
        assert json.loads(record.encoded(submission=job.submission)["submission"]) == stored
        [held, _] = [*claim(store, 1), *claim(store, 1)]
        assert held.submission.extra["new_field"] == 1


class TestUnknownState:
    def test_is_shown_and_left_alone(self, store: JobStore) -> None:
        submit(store, "a")
        submit(store, "b")
        write(store, state="held", shown="queued")
        assert [(job.status, job.state) for job in jobs_in(store)][-1] == (Status.QUEUED, State.OTHER)
        assert [job.key.id for job in store.run(listing.list_jobs("default", status=Status.RUNNING)).jobs] == []
        assert len(store.run(listing.list_jobs("default", status=Status.QUEUED)).jobs) == 2
        assert [held.key.id for held in claim(store, 9)] == ["b"]
        assert store.client.zrange("penstock:queue:q:waiting", 0, -1) == ["default/a"]
        before = fields_of(store)
        for index in ("leases", "deadlines", "delayed", "expiring"):
            store.client.zadd(f"penstock:{index}", {str(KEY): 0})
        store.run(records.sweep(proposals=10))
        assert fields_of(store) == before
        for index in ("leases", "deadlines", "delayed", "expiring"):
            assert store.client.zscore(f"penstock:{index}", str(KEY)) == 0

    def test_does_not_delay_the_sweep_of_others(self, store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "SWEEP_LIMIT", 5)
        for number in range(12):
            submit(store, f"h{number:02}")
            write(store, JobKey("default", f"h{number:02}"), state="held")
            store.client.zadd("penstock:leases", {f"default/h{number:02}": number})
        submit(store, "z")
        claim(store)
        store.client.zadd("penstock:leases", {"default/z": 100})
        assert store.run(records.sweep()).requeued == 1
        assert store.client.zcard("penstock:leases") == 12

    def test_a_cancel_is_noted_for_the_newer_process(self, store: JobStore, desk: Journal) -> None:
        desk.run(journal.submit(submission(), DURABLE))
        write(store, state="held")
        job = desk.run(journal.cancel(KEY))
        assert (job.state, job.cancel_requested, job.status) == (State.OTHER, True, Status.RUNNING)
        assert manifests.read_cancel(desk.objects, KEY) is False

    def test_an_end_that_is_not_known_is_an_end(self, store: JobStore, desk: Journal) -> None:
        desk.run(journal.submit(submission(), DURABLE))
        [held] = claim(store)
        proposal = json.loads(store.run(records.complete(held, Outcome(State.SUCCEEDED))).proposal or "")
        proposal["record"] |= {"state": "skipped", "shown": "succeeded"}
        desk.objects.put_bytes(f"{KEY.prefix}outcome.json", json.dumps(proposal).encode(), content_type="a/b")
        for _ in range(2):
            assert desk.run(journal.adopt(KEY)) is not None
            assert read(store, KEY).status is Status.SUCCEEDED
        assert store.client.scard("penstock:tenant:default:live") == 0
        events = [event.type for event in store.run(records.events(KEY))]
        assert events.count("job.skipped") == 1
        assert store.run(upkeep.purge([KEY])) == ()

    async def test_does_not_stop_the_api(self, service: Service) -> None:
        ids = [(await service.submit())["id"] for _ in range(3)]
        changes = ({"state": "held", "shown": "queued"}, {"version": NEXT, "phase": "dreaming"}, {"version": AFTER})
        for job_id, fields in zip(ids, changes, strict=True):
            await service.jobs.client.hset(name_of(JobKey("default", job_id)), mapping=fields)  # type: ignore[misc]
        listed = (await service.http.get("/v1/jobs")).json()["jobs"]
        assert {job["id"]: job["status"] for job in listed} == dict.fromkeys(ids[:2], "queued")
        statuses = [(await service.http.get(f"/v1/jobs/{job_id}")).status_code for job_id in ids]
        assert statuses == [200, 200, 500]
        problem = (await service.http.get(f"/v1/jobs/{ids[2]}")).json()
        assert (problem["code"], problem["retryable"]) == ("record_too_new", False)


class TestHigherVersion:
    def test_the_next_one_is_read_but_run_by_newer_workers_alone(self, store: JobStore) -> None:
        for number in range(30):
            submit(store, f"n{number:02}", replace(LIMITS, max_tenant_jobs=99))
            write(store, JobKey("default", f"n{number:02}"), version=NEXT)
        submit(store, "z")
        assert len(jobs_in(store)) == 31
        assert read(store, JobKey("default", "n00")).submission.version == NEXT
        assert [held.key.id for held in claim(store, 9)] == ["z"]
        assert len(claim_as_next(store)) == 9

    def test_the_one_after_is_changed_by_nobody(self, store: JobStore) -> None:
        submit(store)
        write(store, version=AFTER)
        before = fields_of(store)
        for command in (records.cancel(KEY), records.expire(KEY), records.read(KEY)):
            with pytest.raises(RecordTooNew):
                store.run(command)
        store.client.zadd("penstock:expiring", {str(KEY): 0})
        store.run(records.sweep(proposals=9))
        assert fields_of(store) == before
        assert jobs_in(store) == []

    def test_a_retry_of_a_newer_job_needs_a_newer_worker_too(self, store: JobStore, desk: Journal) -> None:
        desk.run(journal.submit(replace(submission(), version=NEXT, extra={"device": "large"}), DURABLE))
        desk.run(journal.cancel(KEY))
        desk.run(journal.retry(KEY, JobKey("default", "b"), DURABLE))
        assert claim(store, 9) == []
        [held] = claim_as_next(store)
        assert (held.key.id, held.submission.extra) == ("b", {"device": "large"})

    def test_webhooks_of_the_one_after_wait_for_a_newer_keeper(self, store: JobStore) -> None:
        submit(store, webhook=Webhook("http://h/"))
        store.run(records.cancel(KEY))
        write(store, version=AFTER)
        assert store.run(deliveries.due(9, 60)).tasks == ()
        write(store, version=NEXT)
        store.client.zadd("penstock:outbox", {"default/msg_a_job.canceled": 0}, xx=True)
        [task] = store.run(deliveries.due(9, 60)).tasks
        assert task.delivery.tries == 1


class TestManifest:
    def test_of_a_live_job_is_recovered_with_all_that_is_unknown(self, store: JobStore, desk: Journal) -> None:
        desk.run(journal.submit(submission(webhook=Webhook("http://h/")), DURABLE))

        def edit(found: dict[str, Any]) -> None:
            found |= {"version": NEXT, "new_field": 1, "record": {**NEW, "state": "held"}}
            found["submission"] |= {"device": {"kind": "large"}}
            found["submission"]["webhook"]["headers"] = [1]

        stored = rewrite(desk, f"{KEY.prefix}request.json", edit)
        store.client.flushall()
        recover_if_lost(store, desk.objects)
        found = fields_of(store)
        assert found["new_field"] == NEW["new_field"]
        assert (found["state"], found["version"]) == ("queued", str(NEXT))
        assert json.loads(found["submission"]) == stored["submission"]
        assert json.loads(found["webhook"]) == stored["submission"]["webhook"]
        assert claim(store) == []
        [held] = claim_as_next(store)
        desk.run(journal.complete(held, Outcome(State.SUCCEEDED)))
        store.client.flushall()
        recover_if_lost(store, desk.objects)
        assert json.loads(fields_of(store)["submission"]) == stored["submission"]
        assert read(store, KEY).state is State.SUCCEEDED

    def test_that_cannot_be_read_is_left_for_a_newer_keeper(self, store: JobStore, desk: Journal) -> None:
        other = JobKey("default", "b")
        for key in (KEY, other):
            desk.run(journal.submit(submission(key.id), DURABLE))
        rewrite(desk, f"{KEY.prefix}request.json", lambda found: found.update(version=AFTER))
        store.client.flushall()
        with capture_logs() as logged:
            recover_if_lost(store, desk.objects)
        assert [entry["event"] for entry in logged if entry["log_level"] == "warning"] == ["record.skipped"] * 2
        assert [job.key for job in jobs_in(store)] == [other]
        with pytest.raises(RecordTooNew):
            desk.run(journal.read(KEY))
        # A keeper that reads more compares again, although the jobs were compared in this run of the server.
        assert store.run(upkeep.witness()).compared
        newer = upkeep.witness()
        assert not store.run(replace(newer, args={**newer.args, "reads": AFTER})).compared

    def test_of_a_reservation_that_cannot_be_read_delays_no_other(self, store: JobStore, desk: Journal) -> None:
        for job_id in ("a", "b"):
            job = store.run(records.submit(submission(job_id), DURABLE)).job
            wanted = manifests.Manifest(submission(job_id), round(job.created_s * 1e6), 60, 3)
            manifests.put_manifest(desk.objects, wanted)
            store.client.zadd("penstock:reserved", {f"default/{job_id}": 0})
        rewrite(desk, f"{KEY.prefix}request.json", lambda found: found.update(version=AFTER))
        settle_reservations(store, desk.objects)
        assert [fields_of(store, JobKey("default", name))["state"] for name in "ab"] == ["reserved", "queued"]

    def test_of_a_batch_keeps_what_is_unknown(self, store: JobStore, desk: Journal) -> None:
        key = BatchKey("default", "b")
        manifest = BatchManifest(key, "f", "lines", 1, 1, 5, 60, 60, metadata={"k": "v"})
        desk.run(batch_journal.submit(manifest))

        def edit(found: dict[str, Any]) -> None:
            found["version"] = NEXT
            found["manifest"] |= {"new_field": [1]}

        stored = rewrite(desk, f"{key.prefix}request.json", edit)
        batch_manifests.put_cursor(desk.objects, key, Cursor(1, 2, 3, 4))
        rewrite(desk, f"{key.prefix}cursor.json", lambda found: found.update(new_field=1))
        batch_manifests.put_cursor(desk.objects, key, Cursor(5, 6, 7, 8))
        assert batch_manifests.read_cursor(desk.objects, key) == Cursor(5, 6, 7, 8)
        assert json.loads(desk.objects.get_bytes(f"{key.prefix}cursor.json", limit_bytes=99))["new_field"] == 1
        store.client.flushall()
        recover_if_lost(store, desk.objects)
        found = store.run(batches.read(key))
        assert (found.manifest.version, found.manifest.to_json()) == (NEXT, stored["manifest"])
        store.client.hset("penstock:tenant:default:batch:b:counts", "held", 1)
        assert store.run(batches.read(key)).live == 1
        store.client.hset("penstock:tenant:default:batch:b", "version", AFTER)
        assert store.run(batches.list_batches("default")).batches == ()

    def test_of_a_batchs_end_keeps_what_is_unknown(self) -> None:
        end = BatchEnd(BatchStatus.COMPLETED, Counts(1, succeeded=1), 1.0)
        stored = {**end.to_json(), "new_field": {"a": []}, "counts": {**end.to_json()["counts"], "skipped": 0}}
        assert BatchEnd.from_json(stored).to_json() == stored


class TestEndpoint:
    def test_keeps_what_is_unknown_through_a_change(self, store: JobStore, desk: Journal) -> None:
        made = an_endpoint(desk)

        def edit(found: dict[str, Any]) -> None:
            found |= {"headers": {"a": "b"}, "entry": {"tags": ["x"]}}
            found["secrets"][0]["algorithm"] = "new"

        stored = rewrite(desk, f"{made.key.prefix}00000001.json", edit)
        changed = desk.run(endpoint_changes.change(made.key, lambda found, _: replace(found, description="d")))
        found = json.loads(desk.objects.get_bytes(f"{made.key.prefix}00000002.json", limit_bytes=10**5))
        assert found == {**stored, "description": "d", "revision": 2}
        entry = json.loads(store.client.hget("penstock:tenant:default:endpoints", made.key.id) or "")
        assert entry["tags"] == ["x"]
        assert "headers" not in entry
        rotated = desk.run(endpoint_changes.change(made.key, endpoint_changes.rotated(60)))
        assert rotated.secrets[1].extra == {"algorithm": "new"}
        assert changed.signing(0) == made.signing(0)

    def test_of_the_next_version_is_signed_by_newer_keepers_alone(self, store: JobStore, desk: Journal) -> None:
        made = an_endpoint(desk)
        rewrite(desk, f"{made.key.prefix}00000001.json", lambda found: found.update(version=NEXT))
        desk.run(endpoint_changes.change(made.key, lambda found, _: replace(found, description="d")))
        submit(store)
        store.run(records.cancel(KEY))
        assert store.run(deliveries.due(9, 60)).tasks == ()
        command = deliveries.due(9, 60)
        store.client.zadd("penstock:outbox", {f"default/msg_a_job.canceled_{made.key.id}": 0}, xx=True)
        [task] = store.run(replace(command, args={**command.args, "version": NEXT})).tasks
        assert task.delivery.tries == 1

    def test_of_the_version_after_is_left_out_of_lists(self, store: JobStore, desk: Journal) -> None:
        for number in (1, 2):
            an_endpoint(desk, key=a_key(number))
        rewrite(desk, f"{a_key(1).prefix}00000001.json", lambda found: found.update(version=AFTER))
        assert [found.key for found in endpoints.list_endpoints(desk.objects, "default")] == [a_key(2)]
        with pytest.raises(RecordTooNew):
            desk.run(endpoint_changes.change(a_key(1), lambda found, _: replace(found, enabled=False)))
        store.client.flushall()
        recover_if_lost(store, desk.objects)
        assert store.client.hkeys("penstock:tenant:default:endpoints") == [a_key(2).id]

    def test_of_today_has_the_bytes_of_the_release_before(self) -> None:
        stored = json.loads(Endpoint(ENDPOINT, "http://h/", (), 0, 0).to_bytes())
        assert next(iter(stored)) == "version"
        assert "extra" not in stored


class TestLeftovers:
    @pytest.mark.parametrize("change", [{"version": NEXT}, {"version": AFTER}, {"state": "held"}])
    def test_of_a_newer_job_are_not_deleted(self, store: JobStore, desk: Journal, change: dict[str, Any]) -> None:
        for job_id in ("a", "b"):
            desk.run(journal.submit(submission(job_id), DURABLE))
            desk.run(journal.cancel(JobKey("default", job_id)))
            for name in ("attempts/9/said.txt", "checkpoints/x/1"):
                desk.objects.put_bytes(f"tenants/default/jobs/{job_id}/{name}", b"x", content_type="a/b")
        write(store, KEY, **change)
        later = time.time() + 10 * GRACE_S
        delete_leftovers(store, desk.objects, Settings(secret="s"), at=later)
        kept = {info.key.removeprefix("tenants/default/jobs/") for info in desk.objects.list("tenants/default/jobs/")}
        assert {"a/attempts/9/said.txt", "a/request.json", "a/outcome.json", "b/request.json"} <= kept
        assert "b/attempts/9/said.txt" not in kept
        assert ("a/checkpoints/x/1" in kept) is (change != {"version": NEXT})

    def test_of_a_newer_batch_or_endpoint_are_not_deleted(self, store: JobStore, desk: Journal) -> None:
        key = BatchKey("default", "b")
        desk.run(batch_journal.submit(BatchManifest(key, "f", "lines", 1, 1, 5, 60, 60)))
        made = an_endpoint(desk)
        desk.run(endpoint_changes.delete(made.key))
        for name in (f"{key.prefix}request.json", f"{made.key.prefix}00000002.json"):
            rewrite(desk, name, lambda found: found.update(version=AFTER))
        before = {info.key for info in desk.objects.list("tenants/")}
        delete_leftovers(store, desk.objects, Settings(secret="s"), at=time.time() + 100 * GRACE_S)
        assert {info.key for info in desk.objects.list("tenants/")} == before


class TestOtherDocuments:
    def test_a_key_with_a_newer_scope_is_valid(self, desk: Journal) -> None:
        scopes = cast("list[Scope]", ["fly", "read"])
        made, text = new_key("s", tenant="t", name="n", scopes=scopes, created_s=0, expires_s=None)
        api_keys.put_key(desk.objects, made)
        given = parse(text)
        found = api_keys.read_key(desk.objects, made.id)
        assert given is not None
        assert found is not None
        assert admits("s", found, given, at=1.0)
        assert (Scope.READ in found.scopes, Scope.SUBMIT in found.scopes) == (True, False)

    def test_a_key_keeps_what_is_unknown_when_it_is_revoked(self, desk: Journal) -> None:
        made, _ = new_key("s", tenant="t", name="n", scopes=[Scope.READ], created_s=0, expires_s=None)
        api_keys.put_key(desk.objects, made)
        stored = rewrite(desk, f"keys/{made.id}.json", lambda found: found.update(new_field=1, scopes=["fly", "read"]))
        revoked = api_keys.revoke_key(desk.objects, made.id, at=9.0)
        assert revoked is not None
        assert Scope.READ in revoked.scopes
        found = json.loads(desk.objects.get_bytes(f"keys/{made.id}.json", limit_bytes=10**5))
        assert found == {**stored, "revoked_s": 9.0}

    def test_a_model_of_a_newer_worker_is_served_by_the_api(self, store: JobStore) -> None:
        store.run(
            catalogues.publish([ECHO, ECHO.model_copy(update={"name": "b"})], worker="w", queues=["q"], alive_s=9)
        )
        entry = json.loads(store.client.hget("penstock:catalogue", "echo") or "")
        entry |= {"new_field": 1, "limits": {**entry["limits"], "new_limit": 1}}
        store.client.hset("penstock:catalogue", "echo", json.dumps(entry))
        assert store.run(catalogues.catalogue())["echo"].limits == ECHO.limits
        store.client.hset("penstock:catalogue", "b", '{"of": "another kind"}')
        assert list(store.run(catalogues.catalogue())) == ["echo"]

    def test_a_newer_worker_is_listed(self, store: JobStore) -> None:
        state = workers.WorkerState("h", 1.0, ("q",), 1, "cpu", False, (workers.ServedModel("m", True, True, None),))
        store.run(workers.report("w", state, alive_s=9))
        about = json.loads(store.client.hget("penstock:workers", "w") or "")
        about["models"][0]["new_field"] = about["new_field"] = 1
        store.client.hset("penstock:workers", "w", json.dumps(about))
        assert [live.state for live in store.run(workers.living())] == [state]

    def test_a_try_of_a_newer_keeper_is_listed(self, store: JobStore) -> None:
        submit(store, webhook=Webhook("http://h/"))
        store.run(records.cancel(KEY))
        name = "penstock:tenant:default:delivery:msg_a_job.canceled"
        note = {"number": 1, "at_s": 1.0, "status": 500, "note": "n", "new_field": 1}
        store.client.hset(name, mapping={"log": json.dumps([note]), "state": "resting", "new_field": "1"})
        [row] = store.run(deliveries.deliveries(KEY))
        assert row.log == (deliveries.Attempt(1, 1.0, 500, "n"),)
        assert store.run(deliveries.due(9, 60)).tasks == ()
        assert store.client.zscore("penstock:outbox", "default/msg_a_job.canceled")

    @pytest.mark.parametrize(("change", "whole"), [({"new_field": 1}, True), ({"format": 99}, False)])
    def test_a_checkpoint_is_used_only_in_its_format(self, tmp_path: Path, change: dict[str, Any], whole: bool) -> None:
        path, digest = tmp_path / "strip", "d" * 32
        header = {"file": "a strip of a scene", "format": strips.FORMAT, "plan": digest, "strip": 1, **change}
        pieces = gzip.compress(b"{}\n")
        line = json.dumps({**header, "sha256": hashlib.sha256(pieces).hexdigest()})
        path.write_bytes(line.encode() + b"\n" + pieces)
        assert strips.is_whole(path, digest, 1) is whole


class TestUsage:
    def test_is_the_sum_of_the_reported_attempts(self, store: JobStore) -> None:
        submit(store)
        [held] = claim(store)
        store.run(records.complete(held, Outcome(State.DELAYED, usage=Usage(0.5, 10, 0, tokens_in=7))))
        sweep_until(store, lambda: read(store, KEY).state is State.QUEUED)
        [held] = claim(store)
        for _ in range(2):
            store.run(records.complete(held, Outcome(State.SUCCEEDED, usage=Usage(1.25, 10, 99))))
        assert read(store, KEY).usage == Usage(1.75, 20, 99, tokens_in=7)

    def test_of_a_job_that_never_ran_is_not_known(self, store: JobStore) -> None:
        submit(store)
        store.run(records.cancel(KEY))
        assert read(store, KEY).usage == Usage()


def _artifact(**more: Any) -> dict[str, Any]:
    return {"name": "n", "content_type": "a/b", "size_bytes": 1, "sha256": "0" * 64, "key": "k", **more}


def test_a_document_of_today_is_written_as_before(store: JobStore) -> None:
    wanted: Submission = submission(webhook=Webhook("http://h/"))
    store.run(records.submit(wanted, LIMITS))
    stored = json.loads(fields_of(store)["submission"])
    assert not {"version", "extra"} & stored.keys()
    assert "record" not in json.loads(manifests.Manifest(wanted, 1, 1, 1).to_bytes())
    assert WRITES == int(fields_of(store)["version"]) < CHAINED == RUNS < READS
