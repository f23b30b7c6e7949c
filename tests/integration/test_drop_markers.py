"""Drop rules that take their form from the model, ignored and failed objects, and retries after a correction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.config_tables import DropRule
from penstock.jobs import JobKey
from penstock.storage.redis import catalogues, drop_events, listing
from penstock.workers.keeper.drop_markers import upload_id
from penstock.workers.keeper.drops import Drop, open_drops
from tests.support.echo_processor import Bench, open_bench
from tests.support.valkey import ValkeyProcess


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "bucket" / "in").mkdir(parents=True)
    return folder


@pytest.fixture
def rule(folder: Path) -> DropRule:
    return DropRule(name="inbox", bucket=folder.parent.as_uri(), prefix="in/", model="echo", output_prefix="out/")


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path, rule: DropRule, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("PENSTOCK_REDIS_URL", valkey.url)
    monkeypatch.setenv("PENSTOCK_DROPS", json.dumps([json.loads(rule.model_dump_json())]))
    with open_bench(valkey.url, tmp_path, drops=(rule,)) as bench:
        yield bench


def opened(bench: Bench, **changes: Any) -> Drop:
    [drop] = open_drops(bench.settings, bench.store, bench.objects)
    drop.rule = drop.rule.model_copy(update=changes)
    drop.settings = drop.settings.model_copy(update={"drops": (drop.rule,)})
    return drop


def run(bench: Bench, drop: Drop) -> drop_events.Pass:
    """List twice (a file must be still), run what was submitted, publish; return the last listing."""
    for _ in range(2):
        drop.step()
    bench.slots.work("default")
    for _ in range(2):
        drop.step()
    return bench.store.run(drop_events.passes()).rules["inbox"]


def jobs(bench: Bench) -> int:
    return len(bench.store.run(listing.list_jobs("default")).jobs)


def test_a_rule_without_field_and_suffixes_runs_on_the_models_file(bench: Bench, folder: Path) -> None:
    (folder / "a.anything").write_text("hi")
    found = run(bench, opened(bench))
    assert (found.found, found.failed, found.problem, found.takes) == (1, 0, None, ("",))
    assert (folder.parent / "out" / "a.anything" / "echo.txt").read_text() == "hi"


def test_ignored_files_are_named_and_those_beside_an_object_are_not(bench: Bench, folder: Path) -> None:
    for name in ("a.txt", "a.txt.json", "b.csv", ".DS_Store", "a.txt.aux.xml"):
        (folder / name).write_text("{}")
    found = run(bench, opened(bench, suffixes=(".txt",)))
    assert (found.ignored, found.ignored_files, found.takes) == (1, ("in/b.csv",), (".txt",))
    shown = CliRunner().invoke(app, ["drops"], env={"COLUMNS": "200"}).stdout
    assert "inbox ignores 1 file without one of its `suffixes` (.txt): in/b.csv" in shown


def test_the_metadata_of_a_product_is_no_document(bench: Bench, folder: Path) -> None:
    (folder / "a.json").write_text('{"text": "b.txt"}')
    (folder / "b.txt").write_text("hi")
    (folder / "LC08_L2SP_190028_MTL.json").write_text('{"LANDSAT_METADATA_FILE": {}}')
    found = run(bench, opened(bench, suffixes=(".json",)))
    assert (found.found, found.failed, jobs(bench)) == (1, 0, 1)
    assert (found.ignored, found.ignored_files) == (1, ("in/LC08_L2SP_190028_MTL.json",))
    shown = CliRunner().invoke(app, ["drops"], env={"COLUMNS": "200"}).stdout
    assert "(.json) or with a product's metadata (*_MTL.json): in/LC08_L2SP_190028_MTL.json" in shown


def test_a_model_that_is_being_checked_is_waited_for_without_an_error(bench: Bench, folder: Path) -> None:
    (folder / "a.txt").write_text("hi")
    echo = bench.store.run(catalogues.known()).entries["echo"]
    known = echo.model_copy(update={"name": "late", "aliases": ()})
    for problem, errors in ((catalogues.CHECKING, 0), ("its weights are gone", 1)):
        checking = known.model_copy(update={"ready": False, "problem": problem, "input_schema": {}})
        bench.store.run(catalogues.publish([checking], worker="w", queues=["default"], alive_s=600))
        drop = opened(bench, model="late")
        with capture_logs() as logs:
            for _ in range(2):
                drop.step()
        assert [line["event"] for line in logs].count("drop.unfit_rule") == errors
        assert (bench.store.run(drop_events.passes()).rules["inbox"].problem, jobs(bench)) == (problem, 0)
    bench.store.run(catalogues.publish([known], worker="w", queues=["default"], alive_s=600))
    found = run(bench, opened(bench, model="late"))
    assert (found.failed, found.problem, jobs(bench)) == (0, None, 1)


def test_a_rule_that_does_not_fit_its_model_submits_nothing_and_says_why(bench: Bench, folder: Path) -> None:
    (folder / "a.txt").write_text("hi")
    found = run(bench, opened(bench, field="scene", suffixes=(".txt",)))
    reason = "the model echo has no field 'scene'; its files are: text. Remove `field` from the rule, or correct it"
    assert (found.waiting, found.failed, found.problem, jobs(bench)) == (1, 0, reason, 0)


def test_failed_objects_are_listed_with_reasons_and_run_again_after_a_correction(bench: Bench, folder: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("hi")
        (folder / f"{name}.json").write_text('{"times": "often"}')
    drop = opened(bench)
    found = run(bench, drop)
    assert sorted(found.failures) == ["in/a.txt", "in/b.txt"]
    assert "/input/times" in found.failures["in/a.txt"]
    assert found.problem == f"all 2 objects failed: {found.failures['in/a.txt']}"
    shown = CliRunner().invoke(app, ["drops"], env={"COLUMNS": "300"})
    assert shown.exit_code == 1
    assert f"inbox failed on in/a.txt: {found.failures['in/a.txt']}" in shown.stdout
    assert "`penstock drops retry inbox` runs them again" in shown.stdout

    (folder / "a.txt.json").write_text('{"times": 2}')
    assert run(bench, drop).failures.keys() == {"in/a.txt", "in/b.txt"}  # nobody asked for a retry
    again = CliRunner().invoke(app, ["drops", "retry", "inbox", "in/a.txt"])
    assert again.stdout.split("\n")[0] == "1 failed object of inbox will run again with the next listing"
    found = run(bench, drop)
    assert found.failures.keys() == {"in/b.txt"}
    assert (folder.parent / "out" / "a.txt" / "echo.txt").read_text() == "hihi"
    assert sorted(path.name for path in (folder.parent / "out").iterdir()) == [
        "a.txt", "a.txt.done.json", "b.txt.error.json",
    ]  # fmt: skip
    number = jobs(bench)
    assert drop.step() == 0
    assert jobs(bench) == number

    (folder / "b.txt.json").unlink()
    assert "1 failed object" in CliRunner().invoke(app, ["drops", "retry", "inbox"]).stdout
    other = opened(bench)  # another keeper, which knows nothing of the first
    assert run(bench, other).failures == {}
    assert (folder.parent / "out" / "b.txt" / "echo.txt").read_text() == "hi"


@pytest.mark.usefixtures("bench")
def test_a_retry_of_an_unknown_rule_names_the_known_ones() -> None:
    done = CliRunner().invoke(app, ["drops", "retry", "inbx"])
    assert done.exit_code != 0
    assert "there is no drop rule 'inbx' in the settings here; known rules: inbox" in str(done.exception)


def test_a_document_names_the_files_of_its_job(bench: Bench, folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "words.txt").write_text("hi")
    (folder / "job.json").write_text('{"text": "deep/words.txt", "times": 2}')
    (folder / "lost.json").write_text('{"text": "none.txt"}')
    (folder / "out.json").write_text('{"text": "../secret.txt"}')
    (folder / "linked.json").write_text('{"text": "link.txt"}')
    (folder / "link.txt").symlink_to(folder / "deep" / "words.txt")
    (folder.parent / "secret.txt").write_text("secret")
    found = run(bench, opened(bench, suffixes=(".json",)))
    assert (folder.parent / "out" / "job.json" / "echo.txt").read_text() == "hihi"
    assert found.failures == {
        "in/lost.json": "in/lost.json names none.txt, and there is no in/none.txt: put the files there first",
        "in/out.json": "in/out.json names ../secret.txt: name files under the rule's prefix, as a relative path",
        "in/linked.json": "in/linked.json names link.txt, which is a link, and links are not followed: put a copy "
        "there",
    }
    assert found.ignored == 0


def test_a_retry_leaves_the_objects_of_other_rules_and_those_that_are_gone(bench: Bench, folder: Path) -> None:
    for name in ("a.txt", "gone.txt"):
        (folder / name).write_text("hi")
        (folder / f"{name}.json").write_text('{"times": "often"}')
    run(bench, opened(bench))
    (folder / "gone.txt").unlink()
    out = folder.parent / "out"
    (out / "other.wav.error.json").write_text('{"id": "0199", "status": "failed"}')
    before = {name: (out / name).read_text() for name in ("gone.txt.error.json", "other.wav.error.json")}
    assert "1 failed object" in CliRunner().invoke(app, ["drops", "retry", "inbox"]).stdout
    assert {name: (out / name).read_text() for name in before} == before


@pytest.mark.parametrize("suffixes", [(".json", ".txt"), (".txt", ".json")])
def test_documents_and_other_objects_may_be_mixed_in_any_order(
    bench: Bench, folder: Path, suffixes: tuple[str, str]
) -> None:
    (folder / "b.txt").write_text("b")
    (folder / "job.json").write_text('{"text": "b.txt", "times": 2}')
    (folder / "long.json").write_text(json.dumps({"text": f"{'a' * 300}.txt"}))
    found = run(bench, opened(bench, suffixes=suffixes))
    assert (folder.parent / "out" / "b.txt" / "echo.txt").read_text() == "b"
    assert (folder.parent / "out" / "job.json" / "echo.txt").read_text() == "bb"
    assert list(found.failures) == ["in/long.json"]


def test_a_document_reaches_no_object_of_another_tenants_rule(bench: Bench, folder: Path, rule: DropRule) -> None:
    (folder / "b").mkdir()
    (folder / "b" / "secret.txt").write_text("secret")
    (folder / "job.json").write_text('{"text": "b/secret.txt"}')
    drop = opened(bench, suffixes=(".json",))
    theirs = rule.model_copy(
        update={"name": "theirs", "prefix": "in/b/", "suffixes": (".txt",), "tenant": "other", "output_prefix": "b/"}
    )
    drop.settings = drop.settings.model_copy(update={"drops": (drop.rule, theirs)})
    assert run(bench, drop).failures == {
        "in/job.json": "in/job.json names in/b/secret.txt, which a rule of another tenant takes"
    }
    assert jobs(bench) == 0


def test_files_whose_names_are_changed_for_the_upload_stay_apart() -> None:
    job, names = JobKey("default", "6b1f6d5e-7c7a-5d6c-9d0e-3f1f3c1f9a52"), ("a b.tif", "a_b.tif", "deep/a_b.tif")
    uploads = [upload_id(job, "in/x.json", f"in/{name}") for name in names]
    assert len(set(uploads)) == 3
    assert uploads[1] == upload_id(job, "in/a b.tif", "in/a b.tif") == job.id
