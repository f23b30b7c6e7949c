"""Batches by the client and the command line, against a real API and a keeper's moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.batches import BatchStatus
from penstock.client import AsyncClient, Batch, Client, ClientError, PenstockAPIError
from tests.support.api_server import listening
from tests.support.batch_keeper import KeeperMoves, jsonl, line, work
from tests.support.command_line import Shell
from tests.support.service import Service, serving
from tests.support.stack import free_port
from tests.support.valkey import ValkeyProcess


@pytest.fixture
async def service(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    """Return a service whose links lead to the port at which it listens."""
    async with (
        serving(valkey.url, tmp_path / "service", port=free_port()) as running,
        listening(running, running.settings.port),
    ):
        yield running


@pytest.fixture
def penstock(service: Service) -> Shell:
    return Shell({"PENSTOCK_URL": service.settings.base_url})


async def finish(service: Service, keeper: KeeperMoves) -> None:
    """Run what waits to its end."""
    await keeper.expand()
    await work(service)
    await keeper.complete()


async def test_requests_are_submitted_followed_and_read(service: Service, keeper: KeeperMoves, tmp_path: Path) -> None:
    told: list[Batch] = []
    async with AsyncClient(service.settings.base_url, patience_s=1) as client:
        requests = [line("a", custom_id="a"), {"input": {}}, line("c")]
        batch = await client.submit_batch(requests, model="echo", metadata={"k": "v"}, ttl_s=500.0, priority="high")
        assert (batch.status, batch.counts.total, batch.metadata) == (BatchStatus.RUNNING, 3, {"k": "v"})
        assert 499 < (batch.deadline_at - batch.created_at).total_seconds() < 501
        with pytest.raises(ClientError, match="come with its end"):
            await client.download_batch(batch, tmp_path)
        following = asyncio.create_task(client.wait_batch(batch.id, on_batch=told.append))
        await finish(service, keeper)
        batch = await following
        assert (batch.over, told[-1]) == (True, batch)
        found = [outcome async for outcome in client.batch_results(batch.id)]
        assert [(o.line, o.custom_id, o.succeeded, o.text) for o in found] == [
            (1, "a", True, "a"), (2, None, False, None), (3, None, True, "c"),
        ]  # fmt: skip
        assert found[1].error is not None
        assert found[1].error.code == "invalid_request"
        files = await client.download_batch(batch, tmp_path / "out")
        assert [file.name for file in files] == ["results.jsonl", "errors.jsonl"]
        assert [b.id for b in (await client.batches()).batches] == [batch.id]
        await client.delete_batch(batch.id)
        with pytest.raises(PenstockAPIError, match="purged"):
            await client.batch(batch.id)


async def test_all_files_of_a_batch_are_saved_by_line(
    service: Service, keeper: KeeperMoves, penstock: Shell, tmp_path: Path
) -> None:
    names = ["north", None, "twice", "twice", "../up", "line-1", "results.jsonl"]
    async with AsyncClient(service.settings.base_url, patience_s=1) as client:
        batch = await client.submit_batch([line(str(n), custom_id=name) for n, name in enumerate(names)])
        assert f'<progress value="0" max="{len(names)}"></progress>' in batch._repr_html_()
        await keeper.expand()
        for claim in await service.claims(len(names)):
            text = claim.submission.input["text"]
            files = (service.store_artifact(claim, "map.tif", text.encode(), "image/tiff"),)
            await service.succeed(claim, artifacts=files)
        await keeper.complete()
        batch = await client.batch(batch.id)
        told: list[tuple[int, int]] = []
        saved = await client.download_batch(
            batch, tmp_path / "all", artifacts=True, on_line=lambda *numbers: told.append(numbers)
        )
    folders = ["north", "line-2", "line-3", "line-4", "line-5", "line-6", "line-7"]
    assert [path.relative_to(tmp_path / "all").as_posix() for path in saved[2:]] == [f"{f}/map.tif" for f in folders]
    assert [path.read_text() for path in saved[2:]] == [str(n) for n in range(len(names))]
    assert told == [(n, len(names)) for n in range(1, len(names) + 1)]
    done = await penstock("batch", "results", batch.id, "--out", str(tmp_path / "cli"), "--files")
    assert (done.code, (tmp_path / "cli" / "north" / "map.tif").read_text()) == (0, "0")
    refused = await penstock("batch", "results", batch.id, "--files")
    assert (refused.code, "--out DIR" in refused.err) == (2, True)


@pytest.mark.breadth
async def test_the_sync_client_does_the_same(service: Service, keeper: KeeperMoves, tmp_path: Path) -> None:
    with Client(service.settings.base_url) as client:
        (tmp_path / "r.jsonl").write_bytes(jsonl([line("a"), line("b")]))
        batch = await asyncio.to_thread(client.submit_batch, tmp_path / "r.jsonl")
        again = await asyncio.to_thread(client.submit_batch, [line(str(n)) for n in range(1001)])
        assert again.counts.total == 1001  # too many for a body: they went up as a file
        assert (await asyncio.to_thread(client.cancel_batch, again.id)).status is BatchStatus.CANCELING
        await finish(service, keeper)
        batch = await asyncio.to_thread(client.wait_batch, batch.id)
        found = await asyncio.to_thread(lambda: list(client.batch_results(batch.id)))
        assert [outcome.text for outcome in found] == ["a", "b"]
        page = await asyncio.to_thread(client.batches)
        assert [b.status.value for b in page.batches] == ["canceled", "completed"]


@pytest.mark.breadth
async def test_the_command_line_says_what_stands_where(
    service: Service, keeper: KeeperMoves, penstock: Shell, tmp_path: Path
) -> None:
    (tmp_path / "r.jsonl").write_bytes(jsonl([line("a", custom_id="x"), b"nonsense"]))
    submitted = await penstock("batch", "submit", str(tmp_path / "r.jsonl"), "--meta", "a=b", "--json")
    batch = submitted.document()
    assert (submitted.code, batch["metadata"], batch["counts"]["total"]) == (0, {"a": "b"}, 2)
    early = await penstock("batch", "results", batch["id"])
    assert (early.code, early.out) == (2, "")
    assert "come with its end" in early.err
    assert "2 queued of 2" in (await penstock("batch", "status", batch["id"])).out
    waiting = asyncio.create_task(penstock("batch", "wait", batch["id"]))
    await finish(service, keeper)
    done = await waiting
    assert (done.code, "1 succeeded, 1 invalid of 2" in done.out) == (1, True)
    shown = await penstock("batch", "results", batch["id"])
    first, second = shown.out.splitlines()
    assert (first.split("  ")[:3], second.split("  ")[:2]) == (["1", "x", "succeeded"], ["2", "invalid"])
    assert "not JSON" in second
    lines = (await penstock("batch", "results", batch["id"], "--json")).out.splitlines()
    assert [json.loads(row)["status"] for row in lines] == ["succeeded", "invalid"]
    saved = await penstock("batch", "results", batch["id"], "--out", str(tmp_path / "out"))
    assert saved.code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"results.jsonl", "errors.jsonl"}
    assert batch["id"] in (await penstock("batch", "list")).out
    assert (await penstock("batch", "delete", batch["id"], "--json")).document() == {"id": batch["id"], "deleted": True}
    assert (await penstock("batch", "status", batch["id"])).code == 3


@pytest.mark.breadth
async def test_one_key_and_one_file_are_one_batch(penstock: Shell, tmp_path: Path) -> None:
    words = ("batch", "submit", str(tmp_path / "r.jsonl"), "--idempotency-key", "k", "--json")
    (tmp_path / "r.jsonl").write_bytes(jsonl([line("a")]))
    first, second = await penstock(*words), await penstock(*words)
    assert (first.code, first.document()["id"]) == (0, second.document()["id"])
    (tmp_path / "r.jsonl").write_bytes(jsonl([line("b")]))
    refused = await penstock(*words)
    assert (refused.code, "used before" in refused.err) == (3, True)


@pytest.mark.breadth
async def test_a_file_that_is_no_jsonl_or_not_there_is_told_in_a_sentence(penstock: Shell, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(b"\xff\xff\xff")
    refused = await penstock("batch", "submit", str(tmp_path / "r.jsonl"))
    assert (refused.code, refused.out) == (3, "")
    assert "not UTF-8" in refused.err
    missing = await penstock("batch", "submit", str(tmp_path / "none.jsonl"))
    assert (missing.code, missing.out) == (2, "")
