# Generated from the module in asynchronous by `make client`.
"""Batches and their results."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Unpack

from penstock.client.answers import Batch, BatchPage, ClientError, LineOutcome, PenstockAPIError
from penstock.client.batch_files import is_small, line_folders, outcomes, write_requests
from penstock.client.connection import LONG_POLL_S, REPORT_EVERY_S, held
from penstock.client.options import (
    BatchOptions,
    OnBatch,
    OnBytes,
    OnLine,
    body_of,
    check_options,
    key_header,
    query_of,
    segment,
)
from penstock.client.synchronous.files import SyncFiles


class SyncBatches(SyncFiles):
    """The methods for batches."""

    def submit_batch(
        self,
        requests: Sequence[Mapping[str, Any]] | str | Path,
        *,
        on_bytes: OnBytes | None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Submit many requests at once and return their batch.

        `requests` are bodies of POST /v1/jobs, each with an optional `custom_id`; or a local JSONL file of them, or a
        reference to such a file (`media://`, `s3://`).
        """
        check_options(options, BatchOptions)
        key = options.get("idempotency_key")
        headers = key_header(uuid.uuid4().hex if key is None else key)
        source = self._source(requests, on_bytes, key)
        body = {**source, **body_of(options)}
        return self._service.value(Batch, "POST", "/v1/batches", headers=headers, body=body)

    def _source(
        self, requests: Sequence[Mapping[str, Any]] | str | Path, on_bytes: OnBytes | None, key: str | None
    ) -> dict[str, Any]:
        """Return the fields of a batch's body that have its requests; upload those that are too many for a body."""
        if isinstance(requests, str) and "://" in requests:
            return {"file": requests}
        if isinstance(requests, str | Path):
            return {"file": self._upload(Path(requests), on_bytes, key)}
        if is_small(requests):
            return {"requests": [dict(request) for request in requests]}
        with tempfile.TemporaryDirectory() as folder:
            return {"file": self._upload(write_requests(requests, Path(folder)), on_bytes, key)}

    def batch(self, batch_id: str, *, wait_s: float = 0) -> Batch:
        """Return a batch, at once or when it has ended, after at most `wait_s` seconds (55 at most)."""
        return self._service.value(Batch, "GET", _batch(batch_id), **held(wait_s))

    def batches(self, *, limit: int | None = None, cursor: str | None = None) -> BatchPage:
        """Return a page of batches, the newest first."""
        query = query_of({"limit": limit, "cursor": cursor})
        return self._service.value(BatchPage, "GET", "/v1/batches", query=query)

    def wait_batch(self, batch_id: str, *, on_batch: OnBatch | None = None) -> Batch:
        """Wait for a batch's end and return the batch; `on_batch` is called with it about once a second."""
        while True:
            batch = self.batch(batch_id, wait_s=LONG_POLL_S if on_batch is None else REPORT_EVERY_S)
            if on_batch is not None:
                on_batch(batch)
            if batch.over:
                return batch

    def cancel_batch(self, batch_id: str) -> Batch:
        """Cancel a batch and return it; its results hold the jobs that succeeded before."""
        return self._service.value(Batch, "POST", f"{_batch(batch_id)}/cancel")

    def delete_batch(self, batch_id: str) -> None:
        """Delete a batch with its jobs and results; a running one is canceled first and waited for."""
        # The service cancels a running batch first, and deletes it once the keeper has ended it.
        while self._service.fetch("DELETE", _batch(batch_id)) is not None:
            try:
                self.wait_batch(batch_id)
            except PenstockAPIError as error:
                if error.status != HTTPStatus.GONE:
                    raise
                return

    def download_batch(
        self,
        batch: Batch,
        folder: str | Path,
        *,
        artifacts: bool = False,
        on_bytes: OnBytes | None = None,
        on_line: OnLine | None = None,
    ) -> list[Path]:
        """Save `results.jsonl` and `errors.jsonl` of a batch that is over; return the paths.

        With `artifacts` also the files of each line, in a folder named after its `custom_id`, or `line-7` where that is
        no unique name; `on_line` is then called with (lines saved, lines with files).
        """
        if not batch.over:
            raise ClientError(f"batch {batch.id} is {batch.status.value}: its results come with its end; wait for it")
        paths = self._save(f"{_batch(batch.id)}/artifacts", batch.artifacts, Path(folder), on_bytes)
        lines = line_folders(Path(folder)) if artifacts else {}
        for done, (place, outcome) in enumerate(lines.items(), 1):
            paths += self._save(f"/v1/jobs/{outcome.job_id}/artifacts", outcome.artifacts, place, on_bytes)
            if on_line is not None:
                on_line(done, len(lines))
        return paths

    def batch_results(self, batch_id: str) -> Iterator[LineOutcome]:
        """Yield the outcome of each line of a batch that is over, in order, errors included."""
        with tempfile.TemporaryDirectory() as folder:
            self.download_batch(self.batch(batch_id), folder)
            yield from outcomes(Path(folder))


def _batch(batch_id: str) -> str:
    return f"/v1/batches/{segment(batch_id)}"
