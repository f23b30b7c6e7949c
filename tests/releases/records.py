"""Writers and readers of every kind of stored record, of whichever release comes first on the path.

`python -m tests.releases.records write` writes all records, with a value in every field. `read` reads them as each role
does and prints what failed (JSON: reader -> error). The environment names the stores. Imports only what every kept
release has.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import httpx2

from penstock.api.app import create_app
from penstock.api_keys import Scope, new_key
from penstock.batches import BatchEnd, BatchKey, BatchManifest, BatchStatus, Counts, Cursor
from penstock.config import Settings, load_settings
from penstock.errors import UnknownModel
from penstock.jobs import Artifact, JobKey, Progress, State, Submission, Webhook
from penstock.models import CatalogueEntry, Limits
from penstock.object_events import ObjectEvent
from penstock.storage.journal import api_keys, batch_journal, batch_manifests, endpoints, journal
from penstock.storage.journal.endpoints import Endpoint, EndpointKey, Secret
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.opening import open_own_store
from penstock.storage.redis import batches, catalogues, deliveries, drop_events, queues, records, workers
from penstock.storage.redis.records import AsyncJobStore, JobStore, Outcome, QueueLimits

ENDED, WAITING, OPEN, OVER, HOOK = "ended", "waiting", "open", "over", "018f0000-0000-7000-8000-00000000000a"
LIMITS = QueueLimits(max_queued=99, max_tenant_jobs=99, retention_s=9999, max_crashes=3, durable=True)
RECEIVER = "http://127.0.0.1:1/hook"
_SOME = {bool: True, int: 1, float: 0.5, str: "some"}


def filled(cls: Any, **given: Any) -> Any:
    """Return a value of a class whose optional fields all have a value, if they are numbers or texts."""
    names = [each.name for each in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else cls.model_fields
    hints = typing.get_type_hints(cls)
    some = {name: _some(hints[name]) for name in names if name not in given}
    return cls(**{name: value for name, value in some.items() if value is not None}, **given)


def _some(hint: Any) -> Any:
    if not isinstance(hint, types.UnionType) or type(None) not in typing.get_args(hint):
        return None
    return next((_SOME[each] for each in typing.get_args(hint) if each in _SOME), None)


def write(journals: Journal) -> None:
    """Write all records."""
    for part in (_write_worker, _write_jobs, _write_batches, _write_others):
        part(journals)


def _write_worker(at: Journal) -> None:
    model = filled(workers.ServedModel, name="echo", ready=True, loaded=True)
    state = filled(
        workers.WorkerState, host="h", started_s=1.0, queues=("default",), slots=1, device="cpu", draining=False,
        models=(model,),
    )  # fmt: skip
    at.store.run(workers.report("w", state, alive_s=600))
    at.store.run(queues.seen("default", "w", 1, alive_s=600))
    entries = [_entry("echo", ready=True, problem=None), _entry("away", ready=False)]
    at.store.run(catalogues.publish(entries, worker="w", queues=["default"], alive_s=600))


def _entry(name: str, **given: Any) -> CatalogueEntry:
    found: CatalogueEntry = filled(
        CatalogueEntry, name=name, title=name, revision="1", queue="default", input_schema={"type": "object"},
        outputs=(), limits=filled(Limits), execution_timeout_s=60, queue_ttl_s=600, max_attempts=3, **given,
    )  # fmt: skip
    return found


def _submission(job_id: str, **given: Any) -> Submission:
    hook = Webhook(RECEIVER)
    found: Submission = filled(
        Submission, key=JobKey("default", job_id), model="echo", queue="default", input={"text": "a"}, fingerprint="f",
        webhook=hook, batch_id=None, batch_line=None, drop=None, retry_of=None, traceparent=None, **given,
    )  # fmt: skip
    return found


def _write_jobs(at: Journal) -> None:
    for job_id in (ENDED, "failed"):
        at.run(journal.submit(_submission(job_id), LIMITS))
    claims = [claim for nonce in "ab" for claim in _claimed(at, nonce)]
    file = Artifact("a.txt", "text/plain", 1, "0" * 64, f"{claims[0].prefix}a.txt")
    at.objects.put_bytes(file.key, b"a", content_type="text/plain")
    fine = Outcome(State.SUCCEEDED, text="a", data={"n": 1}, artifacts=(file,), metrics={"inference_ms": 1.0})
    at.run(journal.complete(claims[0], filled_outcome(fine)))
    at.run(journal.complete(claims[1], Outcome(State.FAILED, error=UnknownModel("gone").report())))
    at.run(journal.submit(_submission(WAITING), LIMITS))


def filled_outcome(outcome: Outcome) -> Outcome:
    """Return an outcome with what the attempt used, in releases that count that."""
    names = {each.name for each in dataclasses.fields(Outcome)}
    more: dict[str, Any] = {"progress": Progress(1, 1), "provenance": "{}"}
    if "usage" in names:
        more["usage"] = filled(typing.get_type_hints(Outcome)["usage"])
    return dataclasses.replace(outcome, **{name: value for name, value in more.items() if name in names})


def _claimed(at: Journal, nonce: str) -> tuple[Any, ...]:
    given: dict[str, Any] = {
        "slot": "s", "nonce": nonce, "lease_s": 600, "max_tenant_running": 9, "worker": "w", "models": ["echo"],
    }  # fmt: skip
    if "n" in inspect.signature(records.claim).parameters:  # releases in which one claim may lease several jobs
        return at.store.run(records.claim("default", n=1, **given))
    claim = at.store.run(records.claim("default", **given))
    return () if claim is None else (claim,)


def _write_batches(at: Journal) -> None:
    for name in (OPEN, OVER):
        manifest: BatchManifest = filled(
            BatchManifest, key=BatchKey("default", name), fingerprint="f", lines_key="l", size_bytes=1, total=1,
            created_us=at.store.run(batches.clock()), ttl_s=600.0, retention_s=9999.0, traceparent=None,
        )  # fmt: skip
        at.run(batch_journal.submit(manifest))
    key, cursor = BatchKey("default", OVER), filled(Cursor, line=1, offset=1, requests=1, invalid=0)
    batch_manifests.put_cursor(at.objects, key, cursor)
    file = Artifact("a.jsonl", "application/jsonl", 1, "0" * 64, "a.jsonl")
    ended = filled(
        BatchEnd, status=BatchStatus.COMPLETED, counts=filled(Counts, total=1, succeeded=1),
        completed_s=at.store.run(batches.clock()) / 1e6, artifacts=(file,),
    )  # fmt: skip
    at.run(batch_journal.finish(key, ended))


def _write_others(at: Journal) -> None:
    hints, given = typing.get_type_hints(Endpoint), {"url": RECEIVER, "events": ("job.succeeded",), "models": ("echo",)}
    needed = [each.name for each in dataclasses.fields(Endpoint) if each.default is each.default_factory]
    given |= {name: _SOME.get(hints[name]) for name in needed if name not in given}
    given |= {"key": EndpointKey("default", HOOK), "enabled": True, "secrets": (filled(Secret, text="whsec_AAAA"),)}
    endpoint = filled(Endpoint, **given)
    endpoints.put_endpoint(at.objects, endpoint)
    at.store.run(endpoints.publish(endpoint.key, endpoint))
    record, _ = new_key("s", tenant="default", name="k", scopes=list(Scope), created_s=1.0, expires_s=None)
    api_keys.put_key(at.objects, filled(type(record), **{n: getattr(record, n) for n in _fields(record)}))
    at.store.run(drop_events.add([filled(ObjectEvent, bucket="b", key="k")]))
    listing = filled(drop_events.Pass, **_numbers(drop_events.Pass))
    at.store.run(drop_events.note_pass("rule", listing))
    if hasattr(drop_events, "note_details"):
        at.store.run(drop_events.note_details("rule", listing))


def _fields(record: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(record) if getattr(record, each.name) is not None]


def _numbers(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {each.name: _SOME[hints[each.name]] for each in dataclasses.fields(cls) if hints[each.name] in _SOME}


def read(settings: Settings, at: Journal) -> dict[str, str]:
    """Read all records by the readers of each role, also after a loss of Redis; return what failed."""
    failed = {f"api: {name}": why for name, why in asyncio.run(_read_api(settings))}
    failed |= _failures("worker", _worker_readers(at))
    failed |= _failures("keeper", _keeper_readers(at))
    at.store.client.flushall()
    failed |= _failures("keeper after a loss", _revivals(at))
    _write_worker(at)
    return failed | {f"api after a loss: {name}": why for name, why in asyncio.run(_read_api(settings))}


def _failures(role: str, readers: dict[str, Callable[[], Any]]) -> dict[str, str]:
    failed = {}
    for name, reader in readers.items():
        try:
            if not reader():
                failed[f"{role}: {name}"] = "found nothing"
        except Exception as error:
            failed[f"{role}: {name}"] = f"{type(error).__name__}: {error}"
    return failed


def _worker_readers(at: Journal) -> dict[str, Callable[[], Any]]:
    return {
        "job": lambda: _claimed(at, "c"),
        "catalogue": lambda: {"echo", "away"} == set(at.store.run(catalogues.catalogue())),
    }


def _keeper_readers(at: Journal) -> dict[str, Callable[[], Any]]:
    return {
        "open batches": lambda: [at.store.run(batches.read(key)) for key in at.store.run(batches.open_batches())],
        "end of a batch": lambda: at.store.run(batches.read(BatchKey("default", OVER))).end,
        "cursor": lambda: batch_manifests.read_cursor(at.objects, BatchKey("default", OVER)).line,
        "deliveries": lambda: at.store.run(deliveries.due(99, 30)),
        "endpoints": lambda: endpoints.list_endpoints(at.objects, "default"),
        "keys": lambda: list(api_keys.list_keys(at.objects)),
        "drops": lambda: [leased.event for leased in at.store.run(drop_events.lease(9))],
        "passes": lambda: at.store.run(drop_events.passes()).rules,
    }


def _revivals(at: Journal) -> dict[str, Callable[[], Any]]:
    jobs = {name: lambda name=name: at.run(journal.revive(JobKey("default", name))) for name in (ENDED, WAITING)}
    return jobs | {
        f"batch {name}": lambda name=name: at.run(batch_journal.revive(BatchKey("default", name)))
        for name in (OPEN, OVER)
    }


async def _read_api(settings: Settings) -> list[tuple[str, str]]:
    """Return the routes of the API that fail to read, with their answers."""
    jobs = AsyncJobStore.open(settings.redis_address)
    app = create_app(settings, jobs=jobs, objects=open_own_store(settings), send_hint=lambda _: None)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url=settings.base_url) as http,
    ):
        answers = [(path, await http.get(path)) for path in _paths(app.openapi()["paths"])]
        seen = (await http.get("/v1/workers")).json()
    failed = [(path, answer.text) for path, answer in answers if answer.status_code >= 500]
    return failed if failed or "echo" in json.dumps(seen) else [("/v1/workers", "no worker is shown")]


def _paths(documented: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Return the paths of all routes that read, with the names of the records that were written."""
    for path, operations in documented.items():
        if "get" not in operations or path in ("/readyz", "/v1/events"):  # of no record; without an end
            continue
        yield path.format_map(_Names(job_id=ENDED, batch_id=OVER, endpoint_id=HOOK, name="echo"))
        if "{job_id}" in path and not path.endswith("events"):  # which last as long as the job
            yield path.format_map(_Names(job_id=WAITING))
        if "{batch_id}" in path:
            yield path.format_map(_Names(batch_id=OPEN))


class _Names(dict[str, str]):
    """The names in a path; any other is `default`."""

    def __missing__(self, name: str) -> str:
        return "default"


def main(deed: str) -> None:
    """Write or read."""
    settings = load_settings()
    at = Journal(JobStore.open(settings.redis_address), open_own_store(settings))
    if deed == "write":
        write(at)
    else:
        sys.stdout.write(json.dumps(read(settings, at)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
