"""Bucket drop-in on real folders: one job and one result per object version, whatever is repeated or half done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.config_tables import DropRule
from penstock.jobs import JobKey, State, Status
from penstock.storage.drop_rules import wanted
from penstock.storage.journal import journal
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import drop_events, listing, records
from penstock.workers.keeper.drops import Drop, drop_id, open_drops, result_key
from tests.support.echo_processor import Bench, open_bench
from tests.support.valkey import ValkeyProcess


def rule(folder: Path, **changes: Any) -> DropRule:
    fields = {
        "name": "inbox", "bucket": (folder / "bucket").as_uri(), "prefix": "in/", "suffixes": (".txt",),
        "model": "echo", "field": "text", "output_prefix": "out/",
    }  # fmt: skip
    return DropRule(**(fields | changes))


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "bucket" / "in").mkdir(parents=True)
    with open_bench(valkey.url, tmp_path, drops=(rule(tmp_path),)) as bench:
        yield bench


@pytest.fixture
def drop(bench: Bench) -> Drop:
    [drop] = open_drops(bench.settings, bench.store, bench.objects)
    return drop


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    return tmp_path / "bucket" / "in"


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    return tmp_path / "bucket" / "out"


def jobs(bench: Bench) -> tuple[JobKey, ...]:
    return tuple(job.key for job in bench.store.run(listing.list_jobs("default")).jobs)


def run(bench: Bench, drop: Drop) -> None:
    """List twice (a file must be still), run what was submitted, publish."""
    drop.step()
    drop.step()
    bench.slots.work("default")
    drop.step()


def test_a_file_becomes_one_job_and_its_result_lies_beside_a_marker(
    bench: Bench, drop: Drop, inbox: Path, outbox: Path
) -> None:
    (inbox / "a.txt").write_text("hi")
    run(bench, drop)
    [key] = jobs(bench)
    # The file by its name under the bucket: tenants are not told where on the server that lies.
    metadata = bench.store.run(records.read(key)).submission.metadata
    assert metadata == {"drop": drop.rule.name, "source": f"{drop.rule.prefix}a.txt"}
    assert bench.store.run(records.read(key)).submission.media_bytes == 2
    assert (outbox / "a.txt" / "echo.txt").read_text() == "hi"
    marker = json.loads((outbox / "a.txt.done.json").read_text())
    assert (marker["id"], marker["status"]) == (key.id, "succeeded")
    assert drop.step() == 0
    assert len(jobs(bench)) == 1


def test_a_file_that_is_still_being_copied_waits(bench: Bench, drop: Drop, inbox: Path) -> None:
    (inbox / "a.txt").write_text("h")
    drop.step()
    (inbox / "a.txt").write_text("hi there")
    drop.step()
    assert jobs(bench) == ()
    drop.step()
    assert len(jobs(bench)) == 1


def test_another_keeper_or_an_emptied_redis_makes_no_second_job(
    bench: Bench, drop: Drop, inbox: Path, valkey: ValkeyProcess
) -> None:
    (inbox / "a.txt").write_text("hi")
    run(bench, drop)
    valkey.flush()
    [fresh] = open_drops(bench.settings, bench.store, bench.objects)
    for _ in range(3):
        assert fresh.step() == 0
    assert jobs(bench) == ()


def test_a_new_version_is_a_new_job(bench: Bench, drop: Drop, inbox: Path, outbox: Path) -> None:
    (inbox / "a.txt").write_text("one")
    run(bench, drop)
    (inbox / "a.txt").write_text("two, longer")
    run(bench, drop)
    assert len(jobs(bench)) == 2
    assert (outbox / "a.txt" / "echo.txt").read_text() == "two, longer"


def test_a_sidecar_gives_parameters_and_the_rule_the_rest(bench: Bench, drop: Drop, inbox: Path, outbox: Path) -> None:
    (inbox / "a.txt").write_text("hi")
    (inbox / "a.txt.json").write_text('{"times": 2}')
    run(bench, drop)
    assert (outbox / "a.txt" / "echo.txt").read_text() == "hihi"


@pytest.mark.parametrize("sidecar", ["{", "[1]", '{"times": "often"}', '{"when": "2020"}'])
def test_a_bad_sidecar_leaves_an_error_marker(
    bench: Bench, drop: Drop, inbox: Path, outbox: Path, sidecar: str
) -> None:
    (inbox / "a.txt").write_text("hi")
    (inbox / "a.txt.json").write_text(sidecar)
    run(bench, drop)
    marker = json.loads((outbox / "a.txt.error.json").read_text())
    assert (marker["status"], marker["error"]["code"]) == ("failed", "invalid_input")
    assert drop.step() == 0


@pytest.mark.parametrize(
    ("sidecar", "why"),
    [
        ('{"times": NaN}', "/times is NaN, which JSON does not have"),
        ('{"times": -Infinity}', "/times is -Infinity, which JSON does not have"),
        ('{"when": ' + "[" * 5000 + "]" * 5000 + "}", "nested more than 64 deep"),
        ('{"when": "\\ud800"}', "holds a character that is not text"),
        ('{"\\udfff": 1}', "has a name with a character that is not text"),
        ('{"times": ' + "9" * 5000 + "}", "a number that is too long"),
    ],
    ids=["nan", "infinity", "deep", "surrogate", "surrogate-name", "number"],
)
def test_a_sidecar_that_no_reader_takes_harms_its_own_scene_alone(
    bench: Bench, drop: Drop, inbox: Path, outbox: Path, sidecar: str, why: str
) -> None:
    (inbox / "a.txt").write_text("hi")
    (inbox / "a.txt.json").write_text(sidecar)
    (inbox / "b.txt").write_text("neighbour")
    run(bench, drop)
    error = json.loads((outbox / "a.txt.error.json").read_text())["error"]
    assert (error["code"], error["detail"].startswith("in/a.txt.json: "), why in error["detail"]) == (
        "invalid_input", True, True,
    )  # fmt: skip
    assert (outbox / "b.txt" / "echo.txt").read_text() == "neighbour"
    assert drop.step() == 0


def test_a_scene_that_is_too_large_gets_its_error_once(
    valkey: ValkeyProcess, tmp_path: Path, inbox: Path, outbox: Path
) -> None:
    inbox.mkdir(parents=True)
    with open_bench(valkey.url, tmp_path, drops=(rule(tmp_path),), max_upload_bytes=10) as bench:
        [drop] = open_drops(bench.settings, bench.store, bench.objects)
        (inbox / "a.txt").write_text("x" * 11)
        (inbox / "b.txt").write_text("x" * 10)
        run(bench, drop)
        error = json.loads((outbox / "a.txt.error.json").read_text())["error"]
        assert error["code"] == "media_too_large"
        assert error["detail"] == "in/a.txt has 11 bytes; max_upload_bytes allows 10"
        written_ns = (outbox / "a.txt.error.json").stat().st_mtime_ns
        assert drop.step() == 0
        assert (outbox / "a.txt.error.json").stat().st_mtime_ns == written_ns
        assert (outbox / "b.txt" / "echo.txt").exists()
        (inbox / "a.txt").write_text("smaller")
        run(bench, drop)
        assert (outbox / "a.txt.done.json").exists()


def test_a_sidecar_that_is_too_large_is_the_scenes_error(bench: Bench, drop: Drop, inbox: Path, outbox: Path) -> None:
    (inbox / "a.txt").write_text("hi")
    (inbox / "a.txt.json").write_text(" " * 100_001)
    run(bench, drop)
    error = json.loads((outbox / "a.txt.error.json").read_text())["error"]
    assert error["code"] == "media_too_large"
    assert error["detail"] == "in/a.txt.json, the parameters of the object, has 100001 bytes; 100000 are allowed"
    assert drop.step() == 0


@pytest.mark.parametrize("leads_to", ["parameters.json", "nowhere", "a.txt.json"])
def test_a_sidecar_that_is_a_link_is_the_scenes_error(
    bench: Bench, drop: Drop, inbox: Path, outbox: Path, leads_to: str
) -> None:
    (inbox / "parameters.json").write_text('{"times": 2}')
    (inbox / "a.txt").write_text("hi")
    (inbox / "a.txt.json").symlink_to(leads_to)
    run(bench, drop)
    error = json.loads((outbox / "a.txt.error.json").read_text())["error"]
    assert error["code"] == "invalid_input"
    assert "in/a.txt.json is a link" in error["detail"]
    assert drop.step() == 0
    assert bench.store.run(drop_events.passes()).rules["inbox"].passed_over == ("'in/a.txt.json'",)


def test_a_fault_at_one_object_is_told_and_holds_no_other_up(
    bench: Bench, drop: Drop, inbox: Path, outbox: Path
) -> None:
    class Faulty(LocalStore):
        """Has a fault of its own at one key."""

        def head(self, key: str) -> ObjectInfo:
            if key == "in/a.txt":
                raise ZeroDivisionError
            return super().head(key)

    drop.bucket = Faulty(inbox.parent)
    (inbox / "a.txt").write_text("hi")
    (inbox / "b.txt").write_text("neighbour")
    with capture_logs() as logs:
        run(bench, drop)
    assert (outbox / "b.txt" / "echo.txt").read_text() == "neighbour"
    told = [(each["key"], type(each["exc_info"])) for each in logs if each["event"] == "drop.failed"]
    assert told == [("in/a.txt", ZeroDivisionError)]  # once
    problem = bench.store.run(drop_events.passes()).rules["inbox"].problem
    assert problem == "in/a.txt: an unexpected ZeroDivisionError; see `drop.failed` in the keeper's log"


def test_a_marker_that_somebody_else_wrote_is_no_marker(bench: Bench, drop: Drop, inbox: Path, outbox: Path) -> None:
    outbox.mkdir()
    (outbox / "a.txt.done.json").write_text("[" * 100_000)
    (inbox / "a.txt").write_text("hi")
    run(bench, drop)
    assert json.loads((outbox / "a.txt.done.json").read_text())["status"] == "succeeded"


def test_a_mended_file_replaces_the_error_marker(bench: Bench, drop: Drop, inbox: Path, outbox: Path) -> None:
    (inbox / "a.txt").write_text("bad")
    run(bench, drop)
    assert (outbox / "a.txt.error.json").exists()
    (inbox / "a.txt").write_text("good now")
    run(bench, drop)
    assert sorted(path.name for path in outbox.iterdir()) == ["a.txt", "a.txt.done.json"]


def test_a_bad_version_takes_the_good_ones_result_away(bench: Bench, drop: Drop, inbox: Path, outbox: Path) -> None:
    (inbox / "a.txt").write_text("good")
    run(bench, drop)
    (outbox / "a.txt" / "notes.txt").write_text("somebody else's")
    (inbox / "a.txt").write_text("bad now")
    run(bench, drop)
    assert sorted(path.name for path in outbox.iterdir()) == ["a.txt", "a.txt.error.json"]
    assert [path.name for path in (outbox / "a.txt").iterdir()] == ["notes.txt"]


def test_an_unknown_model_waits_for_a_worker_that_has_it(bench: Bench, inbox: Path, tmp_path: Path) -> None:
    (inbox / "a.txt").write_text("hi")
    drop = Drop(rule(tmp_path, model="later"), open_drops(bench.settings, bench.store, bench.objects)[0].bucket,
                bench.settings, bench.store, bench.objects)  # fmt: skip
    drop.step()
    assert drop.step() == 1
    assert jobs(bench) == ()


def test_canceled_jobs_leave_an_error_marker(bench: Bench, drop: Drop, inbox: Path, outbox: Path) -> None:
    (inbox / "a.txt").write_text("hi")
    drop.step()
    drop.step()
    assert bench.journal.run(journal.cancel(jobs(bench)[0])).status is Status.CANCELED
    drop.step()
    marker = json.loads((outbox / "a.txt.error.json").read_text())
    assert (marker["status"], marker["error"]["code"]) == (State.CANCELED.value, "canceled")
    assert "put the object there again" in marker["error"]["detail"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("in/a.txt", True),
        ("in/deep/ä b+%2F.TXT", True),
        ("in/a.txt.json", False),
        ("in/folder.txt/", False),
        ("other/a.txt", False),
        ("out/a.txt", False),
    ],
)
def test_what_a_rule_wants(tmp_path: Path, key: str, expected: bool) -> None:
    assert wanted(rule(tmp_path), key) is expected


@pytest.mark.parametrize(
    ("suffixes", "key", "expected"),
    [
        (("",), "in/a", True),
        (("",), "in/a.tif.json", False),
        (("tif", "json"), "in/a.tif.json", False),
        (("tif",), "in/atif", True),
        ((".json",), "in/a.json", True),
        ((".json",), "in/a.json.json", False),
        (("",), "in/a.done.json", False),
        ((".json",), "in/a.tif.done.json", False),
        ((".json",), "in/a.tif.error.json", False),
        ((".txt",), "in/._a.txt", False),
        ((".txt",), "in/._deep/a.txt", True),
        ((".txt",), "in/.a.txt", True),
    ],
)
def test_sidecars_markers_and_what_macos_leaves_are_no_scenes(
    tmp_path: Path, suffixes: tuple[str, ...], key: str, expected: bool
) -> None:
    assert wanted(rule(tmp_path, suffixes=suffixes), key) is expected


def test_what_can_be_no_scene_in_a_folder_is_told_of_once(bench: Bench, drop: Drop, inbox: Path) -> None:
    (inbox / "a.txt").symlink_to("/etc/hostname")
    (inbox / "deep").symlink_to("/etc")
    os.mkfifo(inbox.parent / "outside.txt")
    Path(os.fsdecode(os.fsencode(inbox) + b"/\xe4.txt")).write_text("hi")
    with capture_logs() as logs:
        drop.step()
        drop.step()
    told = [each["key"] for each in logs if each["event"] == "drop.skipped"]
    assert told == ["'in/a.txt'", "'in/deep'", "'in/\\udce4.txt'"]
    assert jobs(bench) == ()
    assert bench.store.run(drop_events.passes()).rules["inbox"].passed_over == tuple(told)
    (inbox / "a.txt").unlink()
    drop.step()
    assert bench.store.run(drop_events.passes()).rules["inbox"].passed_over == tuple(told[1:])


@pytest.mark.parametrize(
    ("taken", "named"),
    [
        ("a.txt", "out/a.txt"),
        ("a.txt/echo.txt/mine", "out/a.txt/echo.txt"),
        ("a.txt.done.json/mine", "out/a.txt.done.json"),
    ],
)
def test_a_result_whose_place_is_taken_is_not_copied_again_and_again(
    bench: Bench, inbox: Path, outbox: Path, taken: str, named: str
) -> None:
    copied: list[str] = []

    class Counting(LocalStore):
        """Tells what was copied from it."""

        def get_file(self, key: str, path: Path, **options: Any) -> ObjectInfo:
            copied.append(key)
            return super().get_file(key, path, **options)

    assert isinstance(bench.objects, LocalStore)
    [drop] = open_drops(bench.settings, bench.store, Counting(bench.objects.root))
    mine = outbox / taken
    mine.parent.mkdir(parents=True)
    mine.write_text("a person's own")
    (inbox / "a.txt").write_text("hi")
    run(bench, drop)
    drop.step()
    problem = bench.store.run(drop_events.passes()).rules["inbox"].problem
    assert problem is not None
    assert problem.endswith(f"another object's key: {named!r} is in the way")
    assert (mine.read_text(), copied) == ("a person's own", [])

    mine.unlink()
    if mine.name == "mine":
        mine.parent.rmdir()
    drop.step()
    assert ((outbox / "a.txt" / "echo.txt").read_text(), len(copied)) == ("hi", 1)


def test_results_keep_the_folders_below_the_prefix(tmp_path: Path) -> None:
    assert result_key(rule(tmp_path), "in/2020/01/a.txt") == "out/2020/01/a.txt"


def test_a_rule_may_not_write_where_it_reads(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="output_prefix"):
        rule(tmp_path, output_prefix="in/out/")


def test_the_id_follows_the_version_and_where_there_is_none_etag_and_time() -> None:
    info = ObjectInfo("in/a.txt", 1, "e1", 1.0)
    versioned = ObjectInfo("in/a.txt", 1, "e1", 1.0, version_id="v1")
    same_version_later = ObjectInfo("in/a.txt", 1, "e1", 2.0, version_id="v1")
    ids = {drop_id("default", "b", i) for i in (info, versioned, ObjectInfo("in/a.txt", 1, "e1", 2.0))}
    assert len(ids) == 3
    assert drop_id("default", "b", versioned) == drop_id("default", "b", same_version_later)
    assert drop_id("default", "b", info) != drop_id("other", "b", info)
