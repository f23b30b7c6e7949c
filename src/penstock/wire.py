"""How the API is asked, and when again: requests and retries. No network.

An operation is a generator (`Flow`) that yields what is to be done and is sent what came of it; the sync and the
async client only perform.
"""

from __future__ import annotations

import difflib
import json
import math
import mimetypes
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import new as new_hash
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar
from urllib.parse import quote

from penstock.answers import (
    Artifact,
    ClientError,
    Event,
    Job,
    PenstockAPIError,
    StillRunning,
    Unreachable,
    read_job,
    read_sse,
)

T = TypeVar("T")
#: Told of (bytes done, bytes in all).
OnBytes: TypeAlias = Callable[[int, int], None]

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 10.0
_DIGEST_BYTES = 1 << 20
#: What an object store says of itself or the connection, and not of the request.
_S3_PASSING = frozenset({"InternalError", "RequestTimeout", "SlowDown", "ServiceUnavailable", "BadDigest"})


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
    #: The job's id, a UUID of your own: the same request again finds the job.
    job_id: str | None


@dataclass(frozen=True, slots=True)
class Upload:
    """A local file, or a part of it, that is sent as a request's body."""

    path: Path
    size_bytes: int
    on_bytes: OnBytes | None = None
    #: Where in the file it begins.
    start: int = 0
    #: When the file was last written; None = whenever. Of another file no try is made.
    mtime_ns: int | None = None


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


@dataclass(frozen=True, slots=True)
class Digest:
    """Read a local file, or a part of it, for its digest, which is sent as hexadecimal text: files are large."""

    path: Path
    algorithm: Literal["sha256", "md5"] = "sha256"
    start: int = 0
    #: None = to the end.
    size_bytes: int | None = None

    def read(self) -> str:
        """Return the digest; raise `ClientError` for a file that cannot be read."""
        digest = new_hash(self.algorithm, usedforsecurity=False)
        left = math.inf if self.size_bytes is None else self.size_bytes
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                while left and (chunk := file.read(int(min(left, _DIGEST_BYTES)))):
                    digest.update(chunk)
                    left -= len(chunk)
        except OSError as error:
            raise ClientError(f"cannot read {self.path}: {error.strerror}") from error
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Together:
    """Do several things at a time; sent back are their results, in order.

    Where one fails the others end too.
    """

    flows: Sequence[Flow[Any]]
    at_a_time: int
    #: Set when they should end.
    stop: threading.Event


Step: TypeAlias = Request | Pause | Digest | Together
#: Yields what is to be done, is sent what came of it or thrown what it raised, and returns the operation's result.
Flow: TypeAlias = Generator["Step", Reply | str | list[Any] | None, T]


def exchange(request: Request, *, patience_s: float, draw: Callable[[], float]) -> Flow[Reply]:
    """Send a request that is safe to repeat until it is answered, or until the delays would be past `patience_s`.

    Raises `Unreachable` or `PenstockAPIError`. `draw` gives the jitter, 0 to 1.
    """
    delays = Delays(patience_s, draw)
    while True:
        try:
            reply = yield request
            assert isinstance(reply, Reply)  # noqa: S101  (a request is answered with a reply)
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
class Deadline:
    """When the waiting for a job's end is over; None = never. Its time begins when it is made."""

    timeout_s: float | None
    clock: Callable[[], float] = time.monotonic
    _ends: float = field(init=False)

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s >= 0:
            raise ClientError(f"timeout_s is {self.timeout_s}: seconds are meant, 0 or more")
        self._ends = math.inf if self.timeout_s is None else self.clock() + self.timeout_s

    def left_s(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._ends - self.clock())

    @property
    def passed(self) -> bool:
        """Whether none is left."""
        return self.left_s() == 0

    def check(self, job: Job) -> None:
        """Raise `StillRunning` for a job that is not over if the time is."""
        if self.passed:
            raise StillRunning(job, self.timeout_s or 0.0)


@dataclass
class EventReader:
    """Follows a job's events over broken connections: where to go on, and whether they are at their end."""

    job_id: str
    after: str
    delays: Delays
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    over: bool = False
    _snapshot_over: bool = False

    @property
    def request(self) -> Request:
        """What to connect with."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self.after} if self.after else {})}
        return Request("GET", f"/v1/jobs/{segment(self.job_id)}/events", headers=headers)

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
        self.over = self.over or self._snapshot_over or self.deadline.passed
        return 0.0 if self.over else self.delays.next(Unreachable("the service ends the stream of events too early"))

    def failed(self, error: Unreachable | PenstockAPIError) -> float:
        """Note that the stream broke; return the seconds to wait, or raise the error if it is time to give up."""
        self.over = self.over or self.deadline.passed
        return 0.0 if self.over else self.delays.next(error)


def refusal(reply: Reply) -> PenstockAPIError | None:
    """Return the error that a reply stands for, if it does."""
    if reply.status < 300:
        return None
    if reply.status < 400:  # nothing was done: a proxy leads to https, or an object store to another region
        place = reply.headers.get("location", "").partition("?")[0]  # the rest may be a signature
        return PenstockAPIError({"detail": f"the answer leads elsewhere ({place}): ask there"}, status=reply.status)
    try:
        found = json.loads(reply.body)
    except ValueError:
        found = None
    problem = found if isinstance(found, dict) else _s3_problem(reply)
    return PenstockAPIError(problem, status=reply.status, retry_after_s=retry_after_s(reply.headers.get("retry-after")))


def _s3_problem(reply: Reply) -> dict[str, Any]:
    """Return what an object store says of an error (XML) as a problem, empty where it is none."""
    code = re.search(rb"<Code>(\w+)</Code>", reply.body)
    if code is None:
        return {}
    name = code[1].decode()
    passing = {"retryable": True} if name in _S3_PASSING else {}
    return {"code": f"s3_{name}", "detail": f"the object store answers {name} (HTTP {reply.status})", **passing}


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
    if (job_id := options.get("job_id")) is not None:
        return Request("PUT", f"/v1/jobs/{segment(job_id)}", body=body)
    return Request("POST", "/v1/jobs", headers={"Idempotency-Key": key}, body=body)


def job_filters(
    *,
    created_after: datetime | None,
    created_before: datetime | None,
    metadata: Mapping[str, str] | None,
    **others: str | int | None,
) -> dict[str, str]:
    """Return the query of a list of jobs; a time without a zone is this machine's."""
    times = {"created_after": created_after, "created_before": created_before}
    return {
        **{name: str(value) for name, value in others.items() if value is not None},
        **{name: moment.astimezone(UTC).isoformat() for name, moment in times.items() if moment is not None},
        **{f"metadata.{key}": value for key, value in (metadata or {}).items()},
    }


def file_size(path: Path) -> int:
    """Return the size of a local file that can be sent; raise `ClientError` otherwise."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from error
    if not path.is_file():
        raise ClientError(f"cannot read {path}: it is not a file")
    if size == 0:
        raise ClientError(f"{path} is empty")
    return size


def keyed(path: Path, key: str) -> Flow[str]:
    """Return the key of a file's upload: the same for the same `key` and bytes."""
    digest = yield Digest(path)
    return sha256(f"{key}\n{digest}".encode()).hexdigest()


def upload_request(path: Path, size_bytes: int, *, key: str | None, multipart: bool) -> Request:
    """Return the request for a place to put a local file, the same place for the same `key`."""
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    body = {"filename": path.name, "content_type": kind, "size_bytes": size_bytes}
    headers = {} if key is None else {"Idempotency-Key": key}
    return Request("POST", "/v1/uploads", headers=headers, body=body | ({"multipart": True} if multipart else {}))


def put_request(path: Path, place: Mapping[str, Any], on_bytes: OnBytes | None) -> Request:
    """Return the request that sends the file to the place that `upload_request` was given."""
    upload = Upload(path, path.stat().st_size, on_bytes)
    return Request(place["method"], place["url"], headers=place["headers"], upload=upload)


def known(options: Mapping[str, Any], shape: type) -> None:
    """Raise `TypeError` for an option that there is not: a typed dict is not checked when it is made."""
    for name in options.keys() - shape.__annotations__.keys():
        near = difflib.get_close_matches(name, shape.__annotations__, n=1)
        raise TypeError(f"unexpected option {name!r}" + (f": {near[0]!r} is meant?" if near else ""))


def segment(name: str) -> str:
    """Return an id or a name as a part of a path; `ClientError` for what is none."""
    if not isinstance(name, str):
        raise TypeError(f"an id or a name is meant, not {type(name).__name__}")
    if name in {"", ".", ".."}:
        raise ClientError(f"{name!r} is no id")
    return quote(name, safe="")


def idempotency_key(text: str | None) -> str | None:
    """Return a key of the caller's; `ClientError` for one that no header carries."""
    if text is not None and not re.fullmatch(r"[!-~]([ -~]{0,253}[!-~])?", text):
        raise ClientError("an idempotency key has 1 to 255 characters, all of them ASCII")
    return text


def with_media(document: Mapping[str, Any], field_name: str, reference: str | list[str]) -> dict[str, Any]:
    """Return a copy of a job's input with the media reference in a field (`a.b` is field `b` of `a`).

    `ClientError` if the input has one there itself.
    """
    head, _, rest = field_name.partition(".")
    if not rest:
        if head in document:
            raise ClientError(f"the field {head!r} is given twice, in the input and as a file")
        return {**document, head: reference}
    inner = document.get(head)
    return {**document, head: with_media(inner if isinstance(inner, Mapping) else {}, rest, reference)}


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
