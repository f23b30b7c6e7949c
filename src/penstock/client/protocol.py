"""The client's protocol: requests and retries, without network.

An operation is a generator (`Flow`): it yields steps and is sent their results. The sync and the async client perform
the steps.
"""

from __future__ import annotations

import difflib
import json
import math
import mimetypes
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import new as new_hash
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar
from urllib.parse import quote

from penstock.client.answers import (
    Artifact,
    ClientError,
    Event,
    Job,
    PenstockAPIError,
    StillRunning,
    Unreachable,
    read_sse,
)
from penstock.client.decoding import read

T = TypeVar("T")
#: Called with (bytes done, total bytes).
OnBytes: TypeAlias = Callable[[int, int], None]

#: Called with the failure of a request and the seconds until the request is sent again.
OnRetry: TypeAlias = Callable[[Unreachable | PenstockAPIError, float], None]

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 10.0
_DIGEST_BYTES = 1 << 20
#: Retryable error codes of an object store.
_S3_RETRYABLE = frozenset({"InternalError", "RequestTimeout", "SlowDown", "ServiceUnavailable", "BadDigest"})


class JobOptions(TypedDict, total=False):
    """Options of a job beside its input."""

    metadata: Mapping[str, str] | None
    #: A URL that gets the job's end, or the API's object with `url` and `events`.
    webhook: str | Mapping[str, Any] | None
    priority: Literal["low", "normal", "high"] | None
    #: Seconds that the job may wait.
    queue_ttl_s: float | None
    #: Seconds that the job may run.
    execution_timeout_s: float | None
    #: Submissions with the same key are one job; by default each call has a key of its own.
    idempotency_key: str | None
    #: The job's id, a UUID of your choice: the same request again finds the job.
    job_id: str | None


class JobFilters(TypedDict, total=False):
    """Filters of a list of jobs; None is no filter."""

    status: str | None
    model: str | None
    #: Jobs of the page, at most.
    limit: int | None
    #: The `next_cursor` of the page before.
    cursor: str | None
    #: Times of submission; a time without a zone is local time.
    created_after: datetime | None
    created_before: datetime | None
    #: Metadata that the jobs have.
    metadata: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Upload:
    """A local file, or a part of a file, as a request's body."""

    path: Path
    size_bytes: int
    on_bytes: OnBytes | None = None
    #: The offset in the file.
    start: int = 0
    #: The file's expected modification time; another one is a `ClientError`. None = any.
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Save:
    """The file for a response's body, whose bytes must be the artifact's."""

    path: Path
    artifact: Artifact
    on_bytes: OnBytes | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. `path` is relative to the service's address, or a whole URL."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    upload: Upload | None = None
    save: Save | None = None
    #: Extra seconds for the answer, on top of the usual timeout.
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request, of any status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    #: The server that answered: `http://127.0.0.1:8080`.
    server: str = ""

    def document(self) -> Any:
        """Return the body's JSON; raise `Unreachable` for anything else, which is not Penstock's."""
        with self.of_penstock():
            return json.loads(self.body)

    @contextmanager
    def of_penstock(self) -> Iterator[None]:
        """Raise `Unreachable` where the block cannot read the answer as Penstock's."""
        try:
            yield
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Unreachable(self.foreign) from error

    @property
    def foreign(self) -> str:
        """The sentence about an answer that is not Penstock's: another server's, or a proxy's."""
        kinds = (self.headers.get("content-type", "").partition(";")[0], self.headers.get("server", ""))
        what = ", ".join([f"HTTP {self.status}", *(kind[:40] for kind in kinds if kind)])
        return (
            f"{self.server or 'the server'} is not Penstock, or stands before it: its answer ({what}) is none of "
            "Penstock's; check the service's address (PENSTOCK_URL)"
        )


@dataclass(frozen=True, slots=True)
class Pause:
    """A step: wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Digest:
    """A step: hash a local file, or a part of a file. The result is hexadecimal text."""

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
    """A step: run several flows at once. The result is the list of their results; one failure ends all."""

    flows: Sequence[Flow[Any]]
    at_a_time: int
    #: Set to end the flows.
    stop: threading.Event


Step: TypeAlias = Request | Pause | Digest | Together
#: Yields steps, receives their results or errors, and returns the operation's result.
Flow: TypeAlias = Generator["Step", Reply | str | list[Any] | None, T]


def exchange(
    request: Request, *, patience_s: float, draw: Callable[[], float], on_retry: OnRetry | None = None
) -> Flow[Reply]:
    """Send a request that is safe to repeat, until an answer comes or the delays would exceed `patience_s`.

    Raises `Unreachable` or `PenstockAPIError`. `draw` returns the jitter, 0 to 1.
    """
    delays = Delays(patience_s, draw, on_retry)
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
    """Delays after failures in a row: doubling, with jitter, until their sum would exceed `patience_s`."""

    patience_s: float
    draw: Callable[[], float]
    #: Called before each pause.
    on_retry: OnRetry | None = None
    _spent_s: float = 0.0
    _delay_s: float = _FIRST_DELAY_S

    def next(self, failure: Unreachable | PenstockAPIError) -> float:
        """Return the seconds to wait, or raise the failure where a retry is pointless."""
        pause_s = self._delay_s * (0.5 + self.draw() / 2)
        if isinstance(failure, PenstockAPIError):
            if not failure.retryable:
                raise failure
            pause_s = max(pause_s, failure.retry_after_s or 0.0)
        self._spent_s, self._delay_s = self._spent_s + pause_s, min(_LONGEST_DELAY_S, 2 * self._delay_s)
        if self._spent_s > self.patience_s:
            raise failure
        if self.on_retry is not None:
            self.on_retry(failure, pause_s)
        return pause_s

    def reset(self) -> None:
        """Start over after a success."""
        self._spent_s, self._delay_s = 0.0, _FIRST_DELAY_S


@dataclass
class Deadline:
    """A timeout that starts with its creation; None = no timeout."""

    timeout_s: float | None
    clock: Callable[[], float] = time.monotonic
    _ends: float = field(init=False)

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s >= 0:
            raise ClientError(f"timeout_s is {self.timeout_s}: give seconds, 0 or more")
        self._ends = math.inf if self.timeout_s is None else self.clock() + self.timeout_s

    def left_s(self) -> float:
        """Return the remaining seconds."""
        return max(0.0, self._ends - self.clock())

    @property
    def passed(self) -> bool:
        """True once no time remains."""
        return self.left_s() == 0

    def check(self, job: Job) -> None:
        """Raise `StillRunning` for a running job once the time is over."""
        if self.passed:
            raise StillRunning(job, self.timeout_s or 0.0)


@dataclass
class EventReader:
    """The state of following a job's events over broken connections."""

    job_id: str
    after: str
    delays: Delays
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    over: bool = False
    _snapshot_over: bool = False

    @property
    def request(self) -> Request:
        """The request that connects to the rest of the stream."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self.after} if self.after else {})}
        return Request("GET", f"/v1/jobs/{segment(self.job_id)}/events", headers=headers)

    def read(self, kind: str, text: str) -> Event | None:
        """Return the received event; None for anything but an event of a job."""
        event = read_sse(kind, text)
        if event is None:
            return None
        if event.type == "snapshot":
            self._snapshot_over = read(Job, event.data).over
        else:
            self.after = event.id or self.after
            self.delays.reset()
        self.over = self.over or event.final
        return event

    def closed(self) -> float:
        """Record the regular end of the stream; return the seconds before the next connection."""
        self.over = self.over or self._snapshot_over or self.deadline.passed
        return 0.0 if self.over else self.delays.next(Unreachable("the service ended the stream of events too early"))

    def failed(self, error: Unreachable | PenstockAPIError) -> float:
        """Record a broken stream; return the seconds before the next connection, or raise the error."""
        self.over = self.over or self.deadline.passed
        return 0.0 if self.over else self.delays.next(error)


def refusal(reply: Reply) -> PenstockAPIError | None:
    """Return the error in a reply; None for a success."""
    if reply.status < 300:
        return None
    if reply.status < 400:  # redirected: by a proxy to https, or by an object store to another region
        address = reply.headers.get("location", "").partition("?")[0]  # the query may be a signature
        return PenstockAPIError({"detail": f"the answer leads elsewhere ({address}): use it"}, status=reply.status)
    try:
        found = json.loads(reply.body)
    except ValueError:
        found = None
    known = isinstance(found, dict) and isinstance(found.get("code"), str)
    problem = found if known else _s3_problem(reply) or {"detail": reply.foreign}
    return PenstockAPIError(problem, status=reply.status, retry_after_s=retry_after_s(reply.headers.get("retry-after")))


def _s3_problem(reply: Reply) -> dict[str, Any]:
    """Return an object store's XML error as a problem; empty for any other body."""
    code = re.search(rb"<Code>(\w+)</Code>", reply.body)
    if code is None:
        return {}
    name = code[1].decode()
    retryable = {"retryable": True} if name in _S3_RETRYABLE else {}
    return {"code": f"s3_{name}", "detail": f"the object store answered {name} (HTTP {reply.status})", **retryable}


def submission(model: str, document: Mapping[str, Any], *, key: str, options: JobOptions) -> Request:
    """Return the request that submits a job; `key` makes it safe to repeat. The service has defaults for options."""
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


def query_of(filters: Mapping[str, object]) -> dict[str, str]:
    """Return filters as a request's query: None is left out, a time is in UTC, `metadata` has a parameter per key."""
    query: dict[str, str] = {}
    for name, value in filters.items():
        if isinstance(value, Mapping):
            query |= {f"{name}.{key}": str(text) for key, text in value.items()}
        elif isinstance(value, datetime):
            query[name] = value.astimezone(UTC).isoformat()
        elif value is not None:
            query[name] = str(value)
    return query


def file_size(path: Path) -> int:
    """Return the size of a local file; raise `ClientError` for one that cannot be sent."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from error
    if not path.is_file():
        raise ClientError(f"cannot read {path}: not a file")
    if size == 0:
        raise ClientError(f"{path} is empty")
    return size


def keyed(path: Path, key: str) -> Flow[str]:
    """Return the idempotency key of a file's upload: the same for the same `key` and bytes."""
    digest = yield Digest(path)
    return sha256(f"{key}\n{digest}".encode()).hexdigest()


def upload_request(path: Path, size_bytes: int, *, key: str | None, multipart: bool) -> Request:
    """Return the request that begins an upload; the same `key` gets the same upload."""
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    body = {"filename": path.name, "content_type": kind, "size_bytes": size_bytes}
    headers = {} if key is None else {"Idempotency-Key": key}
    return Request("POST", "/v1/uploads", headers=headers, body=body | ({"multipart": True} if multipart else {}))


def put_request(path: Path, begun: Mapping[str, Any], on_bytes: OnBytes | None) -> Request:
    """Return the request that sends the file to the URL in the answer to `upload_request`."""
    upload = Upload(path, path.stat().st_size, on_bytes)
    return Request(begun["method"], begun["url"], headers=begun["headers"], upload=upload)


def check_options(options: Mapping[str, Any], shape: type) -> None:
    """Raise `TypeError` for an unknown option: Python does not check typed dicts."""
    for name in options.keys() - shape.__annotations__.keys():
        near = difflib.get_close_matches(name, shape.__annotations__, n=1)
        raise TypeError(f"unexpected option {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))


def segment(name: str) -> str:
    """Return an id or a name as a path segment; raise `ClientError` for an impossible one."""
    if not isinstance(name, str):
        raise TypeError(f"an id or a name must be a string, not {type(name).__name__}")
    if name in {"", ".", ".."}:
        raise ClientError(f"{name!r} is not an id")
    return quote(name, safe="")


def idempotency_key(text: str | None) -> str | None:
    """Return the caller's key; raise `ClientError` for one that no header can carry."""
    if text is not None and not re.fullmatch(r"[!-~]([ -~]{0,253}[!-~])?", text):
        raise ClientError("an idempotency key has 1 to 255 characters, all of them ASCII")
    return text


def artifact_path(folder: Path, name: str) -> Path:
    """Return the path for an artifact; raise `ClientError` for a name that leads out of the folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name:
        raise ClientError(f"the artifact {name!r} cannot be saved: its name leads out of the folder")
    return folder.joinpath(*parts)


def retry_after_s(header: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header (a number or a date); None where it has neither."""
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
