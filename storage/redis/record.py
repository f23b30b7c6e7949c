"""The job record: one table of all fields of the hash `penstock:tenant:T:job:ID`.

Python reads and writes records by `Record`. `tests/integration/test_record.py` compares the table with the scripts.
Times are microseconds of Redis' clock. An empty field means the same as a missing one.

`phases` has the phases of the latest attempt, each with the microseconds from the claim to its start:
`FENCE loading:0 fetching:1210 ...`. `attempts` is a JSON list of the attempts that ended without ending the job, the
latest 20: `[FENCE, NUMBER, WORKER, START, END, OUTCOME, PHASES]`, times in microseconds, everything a text. A phase
ends where the next one begins, or with its attempt.
"""

# ruff: noqa: RUF009  (a row of the table is metadata of its field, not a default)
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, replace
from dataclasses import fields as fields_of
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import structlog

from penstock.errors import ErrorReport, RecordTooNew, WorkerLost
from penstock.formats import READS, is_readable, known, version_of
from penstock.jobs import (
    Artifact,
    AttemptTimes,
    Claim,
    Delivery,
    Job,
    JobKey,
    Part,
    Parts,
    Phase,
    PhaseTimes,
    Progress,
    State,
    Status,
    Submission,
    Usage,
)
from penstock.storage.redis.fields import MICRO, dump, fields, seconds, submission_of, submission_to_json

R = TypeVar("R")
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Codec(NamedTuple):
    """The text of a field: how it is read and written."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Stored:
    """A row of the table."""

    codec: Codec
    #: The scripts in `lua/` that write the field; none for one that only later releases write. `commit` also writes
    #: every field, from the stored outcome.
    writers: frozenset[str]
    meaning: str


_TEXT = Codec(str, str)
_NUMBER = Codec(int, str)
_FLAG = Codec(lambda text: text == "1", lambda value: "1" if value else "")
_JSON = Codec(json.loads, dump)
_SUBMISSION = Codec(lambda text: submission_of(json.loads(text)), lambda value: dump(submission_to_json(value)))
_ARTIFACTS = Codec(
    lambda text: tuple(Artifact(**known(Artifact, row)) for row in json.loads(text)),
    lambda value: dump([asdict(each) for each in value]),
)
_OUTPUT = Codec(
    lambda text: Artifact(**known(Artifact, json.loads(text))),
    lambda value: dump(asdict(value)),
)
_REPORT = Codec(lambda text: ErrorReport.from_json(json.loads(text)), lambda value: dump(value.to_json()))


def _stored(codec: Codec, writers: str, meaning: str, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"row": Stored(codec, frozenset(writers.split()), meaning)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A job's record. A field without a default is in every record."""

    version: int = _stored(_NUMBER, "submit split", "Oldest format that can run the job (`formats`).", 1)
    submission: Submission = _stored(_SUBMISSION, "submit", "The request (JSON).")
    fingerprint: str = _stored(_TEXT, "submit", "Hash of the request: a repeated submit has the same.")
    tenant: str = _stored(_TEXT, "submit split", "The job's tenant.")
    id: str = _stored(_TEXT, "submit split", "The job's id, unique in its tenant.")
    model: str = _stored(_TEXT, "submit split", "The model.")
    queue: str = _stored(_TEXT, "submit split", "The queue.")
    batch: str = _stored(_TEXT, "submit", "Id of the job's batch.", "")
    metadata: str = _stored(_TEXT, "submit", "The request's metadata once more (JSON), for the filters of lists.", "")
    drop: str = _stored(_TEXT, "submit", "The object that a drop rule made the job of (JSON).", "")
    webhook: str = _stored(_TEXT, "submit", "The job's own webhook (JSON).", "")
    retry_of: str = _stored(_TEXT, "submit", "Id of the job that this job repeats.", "")
    media_bytes: int | None = _stored(_NUMBER, "submit", "Bytes of the media that the job names, where known.", None)
    fetch_hosts: str = _stored(
        _TEXT, "submit split", "Hosts of the web addresses in the request, with spaces between them.", ""
    )
    durable: bool = _stored(_FLAG, "submit", "The job's end is decided by `outcome.json` in the object store.", False)
    ttl_us: int = _stored(_NUMBER, "submit split", "Longest time in the queue.")
    execution_us: int = _stored(_NUMBER, "submit split", "Longest time of an attempt.")
    retention_us: int = _stored(_NUMBER, "submit cancel split", "Time from the job's end until its record is purged.")
    max_attempts: int = _stored(_NUMBER, "submit split", "Attempts before a retryable error is final.")
    max_crashes: int = _stored(_NUMBER, "submit split", "Lost leases after which the job fails.")

    state: State = _stored(
        Codec(State.read, str), "submit confirm claim complete common split chain", "State of the state machine."
    )
    shown: Status | None = _stored(
        Codec(Status, str), "", "Public state beside a state that a later format adds: older releases show it.", None
    )
    phase: Phase = _stored(
        Codec(Phase.read, str), "submit claim heartbeat complete common split chain", "Step of the attempt."
    )
    revision: int = _stored(_NUMBER, "common", "Number of changes of the record.")
    rank: int = _stored(
        _NUMBER, "submit confirm split", "Place among the jobs that wait: creation time minus priority.", 0
    )
    created_us: int = _stored(_NUMBER, "submit confirm split", "Time of the submit.")
    started_us: int | None = _stored(_NUMBER, "claim", "Time of the latest claim.", None)
    due_us: int | None = _stored(
        _NUMBER, "claim complete common split", "Time at which a delayed job is tried again.", None
    )
    completed_us: int | None = _stored(_NUMBER, "common", "Time of the job's end.", None)
    after: str = _stored(_TEXT, "submit", "Ids of the job's upstreams, with spaces between them (chain.lua).", "")
    depth: int = _stored(_NUMBER, "submit", "Number of upstreams in the longest chain up to the job.", 0)
    chained: bool = _stored(_FLAG, "chain", "The job waits for its upstreams.", False)
    doomed: str = _stored(_TEXT, "chain", "Of a waiting job: an upstream that did not succeed, and its state.", "")
    cancel: bool = _stored(_FLAG, "cancel expire common note", "A user asked for the job's end.", False)

    attempt: int = _stored(_NUMBER, "submit claim split", "Number of the latest attempt; 0 before the first.")
    crashes: int = _stored(_NUMBER, "submit sweep split common", "Attempts in a row whose lease ran out.")
    fence: int = _stored(_NUMBER, "submit claim split", "Fencing token of the latest attempt; 0 before the first.")
    worker: str = _stored(_TEXT, "claim", "Worker of the latest attempt.", "")
    lease_us: int | None = _stored(_NUMBER, "claim heartbeat", "End of the attempt's lease.", None)
    deadline_us: int | None = _stored(_NUMBER, "claim heartbeat", "Time at which the attempt has run too long.", None)
    waited_us: int = _stored(
        _NUMBER, "claim heartbeat", "Time for which the attempt waited for a store or a slot; its deadline is later.", 0
    )
    ended_by: int | None = _stored(
        _NUMBER, "claim heartbeat complete release split", "Fence that ended the attempt.", None
    )
    given_back: bool = _stored(_FLAG, "claim release split", "The next attempt repeats the number of this one.", False)
    checkpoints: int = _stored(_NUMBER, "claim heartbeat", "Checkpoints that the attempt has stored.", 0)

    done: int = _stored(_NUMBER, "claim complete common", "Units done, as shown: never decreases.", 0)
    total: int | None = _stored(_NUMBER, "claim common", "Units of the whole job.", None)
    unit: str = _stored(_TEXT, "claim common", "Name of the unit.", "prompts")
    message: str = _stored(_TEXT, "claim common heartbeat chain", "Reason for which the job waits.", "")
    own_done: int = _stored(_NUMBER, "claim common", "Units that the attempt itself has done.", 0)
    past_done: int = _stored(_NUMBER, "claim", "`done` when the attempt began.", 0)
    past_total: int | None = _stored(_NUMBER, "claim", "`total` when the attempt began.", None)
    past_unit: str = _stored(_TEXT, "claim", "`unit` when the attempt began.", "")
    phases: str = _stored(_TEXT, "claim heartbeat complete release common split", "Phases of the latest attempt.", "")
    attempts: Sequence[Sequence[str]] | None = _stored(_JSON, "complete common split", "Earlier attempts (JSON).", None)
    reported_us: int = _stored(_NUMBER, "claim heartbeat", "Time of the latest `job.progress` event.", 0)
    progress_told_us: int = _stored(_NUMBER, "outbox", "Time of the latest `job.progress` webhook.", 0)
    said: str = _stored(_TEXT, "add", "Characters of text that an attempt has streamed, as FENCE:CHARACTERS.", "")

    parts: int | None = _stored(_NUMBER, "split", "Number of the job's parts, of its latest split.", None)
    parts_ended: int | None = _stored(_NUMBER, "split common", "Number of these parts that have ended.", None)
    parent: str = _stored(_TEXT, "split", "Of a part: id of its job.", "")
    part_digest: str = _stored(_TEXT, "split", "Of a part: digest of the division.", "")
    part_first: int | None = _stored(_NUMBER, "split", "Of a part: its first unit of the division.", None)
    part_last: int | None = _stored(_NUMBER, "split", "Of a part: its last unit of the division.", None)
    part_units: int | None = _stored(_NUMBER, "split", "Of a part: units of progress that its job gains.", None)
    counted: int | None = _stored(_NUMBER, "split common heartbeat", "Of a part: units that its job has counted.", None)
    silent: bool = _stored(_FLAG, "split note", "No webhook tells of the end: of a part, or of a purged job.", False)

    text: str = _stored(_TEXT, "complete", "Text of the result.", "")
    data: Mapping[str, Any] | None = _stored(_JSON, "complete", "Data of the result (JSON).", None)
    output: Artifact | None = _stored(
        _OUTPUT, "complete", "Place of the text and data in the object store, where they are large (JSON).", None
    )
    artifacts: tuple[Artifact, ...] = _stored(_ARTIFACTS, "complete", "Files of the result (JSON).", ())
    error: ErrorReport | None = _stored(
        _REPORT, "complete heartbeat sweep expire note", "Report of the latest attempt's error (JSON).", None
    )
    metrics: Mapping[str, float] | None = _stored(_JSON, "complete", "Figures of the latest attempt (JSON).", None)
    provenance: str = _stored(_TEXT, "complete", "The model, software, machine and inputs of the result (JSON).", "")
    device_us: int | None = _stored(
        _NUMBER, "complete common split", "Time of a device, of all reported attempts.", None
    )
    bytes_in: int | None = _stored(
        _NUMBER, "complete common split", "Bytes of fetched media, of all reported attempts.", None
    )
    bytes_out: int | None = _stored(_NUMBER, "complete common split", "Bytes of the result's artifacts.", None)
    tokens_in: int | None = _stored(
        _NUMBER, "complete common split", "Tokens of given texts, of all reported attempts.", None
    )
    tokens_out: int | None = _stored(
        _NUMBER, "complete common split", "Generated tokens, of all reported attempts.", None
    )
    pixels: int | None = _stored(
        _NUMBER, "complete common split", "Pixels given to the model, of all reported attempts.", None
    )
    delivery: Delivery = _stored(
        Codec(Delivery.read, str), "submit outbox redeliver split", "State of all webhook deliveries together."
    )

    @classmethod
    def read(cls, stored: Mapping[str, str]) -> Record:
        """Return the record of a hash; `RecordTooNew` for one of a newer format."""
        version = readable_version(f"job {stored.get('id')}", stored)
        rows = TABLE
        found = cls(**{name: rows[name].codec.read(text) for name, text in stored.items() if text and name in rows})
        if version == found.submission.version and found.media_bytes is None and not found.after:
            return found
        after = tuple(found.after.split())
        submission = replace(found.submission, version=version, media_bytes=found.media_bytes, after=after)
        return replace(found, submission=submission)

    @property
    def course(self) -> tuple[AttemptTimes, ...]:
        """The latest attempts, oldest first."""
        past = tuple(past_attempt(row) for row in self.attempts or ())
        if self.started_us is None or (past and past[-1].fence == self.fence):
            return past
        outcome = None if self.completed_us is None else (self.public or self.state).value
        if self.error is not None and self.error.code == WorkerLost.code and outcome == State.FAILED:
            outcome = "lost"
        latest = attempt_times(
            self.fence, self.attempt, self.worker, self.started_us, self.completed_us, outcome, self.phases
        )
        return (*past, latest)

    @property
    def usage(self) -> Usage:
        """The resources that the job used."""
        return Usage(
            seconds(self.device_us), self.bytes_in, self.bytes_out, self.tokens_in, self.tokens_out, self.pixels
        )

    @property
    def public(self) -> Status | None:
        """The public state of a state that this release does not know; None for a known state."""
        if self.state is not State.OTHER:
            return None
        return self.shown or (Status.RUNNING if self.completed_us is None else Status.FAILED)


#: All fields by name.
TABLE: Mapping[str, Stored] = MappingProxyType({each.name: each.metadata["row"] for each in fields_of(Record)})
#: Fields with a name for each endpoint, by the beginning of the name.
FAMILIES: Mapping[str, Stored] = MappingProxyType(
    {"progress_told:": Stored(_TEXT, frozenset({"outbox"}), "Id of the latest `job.progress` delivery to an endpoint.")}
)


def readable_version(what: str, document: Mapping[str, Any]) -> int:
    """Return the format of a document; raise `RecordTooNew` for one that this release cannot read."""
    if not is_readable(version := version_of(document)):
        raise RecordTooNew(
            f"{what} has format {version}, and this process reads formats up to {READS}: update Penstock here"
        )
    return version


def encoded(**values: Any) -> dict[str, str]:
    """Return fields of a record as they are stored, without those that are None or an empty text."""
    texts = {name: TABLE[name].codec.write(value) for name, value in values.items() if value is not None}
    return {name: text for name, text in texts.items() if text}


def readable(rows: Iterable[R], read: Callable[[R], T]) -> tuple[T, ...]:
    """Return each row as `read` returns it. A record of a newer format is left out and logged."""
    found = []
    for row in rows:
        try:
            found.append(read(row))
        except RecordTooNew as error:
            log.warning("record.skipped", detail=error.detail)
    return tuple(found)


def job_of(flat: Sequence[str]) -> Job:
    """Return the job that a record's flat hash describes."""
    record = Record.read(fields(flat))
    completed = seconds(record.completed_us)
    return Job(
        submission=record.submission,
        state=record.state,
        created_s=record.created_us / MICRO,
        cancel_requested=record.cancel,
        phase=record.phase,
        attempt=record.attempt,
        crashes=record.crashes,
        fence=record.fence,
        progress=Progress(record.done, record.total, record.unit, record.message or None),
        own_done=record.own_done,
        started_s=seconds(record.started_us),
        completed_s=completed,
        due_s=seconds(record.due_us) if record.state is State.DELAYED else None,
        expires_s=completed + record.retention_us / MICRO if completed is not None else None,
        text=record.text or None,
        data=record.data,
        output=record.output,
        artifacts=record.artifacts,
        error=record.error,
        metrics=record.metrics or {},
        provenance=record.provenance or None,
        delivery=record.delivery,
        usage=record.usage,
        attempts=record.course,
        parts=Parts(record.parts, record.parts_ended or 0) if record.parts else None,
        shown=record.public,
        depth=record.depth,
        revision=record.revision,
    )


def claim_of(row: Mapping[str, Any]) -> Claim:
    """Return a claim of the reply of `claim.lua`. A part has the submission of its job, under a key of its own."""
    submission = submission_of(json.loads(row["submission"]))
    part = row.get("part")
    return Claim(
        submission=submission if part is None else replace(submission, key=JobKey(submission.key.tenant, part["id"])),
        part=None if part is None else Part(submission.key, part["digest"], int(part["first"]), int(part["last"])),
        parts=int(row.get("parts", 0)),
        attempt=int(row["attempt"]),
        crashes=int(row["crashes"]),
        fence=int(row["fence"]),
        claimed_s=int(row["claimed_us"]) / MICRO,
        lease_s=int(row["lease_us"]) / MICRO,
        last_chance=row["last_chance"],
        fetch_hosts=tuple(row["fetch_hosts"].split()),
        more=row["more"],
        durable=row["durable"],
        may_be_old=row["may_be_old"],
        upstreams={name: _ARTIFACTS.read(text) for name, text in (row.get("upstreams") or {}).items()},
    )


def phases_text(fence: int, phases: Iterable[tuple[Phase, int]]) -> str:
    """Return the text of an attempt's phases and the microseconds from its claim to the start of each."""
    return " ".join((str(fence), *(f"{phase.value}:{after_us}" for phase, after_us in phases)))


def past_attempt(row: Sequence[str]) -> AttemptTimes:
    """Return the attempt of a row of `attempts`."""
    fence, number, worker, started, ended, outcome, phases = row[:7]
    return attempt_times(int(fence), int(number), worker, int(started), int(ended), outcome, phases)


def attempt_times(
    fence: int, number: int, worker: str, started_us: int, ended_us: int | None, outcome: str | None, phases: str
) -> AttemptTimes:
    """Return an attempt; a text of phases with another fence is ignored, as an older release leaves it behind."""
    owner, *rows = phases.split(" ")
    found = tuple(_phases(rows, started_us, ended_us)) if owner == str(fence) else ()
    ended_s = None if ended_us is None else ended_us / MICRO
    return AttemptTimes(number, fence, worker, started_us / MICRO, ended_s, outcome, found)


def _phases(rows: Sequence[str], started_us: int, ended_us: int | None) -> Iterator[PhaseTimes]:
    begun = [(name, started_us + int(after_us)) for name, _, after_us in (row.partition(":") for row in rows)]
    ends = [*(at for _, at in begun), ended_us][1:]
    for (name, at), end in zip(begun, ends, strict=True):
        # The worker measures from the claim's arrival: its last phase may begin a moment after the end by Redis' clock.
        at = at if ended_us is None else min(at, ended_us)
        end = end if end is None or ended_us is None else min(end, ended_us)
        yield PhaseTimes(Phase.read(name), at / MICRO, None if end is None else max(at, end) / MICRO)
