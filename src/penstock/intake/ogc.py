"""A job in the terms of OGC API - Processes 1.0 (OGC 18-062r2), for the API's answers and for callbacks. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from penstock.jobs import Artifact, Job, State, Status
from penstock.media_types import essence

#: The facade's name in `Submission.facade`.
FACADE = "ogc"
JSON_TYPE, TEXT_TYPE = "application/json", "text/plain"
#: Prefix of the relations that the standard defines.
RELATION = "http://www.opengis.net/def/rel/ogc/1.0/"

#: The standard's words for a job's status.
StatusWord: TypeAlias = Literal["accepted", "running", "successful", "failed", "dismissed"]
#: `canceling` is shown as `dismissed`, which it will become: a canceled job never runs again.
STATUSES: Mapping[Status, StatusWord] = MappingProxyType(
    {
        Status.QUEUED: "accepted",
        Status.RUNNING: "running",
        Status.CANCELING: "dismissed",
        Status.SUCCEEDED: "successful",
        Status.FAILED: "failed",
        Status.CANCELED: "dismissed",
        Status.EXPIRED: "failed",
    }
)
#: Events that each address of a `subscriber` receives.
EVENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "successUri": ("job.succeeded",),
        "failedUri": ("job.failed", "job.canceled", "job.expired"),
        "inProgressUri": ("job.started", "job.progress"),
    }
)
#: Characters of a failure's message, at most.
_MESSAGE_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A requested output."""

    name: str
    media_type: str
    by_reference: bool = False


@dataclass(frozen=True, slots=True)
class RequestedAnswer:
    """The answer that an execute request asks for: its form, and its outputs."""

    response: Literal["raw", "document"]
    outputs: tuple[RequestedOutput, ...]

    def to_facade(self) -> dict[str, Any]:
        """Return the data to store with the job."""
        return {FACADE: asdict(self)}


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A part of an output: a file, or data of the job itself. Most outputs have one part."""

    output: str
    media_type: str
    href: str
    by_reference: bool
    file: Artifact | None = None
    #: Bytes of a part without a file.
    data: bytes = b""

    @property
    def size_bytes(self) -> int:
        """The size of the part."""
        return len(self.data) if self.file is None else self.file.size_bytes


def statuses(word: StatusWord) -> frozenset[Status]:
    """Return the statuses that are shown as this word."""
    return frozenset(status for status, shown in STATUSES.items() if shown == word)


def requested_answer(job: Job) -> RequestedAnswer | None:
    """Return the answer that the job's execute request asked for; None for a job of another interface."""
    found = job.submission.facade.get(FACADE)
    return (
        None
        if found is None
        else RequestedAnswer(found["response"], tuple(RequestedOutput(**each) for each in found["outputs"]))
    )


def output_parts(job: Job, outputs: Sequence[RequestedOutput], base_url: str) -> tuple[OutputPart, ...]:
    """Return the parts of the requested outputs of a succeeded job; missing outputs have none.

    An output consists of the files with its name (`classes.tif`, `map-1.png`), if possible only those of its media
    type; else of the job's own text or JSON, by media type; else of the files of its media type whose names match no
    output.
    """
    return tuple(part for requested in outputs for part in _parts_of(job, requested, outputs, base_url))


def document(entries: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the results document (`results.yaml`) of (output, value or link); several of one output are a list."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for output, entry in entries:
        grouped.setdefault(output, []).append(entry)
    return {output: found[0] if len(found) == 1 else found for output, found in grouped.items()}


def link(part: OutputPart) -> dict[str, Any]:
    """Return a part by reference."""
    title = part.output if part.file is None else part.file.name
    return {"href": part.href, "type": part.media_type, "title": title}


def value(part: OutputPart, data: bytes) -> dict[str, Any]:
    """Return a part by value: JSON as JSON, text as a string, everything else in base64."""
    kind = essence(part.media_type)
    if _is_json(kind):
        return {"value": json.loads(data), "mediaType": part.media_type}
    if kind.startswith("text/"):
        return {"value": data.decode(errors="replace"), "mediaType": part.media_type}
    return {"value": base64.b64encode(data).decode(), "encoding": "base64", "mediaType": part.media_type}


def status_info(job: Job, base_url: str) -> dict[str, Any]:
    """Return the job as a `statusInfo.yaml` document."""
    info = {
        "jobID": job.key.id,
        "processID": job.submission.model,
        "type": "process",
        "status": STATUSES[job.status],
        "message": _message(job),
        "created": _iso(job.created_s),
        "started": _iso(job.started_s),
        "finished": _iso(job.completed_s),
        "updated": _iso(job.completed_s or job.started_s or job.created_s),
        "progress": _percent(job),
        "links": _links(job, base_url),
    }
    return {name: found for name, found in info.items() if found is not None}


def callback(job: Job, event: str, base_url: str, limit_bytes: int) -> str | None:
    """Return the body for a subscriber of an event (JSON): the results of a success, else the job's status.

    Files are sent by reference, whatever was requested; everything is if the body would exceed `limit_bytes`. None
    for a job without subscribers.
    """
    answer = requested_answer(job)
    if answer is None:
        return None
    if event != "job.succeeded":
        return _dump(status_info(_as_of(job, event), base_url))
    found = output_parts(job, answer.outputs, base_url)
    links = [(part.output, link(part)) for part in found]
    values = [(p.output, link(p) if p.file is not None or p.by_reference else value(p, p.data)) for p in found]
    body = _dump(document(values))
    return body if len(body.encode()) <= limit_bytes else _dump(document(links))


def _parts_of(
    job: Job, requested: RequestedOutput, outputs: Sequence[RequestedOutput], base_url: str
) -> list[OutputPart]:
    kind, names = essence(requested.media_type), {other.name for other in outputs}
    named = [file for file in job.artifacts if _bears(file, requested.name)]
    alike = [file for file in named if essence(file.content_type) == kind]
    if named:
        return [_of_file(requested, job, file, base_url) for file in alike or named]
    own = _own(job, kind)
    if own is not None:
        href = f"{_here(job, base_url)}/results/{quote(requested.name, safe='')}"
        return [OutputPart(requested.name, requested.media_type, href, requested.by_reference, data=own)]
    unnamed = [file for file in job.artifacts if not any(_bears(file, name) for name in names)]
    return [_of_file(requested, job, file, base_url) for file in unnamed if essence(file.content_type) == kind]


def _bears(file: Artifact, name: str) -> bool:
    stem = file.name.partition(".")[0]
    return stem == name or stem.startswith(f"{name}-")


def _own(job: Job, kind: str) -> bytes | None:
    if kind == JSON_TYPE and job.data is not None:
        return _dump(dict(job.data)).encode()
    if kind == JSON_TYPE and job.text is not None and not job.artifacts:
        return _dump(job.text).encode()
    return job.text.encode() if kind == TEXT_TYPE and job.text is not None else None


def _of_file(requested: RequestedOutput, job: Job, file: Artifact, base_url: str) -> OutputPart:
    return OutputPart(requested.name, file.content_type, _file_url(job, file, base_url), requested.by_reference, file)


def _file_url(job: Job, file: Artifact, base_url: str) -> str:
    return f"{base_url}/v1/jobs/{job.key.id}/artifacts/{quote(file.name)}"


def _here(job: Job, base_url: str) -> str:
    return f"{base_url}/ogc/jobs/{job.key.id}"


def _links(job: Job, base_url: str) -> list[dict[str, Any]]:
    here = _here(job, base_url)
    links = [{"href": here, "rel": "self", "type": JSON_TYPE, "title": "This document"}]
    if job.status is Status.SUCCEEDED:
        links.append({"href": f"{here}/results", "rel": f"{RELATION}results", "title": "The results"})
    elif STATUSES[job.status] == "failed":
        links.append({"href": f"{here}/results", "rel": f"{RELATION}exceptions", "title": "The error"})
    files = [
        {"href": _file_url(job, file, base_url), "rel": "enclosure", "type": file.content_type, "title": file.name}
        for file in job.artifacts
    ]
    return links + files


def _message(job: Job) -> str | None:
    if job.error is not None:
        return job.error.detail[:_MESSAGE_CHARS]
    if job.status is Status.QUEUED:
        return "waits for a worker" if job.queue_position is None else f"number {job.queue_position} in the queue"
    return job.progress.message or job.phase.value if job.status is Status.RUNNING else None


def _percent(job: Job) -> int | None:
    if job.status is Status.SUCCEEDED:
        return 100
    if job.status is Status.QUEUED and not job.progress.done:
        return 0
    shown = job.progress
    return min(99, 100 * shown.done // shown.total) if shown.total else None


def _as_of(job: Job, event: str) -> Job:
    """Return the job as it was at the event: its state may have changed since."""
    if event not in EVENTS["inProgressUri"]:
        return job
    return replace(job, state=State.RUNNING, cancel_requested=False, completed_s=None, artifacts=(), error=None)


def _is_json(kind: str) -> bool:
    return kind == JSON_TYPE or kind.endswith("+json")


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _dump(found: Any) -> str:
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)
