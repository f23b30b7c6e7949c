# Generated from the module in asynchronous by `make client`.
"""Jobs, their results, and models."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Generator, Mapping
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote

from penstock.client.answers import ClientError, Event, Job, JobLog, ModelInfo, Page, PenstockAPIError, WebhookDelivery
from penstock.client.connection import LONG_POLL_S, REPORT_EVERY_S, held
from penstock.client.downloads import NOTES, require_place, select_artifacts, write_notes
from penstock.client.estimates import Estimate
from penstock.client.local_files import files_beside, lists_beside, split_files, with_media
from penstock.client.options import (
    Files,
    JobFilters,
    JobOptions,
    OnBytes,
    OnJob,
    body_of,
    check_options,
    key_header,
    query_of,
    segment,
)
from penstock.client.results import JobFailed, Result, new_folder
from penstock.client.retries import Deadline
from penstock.client.synchronous.files import SyncFiles
from penstock.client.threads import follow


class SyncJobs(SyncFiles):
    """The methods for jobs and models."""

    def submit(
        self,
        model: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002  (the API's own word)
        *,
        files: Files | None = None,
        on_bytes: OnBytes | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Submit a job and return it. `files` are uploaded first; their references go into the fields of `input`."""
        check_options(options, JobOptions)
        key, job_id = options.get("idempotency_key"), options.get("job_id")
        headers = key_header(uuid.uuid4().hex if key is None else key)
        # The caller's key is also the uploads': the same files make the same request, and so find the same job.
        document = self._with_files(model, input or {}, files or {}, on_bytes, key or job_id)
        body = {"model": model, "input": document, **body_of(options)}
        if job_id is None:
            made = self._service.value(Job, "POST", "/v1/jobs", headers=headers, body=body)
        else:
            made = self._service.value(Job, "PUT", _job(job_id), body=body)
        return self._whole(made)

    def estimate(
        self,
        model: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002  (the API's own word)
        *,
        files: Files | None = None,
        on_bytes: OnBytes | None = None,
        **options: Unpack[JobOptions],
    ) -> Estimate:
        """Return what a job is expected to take, without creating it; raise the errors that `submit` would raise.

        `files` are uploaded, because the service checks them; a later `submit` uploads them again.
        """
        check_options(options, JobOptions)
        document = self._with_files(model, input or {}, files or {}, on_bytes, None)
        body = {"model": model, "input": document, **body_of(options)}
        return self._service.value(Estimate, "POST", "/v1/jobs?dry_run=true", body=body)

    def _with_files(
        self, model: str, document: Mapping[str, Any], files: Files, on_bytes: OnBytes | None, key: str | None
    ) -> dict[str, Any]:
        """Return an input with the references of its files, which are uploaded."""
        for name, paths in (self._with_beside(model, document, files)).items():
            each = [paths] if isinstance(paths, str) else paths
            sent = [self._upload(Path(path), on_bytes, key) for path in each]
            document = with_media(document, name, sent[0] if isinstance(paths, str) else sent)
        return dict(document)

    def _with_beside(
        self, model: str, document: Mapping[str, Any], files: Files
    ) -> dict[str, str | list[str]]:  # fmt: skip
        """Return the files of a job with those that lie beside them, if the model has a field for these."""
        found = {name: str(one) if isinstance(one, str | Path) else [*map(str, one)] for name, one in files.items()}
        every = chain.from_iterable([each] if isinstance(each, str) else each for each in found.values())
        beside = list(chain.from_iterable(map(files_beside, every)))
        if not beside or "beside" in {*document, *found}:
            return found
        try:
            schema = (self.model(model)).input_schema
        except PenstockAPIError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            said = (
                f"{Path(beside[0]).name} may belong to a file of this job, and this key may not read the model to know"
            )
            raise ClientError(f"{said}: list such files as `beside`, or give `beside` as [] for none") from error
        return found | lists_beside(document, found, schema)

    def run(
        self,
        model: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002  (the API's own word)
        *,
        folder: str | Path | None = None,
        timeout_s: float | None = None,
        on_job: OnJob | None = None,
        on_bytes: OnBytes | None = None,
        options: JobOptions | None = None,
        **fields: Any,
    ) -> Result:
        """Run a job and return its result: `client.run("csmask", scene="scene.tif").classes` is a path.

        `fields` are those of the model's input; a local path in a field for media is uploaded. The files are saved in
        `folder`, by default in one that is deleted when the process ends. Raises `JobFailed` for a job without a
        result, and `StillRunning` after `timeout_s` seconds.
        """
        deadline = Deadline(timeout_s)
        known = self.model(model)
        document, files = split_files({**(input or {}), **fields}, known.input_schema)
        job = self.submit(model, document, files=files, on_bytes=on_bytes, **(options or {}))
        job = self._wait(job.id, deadline, on_job)
        if not job.succeeded:
            raise JobFailed(job)
        place = new_folder() if folder is None else Path(folder)
        self.download(job, place, on_bytes=on_bytes)
        return Result(job, place, f"{self._service.address.rstrip('/')}/ui/#/job/{job.id}", known.views)

    def job(self, job_id: str, *, wait_s: float = 0) -> Job:
        """Return a job, at once or when it has ended, after at most `wait_s` seconds (55 at most)."""
        return self._service.value(Job, "GET", _job(job_id), **held(wait_s))

    def jobs(self, **filters: Unpack[JobFilters]) -> Page:
        """Return a page of jobs, the newest first, without large outputs. A short page may have a `next_cursor` too."""
        check_options(filters, JobFilters)
        return self._service.value(Page, "GET", "/v1/jobs", query=query_of(filters))

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_job: OnJob | None = None,
    ) -> Job:
        """Wait for a job's end and return the job; raise `StillRunning` after `timeout_s` seconds (None = no timeout).

        Meanwhile `on_event` is called with each event, or `on_job` about once a second with the job, which has its
        progress (`progress`, `queue_position`) and estimate (`eta_s`).
        """
        deadline = Deadline(timeout_s)
        if on_event is not None:
            follow(self._service.events(job_id, "", deadline), on_event, timeout_s)
        return self._wait(job_id, deadline, on_job)

    def _wait(self, job_id: str, deadline: Deadline, on_job: OnJob | None = None) -> Job:
        hold_s = LONG_POLL_S if on_job is None else REPORT_EVERY_S
        while True:
            job = self.job(job_id, wait_s=min(hold_s, deadline.left_s()))
            if on_job is not None:
                on_job(job)
            if job.over:
                return job
            deadline.check(job)

    def events(self, job_id: str, *, after: str = "") -> Generator[Event, None]:
        """Yield the events of a job until it ends, from the beginning or after an event's id.

        The first event is `snapshot`, the job itself; each reconnection begins with another `snapshot`.
        """
        return self._service.events(job_id, after, Deadline(None))

    def event_list(self, job_id: str) -> list[Event]:
        """Return the events of a job so far, the oldest first."""
        headers = {"Accept": "application/json"}
        return self._service.values(Event, "events", f"{_job(job_id)}/events", headers=headers)

    def deliveries(self, job_id: str) -> list[WebhookDelivery]:
        """Return the webhook deliveries of a job with all attempts."""
        return self._service.values(WebhookDelivery, "deliveries", f"{_job(job_id)}/deliveries")

    def logs(self, job_id: str) -> JobLog:
        """Return the lines that a job's processor and runner logged or printed, the oldest first."""
        return self._service.value(JobLog, "GET", f"{_job(job_id)}/logs")

    def redeliver(self, job_id: str, delivery_id: str) -> WebhookDelivery:
        """Send an event now, with the same id and bytes: again, or before its next attempt is due."""
        path = f"{_job(job_id)}/deliveries/{segment(delivery_id)}/redeliver"
        return self._service.value(WebhookDelivery, "POST", path)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job and return it; a running one may still be `canceling`."""
        return self._whole(self._service.value(Job, "POST", f"{_job(job_id)}/cancel"))

    def retry(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        """Submit the request of a failed, expired or canceled job as a new job and return the new job.

        Repeated calls return the same new job, unless each call has an idempotency key of its own.
        """
        headers = key_header(idempotency_key)
        return self._whole(self._service.value(Job, "POST", f"{_job(job_id)}/retry", headers=headers))

    def delete(self, job_id: str) -> None:
        """Delete a job and its artifacts; a running one is canceled first and waited for."""
        # The service cancels a running job first, and deletes it once its worker has stopped, within a heartbeat.
        while self._service.fetch("DELETE", _job(job_id)) is not None:
            try:
                self._wait(job_id, Deadline(None))
            except PenstockAPIError as error:
                if error.status != HTTPStatus.GONE:
                    raise
                return

    def download(
        self,
        job: Job,
        folder: str | Path,
        *,
        names: Collection[str] | None = None,
        on_bytes: OnBytes | None = None,
    ) -> list[Path]:
        """Save a job's artifacts, `manifest.json` and `job.json` in a folder; return their paths.

        With `names` only these artifacts are saved. Several are downloaded at once; any process resumes an interrupted
        download. A file gets its name only when size and SHA-256 are the job's; raises `Corrupt` otherwise.
        """
        if not job.over:
            raise ClientError(f"the job {job.id} is {job.status} and has no files yet: wait for it first")
        wanted, folder = select_artifacts(job, names), Path(folder)
        for note in NOTES if names is None else ():
            require_place(folder / note)
        saved = self._save(f"/v1/jobs/{job.id}/artifacts", wanted, folder, on_bytes)
        return saved if names is not None else [*saved, *write_notes(self._whole(job), folder)]

    def _whole(self, job: Job) -> Job:
        """Return a job with its output, which is left out of other answers than that about a single job if large."""
        missing = job.output_bytes is not None and job.text is None and job.data is None
        return self.job(job.id) if missing else job

    def models(self) -> list[ModelInfo]:
        """Return the service's models."""
        return self._service.values(ModelInfo, "models", "/v1/models")

    def model(self, name: str) -> ModelInfo:
        """Return a model with its input's JSON Schema."""
        return self._service.value(ModelInfo, "GET", f"/v1/models/{quote(name)}")


def _job(job_id: str) -> str:
    return f"/v1/jobs/{segment(job_id)}"
