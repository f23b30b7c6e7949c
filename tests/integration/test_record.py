"""The table of the record's fields, compared with the scripts by their text and by what they store."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from penstock.errors import ErrorReport, RecordTooNew
from penstock.formats import READS, WRITES
from penstock.jobs import Artifact, JobKey, Phase, Progress, State, Submission, Usage, Webhook
from penstock.storage.journal import endpoints
from penstock.storage.redis import chains, deliveries, listing, parts, queues, record, records, streaming
from penstock.storage.redis.record import FAMILIES, TABLE, Record, encoded
from penstock.storage.redis.records import JobStore, Outcome
from tests.support.bare_store import LIMITS, claim, read, submission, submit, sweep_until
from tests.support.claims import claiming

LUA = {
    path.stem: re.sub(r"--.*", "", path.read_text()) for path in (Path(record.__file__).parent / "lua").glob("*.lua")
}
#: Fields that only later releases write.
LATER = {"shown"}
#: Keys of a record's table in Lua that are not stored.
TRANSIENT = {"name", "buried"}
#: By convention, only tables with fields of a job's record have these names in the scripts.
RECORDS = "job|existing|record|fields|result|parent|part|changes"
NAMES = rf"(?<!')(?:{RECORDS})\.[a-z_]+"
#: Tables of fields that scripts write: arguments of these functions, or `fields` itself.
WRITTEN = (
    r"(?:write|finish|requeue|back|ends|terminate|end_part)\((?:job|parent|part),(?: [\w'.]+,)? \{([^{}]*)\}",
    r"\b(?:fields|changes) = (?:.*, )?\{([^{}]*)\}",
)
#: The function that adds up what attempts used writes a field for each measure.
ADDS, MEASURES = r"\badd_used\(", re.findall(r"'([a-z_]+)'", re.findall(r"local USED = \{(.*)\}", LUA["common"])[0])


def written_by(name: str) -> set[str]:
    """Return the fields that a script writes, by its text."""
    text = LUA[name]
    assigned = re.findall(rf"^\s*(?:if .* then )?({NAMES}(?:, {NAMES})*) = ", text, re.M)
    assigned += re.findall(rf"then ({NAMES}(?:, {NAMES})*) = ", text)
    found = {each.partition(".")[2] for names in assigned for each in names.split(", ")}
    for table in (table for pattern in WRITTEN for table in re.findall(pattern, text)):
        found |= set(re.findall(r"([a-z_]+) = ", table))
    if re.search(ADDS, text):
        found |= set(MEASURES)
    return found - TRANSIENT


def read_by(name: str) -> set[str]:
    """Return the fields that a script reads or writes, by its text."""
    text = LUA[name]
    found = {each.partition(".")[2] for each in re.findall(rf"(?<![.\w])(?:{NAMES})", text)}
    for call in re.findall(r"'HM?GET', jobkey\([^()]*\),([^()]*)\)", text):
        found |= set(re.findall(r"'([a-z_]+)'", call))
    found |= set(re.findall(r"\bwaiting\(-?\d, '([a-z_]+)'\)", text))
    return found - TRANSIENT


def test_the_scripts_read_and_write_no_other_fields() -> None:
    for name in LUA:
        assert (written_by(name) | read_by(name)) - set(TABLE) == set(), name


def test_every_field_is_written_by_the_scripts_that_the_table_names() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for name in LUA:
        for each in written_by(name):
            found[each].add(name)
    for each in cast("Mapping[str, Any]", records.submit(full(), replace(LIMITS, durable=True)).args["record"]):
        found[each].add("submit")
    named = {each: set(row.writers) for each, row in TABLE.items() if each not in LATER}
    # `commit` stores an outcome, which has every field.
    assert {each: writers - {"commit"} for each, writers in found.items()} == named


def test_dynamic_names_of_fields_are_in_the_table() -> None:
    made = set(re.findall(r"'([a-z_]+:)' \.\. \(to\.endpoint", LUA["outbox"]))
    assert made == set(FAMILIES)


def full() -> Submission:
    """Return a submission that has everything."""
    return Submission(
        JobKey("default", "a"), model="m", queue="q", input={"a": [], "b": {}, "c": "http://h/"}, fingerprint="f",
        batch_id="b", metadata={"k": "v"}, drop='{"bucket":"b","key":"k"}', webhook=Webhook("http://nobody.invalid/"),
        retry_of="z", media_bytes=7, after=("u",),
    )  # fmt: skip


ERROR = ErrorReport("out_of_memory", "t", "d", True)


def hashes(store: JobStore) -> dict[str, str]:
    """Return the stored record."""
    return cast("dict[str, str]", store.client.hgetall("penstock:tenant:default:job:a"))


def test_a_job_stores_every_field_of_the_table_and_no_other(store: JobStore) -> None:
    seen: dict[str, str] = {}
    endpoint = endpoints.Endpoint(
        endpoints.EndpointKey("default", "e"), "http://nobody.invalid/", (), 0, 0, events=("job.progress",)
    )
    store.run(endpoints.publish(endpoint.key, endpoint))
    # A batch refuses members before it is open; a job that was accepted before is let in.
    limits = records.QueueLimits(records.NO_LIMIT, records.NO_LIMIT, 3600, 3, durable=True)
    created = store.run(records.submit(full(), limits, carried={"depth": "1"})).job
    store.run(records.confirm(created.key, round(created.created_s * 1e6)))
    store.run(chains.follow(created.key, ["u"]))  # and the upstream is found after all
    seen |= hashes(store)
    store.client.hdel("penstock:tenant:default:job:a", "doomed")
    submit(store, "u")
    [upstream] = claim(store)
    store.run(records.complete(upstream, Outcome(State.SUCCEEDED)))
    [held] = claim(store)
    store.run(records.heartbeat(held, Phase.INFERRING, Progress(1, 3, "tiles", "hot"), checkpoints=1))
    store.run(streaming.stream_text(held, "Hello", at=0))
    store.run(records.complete(held, Outcome(State.DELAYED, error=ERROR)))
    seen |= hashes(store)
    sweep_until(store, lambda: read(store, created.key).state is State.QUEUED)
    [held] = claim(store)
    division = parts.Division("d", "cpu", (parts.PartRange(0, 1, 2), parts.PartRange(2, 2, 1)))
    store.run(parts.split(held, division, Progress(1, 3, "tiles"), Usage()))
    seen |= hashes(store)
    for part in (created.key.part("d", 0, 1), created.key.part("d", 2, 2)):
        seen |= cast("dict[str, str]", store.client.hgetall(f"penstock:tenant:default:job:{part.id}"))
        store.client.zadd("penstock:expiring", {str(part): 0})
    sweep_until(store, lambda: read(store, created.key).state is State.QUEUED)
    [held] = claim(store)
    artifact = Artifact("a", "a", "text/plain", 1, "0" * 64)
    outcome = Outcome(
        State.SUCCEEDED,
        text="Hi",
        data={"a": []},
        artifacts=(artifact,),
        usage=Usage(1.5, 1, 2, 3, 4, 5),
        provenance="{}",
    )
    large = store.run(records.complete(held, replace(outcome, output=artifact)))
    assert large.proposal is not None
    record = json.loads(large.proposal)["record"]
    assert record.keys() & {"text", "data", "output"} == {"output"}
    seen |= record
    reply = store.run(records.complete(held, outcome))
    assert reply.proposal is not None
    store.run(records.cancel(created.key))  # too late: the outcome may be stored
    seen |= hashes(store)
    store.run(records.commit(created.key, reply.proposal))
    seen |= hashes(store)
    names = {name for name in seen if not name.startswith(tuple(FAMILIES))}
    assert names == set(TABLE) - LATER
    assert any(name.startswith("progress_told:") for name in seen)


def test_fields_are_read_as_they_were_written() -> None:
    artifact = Artifact("a", "a", "text/plain", 1, "0" * 64)
    values: dict[str, Any] = {
        "submission": full(), "after": "u",
        "state": State.QUEUED, "phase": Phase.WAITING, "artifacts": (artifact,), "error": ERROR,
        "data": {"a": [], "n": 12345678901234567890}, "metrics": {"a_ms": 1.5}, "cancel": True, "durable": False,
        "text": "wörld\x00\n", "total": None, "created_us": 1_700_000_000_123_456,
    }  # fmt: skip
    stored = encoded(**values) | encoded(
        fingerprint="f", tenant="t", id="i", model="m", queue="q", ttl_us=1, execution_us=1, retention_us=1, revision=1,
        max_attempts=1, max_crashes=1, attempt=0, crashes=0, fence=0, delivery="none",
    )  # fmt: skip
    found = Record.read(stored | {"unknown": "1"})
    assert {name: getattr(found, name) for name in values} == values


class TestVersion:
    def test_a_record_has_the_version_of_its_format(self, store: JobStore) -> None:
        submit(store)
        assert hashes(store)["version"] == str(WRITES)

    def test_a_record_without_a_version_is_read(self, store: JobStore) -> None:
        key = submit(store)
        store.client.hdel("penstock:tenant:default:job:a", "version")
        assert read(store, key).state is State.QUEUED
        assert [held.key for held in claim(store)] == [key]

    def test_a_newer_record_is_an_error_of_its_job_and_left_out_of_lists(self, store: JobStore) -> None:
        newer, other = submit(store, "a", webhook=Webhook("http://nobody.invalid/")), submit(store, "b")
        store.client.hset("penstock:tenant:default:job:a", "version", READS + 1)
        with pytest.raises(RecordTooNew, match=rf"job a has format {READS + 1}.*update"):
            read(store, newer)
        with capture_logs() as logged:
            page = store.run(listing.list_jobs("default"))
        assert [job.key for job in page.jobs] == [other]
        assert [entry["event"] for entry in logged] == ["record.skipped"]

    def test_a_newer_record_is_left_to_newer_workers_and_keepers(self, store: JobStore) -> None:
        hook = Webhook("http://nobody.invalid/", ("job.canceled",))
        submit(store, "a", webhook=hook)
        other = submit(store, "b", webhook=hook)
        store.client.hset("penstock:tenant:default:job:a", "version", READS + 1)
        assert [held.key for held in claim(store, 2)] == [other]
        for name in "ab":
            with pytest.raises(RecordTooNew) if name == "a" else capture_logs():
                store.run(records.cancel(JobKey("default", name)))
        [held] = claim(store) or [None]
        assert held is None
        assert {task.delivery.key.id for task in store.run(deliveries.due(10, 30)).tasks} <= {"b"}
        assert store.run(queues.dead_letters("q", "default", 10)) == ()


class TestArguments:
    """The one argument of a script is JSON, and the way through cjson changes nothing."""

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": [], "n": 1e400}', 'ä\x00"\\/\u2028😀', "x" * 1_000_000])
    def test_a_text_arrives_byte_for_byte(self, store: JobStore, text: str) -> None:
        submit(store, webhook=Webhook("http://nobody.invalid/", ("job.queued",)))
        [row] = store.run(deliveries.deliveries(JobKey("default", "a")))
        assert store.run(deliveries.fix_body(row, text)) == text

    @pytest.mark.parametrize("number", [0, -1, 10**14, 10**15 + 1, 2**53 - 1, 2**53 + 1, 2**62])
    def test_a_number_arrives_to_the_last_digit(self, number: int) -> None:
        argument = json.loads(records.confirm(JobKey("t", "i"), number).argument)
        assert argument == {"tenant": "t", "id": "i", "created_us": str(number)}

    def test_a_time_with_all_its_digits_is_stored(self, store: JobStore) -> None:
        key = store.run(records.submit(submission(), records.QueueLimits(9, 9, 9, 9, durable=True))).job.key
        store.run(records.confirm(key, 1_700_000_000_123_457))
        assert hashes(store)["created_us"] == "1700000000123457"

    def test_empty_lists_and_objects_and_missing_values(self, store: JobStore) -> None:
        submit(store)
        assert store.run(claiming(models=[], running_caps={})) is None
        assert "cursor" not in json.loads(listing.list_jobs("default").argument)
        assert len(store.run(listing.list_jobs("default", metadata={})).jobs) == 1

    def test_what_is_no_argument_is_refused(self) -> None:
        with pytest.raises(TypeError):
            _ = records.Command("read", {"op": 1.5}, str).argument  # type: ignore[dict-item]


def test_the_table_says_what_each_field_means() -> None:
    for name, row in TABLE.items():
        assert row.meaning.endswith("."), name
        assert row.writers <= set(LUA), name
