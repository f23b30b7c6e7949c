"""How the API is asked, and when again: requests and retries. No network.

An operation is a generator (`Flow`) that yields what is to be done and is sent what came of it; the sync and the
async client only perform.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar
from urllib.parse import quote

from penstock.answers import Artifact, ClientError, Event, Job, PenstockAPIError, Unreachable, read_job, read_sse

T = TypeVar("T")
#: Told of (bytes done, bytes in all).
OnBytes: TypeAlias = Callable[[int, int], None]

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 10.0


class JobOptions(TypedDict, total=False):
    """What may be asked of a job beside its input."""

    metadata: Mapping[str, str] | None
    #: A URL, told of the job's end; or the API's object with `url` and `events`.
    webhook: str | Mapping[str, Any] | None
    priority: Literal["low", "normal", "high"] | None
    #: How long it may wait, and run.
    queue_ttl_s: float | None
    execution_timeout_s: float | None
    #: Two submissions with the same key are one job; by default each call has its own.
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class Upload:
    """A local file that is sent as a request's body."""

    path: Path
    size_bytes: int
    on_bytes: OnBytes | None = None


@dataclass(frozen=True, slots=True)
class Save:
    """Where a response's body goes; its bytes must be those of the artifact."""

    path: Path
    artifact: Artifact
    on_bytes: OnBytes | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One exchange. `path` is under the service's address, or a whole URL."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    upload: Upload | None = None
    save: Save | None = None
    #: How long the service may think, beside the usual.
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, whatever its status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def document(self) -> Any:
        """Return the body's JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Unreachable(f"the answer is not JSON (HTTP {self.status}): is this a Penstock service?") from error


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before going on."""

    seconds: float


#: Yields what is to be done, is sent the reply (or thrown `Unreachable`), and returns the operation's result.
Flow: TypeAlias = Generator[Request | Pause, Reply | None, T]


def exchange(request: Request, *, patience_s: float, draw: Callable[[], float]) -> Flow[Reply]:
    """Send a request that is safe to repeat until it is answered, or until the delays would be past `patience_s`.

    Raises `Unreachable` or `PenstockAPIError`. `draw` gives the jitter, 0 to 1.
    """
    delays = Delays(patience_s, draw)
    while True:
        try:
            reply = yield request
            assert reply is not None  # noqa: S101  (a request is answered with a reply)
            failure: Unreachable | PenstockAPIError | None = refusal(reply)
            if failure is None:
                return reply
        except Unreachable as error:
            failure = error
        yield Pause(delays.next(failure))


@dataclass
class Delays:
    """How long to wait after each failure in a row: doubling, with jitter, until `patience_s` would be used up."""

    patience_s: float
    draw: Callable[[], float]
    _spent_s: float = 0.0
    _delay_s: float = _FIRST_DELAY_S

    def next(self, failure: Unreachable | PenstockAPIError) -> float:
        """Return the seconds to wait, or raise the failure if another try is no use."""
        pause_s = self._delay_s * (0.5 + self.draw() / 2)
        if isinstance(failure, PenstockAPIError):
            if not failure.retryable:
                raise failure
            pause_s = max(pause_s, failure.retry_after_s or 0.0)
        self._spent_s, self._delay_s = self._spent_s + pause_s, min(_LONGEST_DELAY_S, 2 * self._delay_s)
        if self._spent_s > self.patience_s:
            raise failure
        return pause_s

    def reset(self) -> None:
        """Begin anew: something went well."""
        self._spent_s, self._delay_s = 0.0, _FIRST_DELAY_S


@dataclass
class EventReader:
    """Follows a job's events over broken connections: where to go on, and whether they are at their end."""

    job_id: str
    after: str
    delays: Delays
    over: bool = False
    _snapshot_over: bool = False

    @property
    def request(self) -> Request:
        """What to connect with."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self.after} if self.after else {})}
        return Request("GET", f"/v1/jobs/{self.job_id}/events", headers=headers)

    def take(self, kind: str, text: str) -> Event | None:
        """Return the event that came in, None for what is no event of a job."""
        event = read_sse(kind, text)
        if event is None:
            return None
        if event.type == "snapshot":
            self._snapshot_over = read_job(event.data).over
        else:
            self.after = event.id or self.after
            self.delays.reset()
        self.over = self.over or event.final
        return event

    def closed(self) -> float:
        """Note that the stream ended in order; return the seconds to wait before connecting again."""
        self.over = self.over or self._snapshot_over
        return 0.0 if self.over else self.delays.next(Unreachable("the service ends the stream of events too early"))

    def failed(self, error: Unreachable | PenstockAPIError) -> float:
        """Note that the stream broke; return the seconds to wait, or raise the error if it is time to give up."""
        return self.delays.next(error)


def refusal(reply: Reply) -> PenstockAPIError | None:
    """Return the error that a reply stands for, if it does."""
    if reply.status < 400:
        return None
    try:
        found = json.loads(reply.body)
    except ValueError:
        found = None
    problem = found if isinstance(found, dict) else {}
    return PenstockAPIError(problem, status=reply.status, retry_after_s=retry_after_s(reply.headers.get("retry-after")))


def submission(model: str, document: Mapping[str, Any], *, key: str, options: JobOptions) -> Request:
    """Return the request that makes a job; `key` makes it safe to repeat. What is left out is left to the service."""
    webhook = options.get("webhook")
    wanted = {
        "metadata": dict(options.get("metadata") or {}) or None,
        "webhook": {"url": webhook} if isinstance(webhook, str) else webhook,
        "priority": options.get("priority"),
        "queue_ttl": options.get("queue_ttl_s"),
        "execution_timeout": options.get("execution_timeout_s"),
    }
    body = {"model": model, "input": dict(document), **{k: v for k, v in wanted.items() if v is not None}}
    return Request("POST", "/v1/jobs", headers={"Idempotency-Key": key}, body=body)


def upload_request(path: Path) -> Request:
    """Return the request for a place to put a local file; `ClientError` if there is no such file."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from error
    if not path.is_file():
        raise ClientError(f"cannot read {path}: it is not a file")
    if size == 0:
        raise ClientError(f"{path} is empty")
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Request("POST", "/v1/uploads", body={"filename": path.name, "content_type": kind, "size_bytes": size})


def put_request(path: Path, place: Mapping[str, Any], on_bytes: OnBytes | None) -> Request:
    """Return the request that sends the file to the place that `upload_request` was given."""
    upload = Upload(path, path.stat().st_size, on_bytes)
    return Request(place["method"], place["url"], headers=place["headers"], upload=upload)


def with_media(document: Mapping[str, Any], field_name: str, reference: str | list[str]) -> dict[str, Any]:
    """Return a copy of a job's input with the media reference in a field (`a.b` is field `b` of `a`)."""
    head, _, rest = field_name.partition(".")
    if not rest:
        return {**document, head: reference}
    inner = document.get(head)
    return {**document, head: with_media(inner if isinstance(inner, Mapping) else {}, rest, reference)}


def artifact_request(job_id: str, save: Save) -> Request:
    """Return the request for an artifact's bytes."""
    return Request("GET", f"/v1/jobs/{job_id}/artifacts/{quote(save.artifact.name)}", save=save)


def artifact_path(folder: Path, name: str) -> Path:
    """Return where an artifact is saved; `ClientError` for a name that would lead out of the folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name:
        raise ClientError(f"the artifact's name {name!r} is not one that can be saved")
    return folder.joinpath(*parts)


def manifest(job: Job) -> dict[str, Any]:
    """Return what `manifest.json` says of a downloaded result."""
    files = [
        {"name": a.name, "content_type": a.content_type, "size_bytes": a.size_bytes, "sha256": a.sha256}
        for a in job.artifacts
    ]
    return {"job": job.id, "model": job.model, "artifacts": files}


def retry_after_s(header: str | None) -> float | None:
    """Return the seconds that a `Retry-After` header asks for (a number or a date), None if it says nothing."""
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
