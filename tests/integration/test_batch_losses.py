"""Batches whose Redis is emptied, and whose keepers are slow, several, or gone half way."""

from __future__ import annotations

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from penstock.batches import BatchKey
from penstock.storage.journal import batch_journal, journal
from penstock.storage.journal.journal import Journal
from penstock.storage.redis import batches, catalogues, records, upkeep
from penstock.workers.keeper.purge import retire_batches
from penstock.workers.keeper.recovery import recover, recover_if_lost
from penstock.workers.keeper.retention import delete_leftovers
from tests.support.batch_keeper import KeeperMoves, line, parts, read, rows, submitted, work
from tests.support.service import BROKEN, ECHO, Service
from tests.support.valkey import ValkeyProcess


async def test_batches_outlive_an_emptied_redis(service: Service, keeper: KeeperMoves, valkey: ValkeyProcess) -> None:
    running = await submitted(service, requests=[line("a"), {"input": {}}, line("b")])
    await keeper.expand()
    await service.succeed(await service.claim(), "A")
    over = await submitted(service, requests=[line("c")])
    await keeper.expand()
    await work_only(service, over["id"])
    await keeper.complete()
    canceled = await submitted(service, requests=[line("d")])
    await service.http.post(f"/v1/batches/{canceled['id']}/cancel")
    before = await read(service, over["id"])
    await forget_all(service, valkey)

    assert (await read(service, over["id"])) == before
    assert (await read(service, canceled["id"]))["status"] == "canceling"
    # Even before the members are made anew, a batch does not take them for lost.
    await read(service, running["id"])
    await keeper.complete()
    assert (await read(service, running["id"]))["status"] == "running"
    await asyncio.to_thread(recover, keeper.store, service.objects)
    await keeper.expand()
    assert parts(await read(service, running["id"])) == {"total": 3, "succeeded": 1, "queued": 1, "invalid": 1}
    assert await work(service) == 1
    await keeper.complete()
    ended = await read(service, running["id"])
    assert (ended["status"], parts(ended)) == ("completed", {"total": 3, "succeeded": 2, "invalid": 1})
    listed = (await service.http.get("/v1/batches")).json()["batches"]
    assert [(b["id"], b["status"]) for b in listed] == [
        (canceled["id"], "canceled"), (over["id"], "completed"), (running["id"], "completed"),
    ]  # fmt: skip


async def test_a_deleted_batch_goes_with_all_its_jobs_although_redis_was_emptied(
    service: Service, keeper: KeeperMoves, valkey: ValkeyProcess
) -> None:
    batch = await submitted(service, requests=[line("a"), line("b")])
    await keeper.expand()
    await work(service)
    await keeper.complete()
    assert (await service.http.delete(f"/v1/batches/{batch['id']}")).status_code == 204
    await forget_all(service, valkey)
    key = BatchKey("default", batch["id"])
    Journal(keeper.store, service.objects).run(batch_journal.revive(key))  # its jobs have not had their turn
    await asyncio.to_thread(retire_batches, keeper.store, service.objects)
    await asyncio.to_thread(recover_if_lost, keeper.store, service.objects)
    await asyncio.to_thread(retire_batches, keeper.store, service.objects)
    assert list(service.objects.list("tenants/default/jobs/")) == []
    assert (await service.http.get("/v1/jobs")).json()["jobs"] == []


async def test_a_closed_batch_gets_no_member_from_a_keeper_that_was_asleep(
    service: Service, keeper: KeeperMoves
) -> None:
    batch = await submitted(service, requests=[line("a"), line("b")])
    key = BatchKey("default", batch["id"])
    asleep = keeper.store.run(batches.read(key))  # what another keeper knew before
    await service.http.post(f"/v1/batches/{batch['id']}/cancel")
    await keeper.complete()
    with ThreadPoolExecutor(2) as pool:
        await asyncio.to_thread(keeper.expansion._window, asleep, pool)
    assert (await service.http.get("/v1/jobs")).json()["jobs"] == []
    assert parts(await read(service, batch["id"])) == {"total": 2, "canceled": 2}


async def test_every_step_of_an_expansion_may_be_the_last(service: Service, keeper: KeeperMoves) -> None:
    """A keeper that dies anywhere in a window is followed by another one: no line twice, none left out."""
    batch = await submitted(service, requests=[line(str(n)) if n % 3 else {"input": {}} for n in range(12)])
    key = BatchKey("default", batch["id"])

    class Dies(Exception):
        pass

    class Fragile:
        """The store of a keeper that lives for so many commands."""

        def __init__(self, life: int) -> None:
            self.life = life

        def run(self, command: records.Command[Any]) -> Any:
            self.life -= 1
            if self.life < 0:
                raise Dies
            return keeper.store.run(command)

    for life in range(60):
        dying = replace(keeper.expansion, store=Fragile(life))
        with ThreadPoolExecutor(3) as pool:
            try:
                await asyncio.to_thread(dying.advance, key, pool)
            except Dies:
                await asyncio.to_thread(settle, keeper)
    found = await read(service, batch["id"])
    assert (found["expanded"], parts(found)) == (12, {"total": 12, "queued": 8, "invalid": 4})
    assert await work(service) == 8
    await keeper.complete()
    results, errors = await rows(service, batch["id"], "results"), await rows(service, batch["id"], "errors")
    assert sorted(row["line"] for row in results + errors) == list(range(1, 13))
    assert [row["output"]["text"] for row in results] == [str(n) for n in range(12) if n % 3]


async def test_two_keepers_end_a_batch_once(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line(str(n)) for n in range(40)])
    await keeper.expand()
    await work(service)
    others = [KeeperMoves(service) for _ in range(3)]
    await asyncio.gather(*(other.complete() for other in [keeper, *others]))
    ended = await read(service, batch["id"])
    kept = [info.key for info in service.objects.list(f"tenants/default/batches/{batch['id']}/ends/")]
    assert len(kept) == 2
    assert len(await rows(service, batch["id"], "results")) == 40
    assert ended["status"] == "completed"
    for other in others:
        other.close()


async def test_lines_that_no_batch_was_made_of_are_tidied(service: Service, keeper: KeeperMoves) -> None:
    kept = await submitted(service, requests=[line("a")])
    orphan = BatchKey("default", str(uuid.uuid4()))
    service.objects.put_bytes(f"{orphan.prefix}lines/ff.jsonl", b"{}\n", content_type="application/jsonl")
    deleted = await asyncio.to_thread(
        delete_leftovers, keeper.store, service.objects, service.settings, at=time.time() + 90_000
    )
    assert deleted.batches == 1
    left = {info.key.split("/")[3] for info in service.objects.list("tenants/default/batches/")}
    assert left == {kept["id"]}


def settle(keeper: KeeperMoves) -> None:
    """Do what the keeper does for reservations that were left alone."""
    desk = Journal(keeper.store, keeper.service.objects)
    for key in keeper.store.run(upkeep.reservations(0)):
        desk.run(journal.settle_reservation(key))


async def work_only(service: Service, batch_id: str) -> None:
    """Let the members of one batch succeed, and give the others back."""
    for claim in await service.claims():
        if claim.submission.batch_id == batch_id:
            await service.succeed(claim)
        else:
            await service.jobs.run(records.release(claim))


async def forget_all(service: Service, valkey: ValkeyProcess) -> None:
    """Empty Redis, and let the worker publish its models again."""
    valkey.flush()
    await service.jobs.run(catalogues.publish([ECHO, BROKEN], worker="w", queues=["default"], alive_s=600))
