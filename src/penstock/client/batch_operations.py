"""The client's operations on batches, as flows without a connection, and the files of their results."""

from __future__ import annotations

import heapq
import json
import re
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from penstock.client import protocol, transfers
from penstock.client.answers import Batch, BatchPage, ClientError, LineOutcome
from penstock.client.decoding import read
from penstock.client.operations import LONG_POLL_S, REPORT_EVERY_S, Operations, until_gone
from penstock.client.protocol import Flow, OnBytes

RESULTS, ERRORS = "results.jsonl", "errors.jsonl"
#: Requests and bytes of the largest batch that is sent inline; larger ones are uploaded as a file.
MAX_INLINE, MAX_INLINE_BYTES = 1000, 500_000
OnBatch = Callable[[Batch], None]
#: Called with (lines whose files are saved, lines with files).
OnLine = Callable[[int, int], None]
#: A custom id that can name a folder, and that is no name of a line's number.
_FOLDER = re.compile(r"(?!line-)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class BatchOptions(TypedDict, total=False):
    """Options of a batch beside its requests."""

    #: The model of requests that name none.
    model: str | None
    priority: Literal["low", "normal", "high"] | None
    #: Seconds the batch may take; unfinished jobs are then ended.
    ttl_s: float | None
    metadata: Mapping[str, str] | None
    #: A URL that is told the end of the batch.
    webhook: str | None
    #: Submissions with the same key are one batch; by default each call has a key of its own.
    idempotency_key: str | None


@dataclass(frozen=True)
class BatchOperations:
    """The operations of both clients on batches, as flows."""

    do: Operations

    def submit(
        self, requests: Sequence[Mapping[str, Any]] | str | Path, on_bytes: OnBytes | None, options: BatchOptions
    ) -> Flow[Batch]:
        """Submit requests, a reference to a JSONL file that the service can read, or a local one, which is uploaded."""
        protocol.check_options(options, BatchOptions)
        key = protocol.idempotency_key(options.get("idempotency_key"))
        with ExitStack() as stack:
            source: dict[str, Any]
            if isinstance(requests, str) and "://" in requests:
                source = {"file": requests}
            elif isinstance(requests, str | Path):
                source = {"file": (yield from self.do.upload(Path(requests), on_bytes, key))}
            elif _is_small(requests):
                source = {"requests": [dict(request) for request in requests]}
            else:
                path = _as_file(requests, Path(stack.enter_context(tempfile.TemporaryDirectory())))
                source = {"file": (yield from self.do.upload(path, on_bytes, key))}
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        body = {**source, **_wanted(options)}
        return (yield from self.do.value(Batch, "POST", "/v1/batches", body=body, headers=headers))

    def read(self, batch_id: str, wait_s: float) -> Flow[Batch]:
        query = {"wait": f"{wait_s:g}"} if wait_s else {}
        return self.do.value(Batch, "GET", _path(batch_id), query=query, wait_s=wait_s)

    def page(self, **filters: Any) -> Flow[BatchPage]:
        return self.do.value(BatchPage, "GET", "/v1/batches", query=protocol.query_of(filters))

    def wait(self, batch_id: str, on_batch: OnBatch | None) -> Flow[Batch]:
        hold_s = LONG_POLL_S if on_batch is None else REPORT_EVERY_S
        while True:
            batch = yield from self.read(batch_id, hold_s)
            if on_batch is not None:
                on_batch(batch)
            if batch.over:
                return batch

    def cancel(self, batch_id: str) -> Flow[Batch]:
        return self.do.value(Batch, "POST", f"{_path(batch_id)}/cancel")

    def delete(self, batch_id: str) -> Flow[None]:
        # The service cancels a running batch first, and deletes it once the keeper has ended it.
        while (yield from self.do.fetch("DELETE", _path(batch_id))) is not None:
            if (yield from until_gone(self.wait(batch_id, None))):
                return

    def save(self, batch: Batch, folder: Path, on_bytes: OnBytes | None) -> Flow[list[Path]]:
        """Save a batch's files; raise `ClientError` while the batch runs."""
        if not batch.over:
            raise ClientError(f"batch {batch.id} is {batch.status.value}: its results come with its end; wait for it")
        address = f"{_path(batch.id)}/artifacts"
        return (yield from transfers.download(self.do.exchange, address, batch.artifacts, folder, on_bytes))

    def save_all(
        self, batch: Batch, folder: Path, on_bytes: OnBytes | None, on_line: OnLine | None
    ) -> Flow[list[Path]]:
        """Save a batch's files, and the artifacts of each line in a folder of its own."""
        paths = yield from self.save(batch, folder, on_bytes)
        named = Counter(outcome.custom_id for outcome in outcomes(folder))
        found = [outcome for outcome in outcomes(folder) if outcome.artifacts and outcome.job_id]
        for done, outcome in enumerate(found, 1):
            place = folder / _line_folder(outcome, named)
            address = f"/v1/jobs/{outcome.job_id}/artifacts"
            saved = yield from transfers.download(self.do.exchange, address, outcome.artifacts, place, on_bytes)
            paths += saved
            if on_line is not None:
                on_line(done, len(found))
        return paths


def _line_folder(outcome: LineOutcome, named: Counter[str | None]) -> str:
    """Return the name of a line's folder: a unique and valid `custom_id`, or else `line-` and its number."""
    name = outcome.custom_id or ""
    if _FOLDER.fullmatch(name) and named[outcome.custom_id] == 1 and name not in (RESULTS, ERRORS):
        return name
    return f"line-{outcome.line}"


def outcomes(folder: Path) -> Iterator[LineOutcome]:
    """Yield the outcomes of a batch's lines, in order, from the files saved in a folder."""
    streams = [_rows(folder / name) for name in (RESULTS, ERRORS)]
    yield from heapq.merge(*streams, key=lambda outcome: outcome.line)


def _rows(path: Path) -> Iterator[LineOutcome]:
    with path.open("rb") as file:
        for row in file:
            yield read(LineOutcome, json.loads(row))


def _wanted(options: BatchOptions) -> dict[str, Any]:
    wanted = {
        "model": options.get("model"),
        "priority": options.get("priority"),
        "ttl": options.get("ttl_s"),
        "metadata": dict(options.get("metadata") or {}) or None,
        "webhook": None if options.get("webhook") is None else {"url": options["webhook"]},
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _is_small(requests: Sequence[Mapping[str, Any]]) -> bool:
    if not requests:
        raise ClientError("a batch needs at least one request")
    return len(requests) <= MAX_INLINE and sum(len(json.dumps(dict(r))) for r in requests) <= MAX_INLINE_BYTES


def _as_file(requests: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    path = folder / "requests.jsonl"
    with path.open("x", encoding="utf-8") as file:
        file.writelines(json.dumps(dict(request)) + "\n" for request in requests)
    return path


def _path(batch_id: str) -> str:
    return f"/v1/batches/{protocol.segment(batch_id)}"
