"""`penstock doctor` and `penstock drops` report problems of drop rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from penstock.cli.doctor import examine
from penstock.cli.main import app
from penstock.config import Settings
from penstock.config_tables import S3, DropRule
from penstock.errors import EventQueueUnavailable
from penstock.intake.drop_checks import inspect_drops
from penstock.storage.objects.opening import open_store
from penstock.storage.redis.drop_events import Pass, problem_of
from penstock.storage.sqs import open_queue
from penstock.workers.keeper.drop_watch import DropWatch, QueueReader
from penstock.workers.keeper.drops import open_drops
from tests.support.aws_emulators import Emulator, emulating
from tests.support.echo_processor import open_bench
from tests.support.valkey import ValkeyProcess
from tests.support.web_server import Server, reply


def rule(name: str, bucket: str, **changes: Any) -> DropRule:
    fields = {
        "name": name, "bucket": bucket, "prefix": "in/", "suffixes": (".txt",), "model": "echo", "field": "text",
        "output_prefix": "out/",
    }  # fmt: skip
    return DropRule(**(fields | changes))


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulating("ministack", tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


def test_rules_whose_bucket_and_queue_answer_pass(emulator: Emulator, tmp_path: Path) -> None:
    queue, _ = emulator.queue()
    emulator.send(queue, "{}")
    (tmp_path / "in").mkdir()
    rules = (rule("a", f"s3://{emulator.bucket()}", events=queue), rule("b", tmp_path.as_uri()))
    found = list(inspect_drops(Settings(drops=rules, s3=emulator.s3), {}))
    assert [finding.name for finding in found] == ["drop rule a", "drop rule b", "drop queue"]
    assert all(finding.ok for finding in found)
    assert "events by SQS, no objects" in found[0].detail
    assert "about 1 messages wait" in found[2].detail


def test_each_thing_that_is_wrong_is_found(emulator: Emulator, tmp_path: Path) -> None:
    bucket = f"s3://{emulator.bucket()}"
    rules = (
        rule("none", "s3://there-is-none"),
        rule("nofolder", (tmp_path / "none").as_uri()),
        rule("first", bucket, events=f"{emulator.url}/000000000000/none"),
        rule("inner", bucket, prefix="in/new/", output_prefix="done/"),
    )
    found = {each.name: each for each in inspect_drops(Settings(drops=rules, s3=emulator.s3), {}) if not each.ok}
    assert set(found) == {"drop rule none", "drop rule nofolder", "drop queue", "drop rule inner"}
    assert "'first'" in found["drop rule inner"].detail
    assert all(finding.remedy for finding in found.values())


@pytest.mark.parametrize("half", [{}, {"AWS_ACCESS_KEY_ID": "k"}], ids=["none", "half"])
def test_credentials_that_nobody_set_are_named_and_no_outage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, half: dict[str, str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in half.items():
        monkeypatch.setenv(name, value)
    rules = (rule("a", "s3://b", events="https://sqs.eu-central-1.amazonaws.com/1/q"),)
    s3 = S3(endpoint_url="http://127.0.0.1:1", region=f"nowhere-{len(half)}")  # clients are kept by their settings
    found = {each.name: each.detail for each in inspect_drops(Settings(drops=rules, s3=s3), {}) if not each.ok}
    said = "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    assert found == {"drop rule a": f"s3://b: {said}", "drop queue": f"{rules[0].events}: {said}"}


@pytest.mark.parametrize(
    "body", [b"{}", b"<html>", b"[]", b'{"Attributes": {"ApproximateNumberOfMessages": "many"}}'], ids=repr
)
def test_an_address_of_events_that_answers_as_no_queue_is_found(body: bytes) -> None:
    with Server(reply(200, body, Content_Type="application/x-amz-json-1.0")) as server:
        s3 = S3(access_key_id="a", secret_access_key="b", region="eu-central-1")
        rules = (rule("a", "s3://b", events=f"http://127.0.0.1:{server.port}/1/q"),)
        [found] = [each for each in inspect_drops(Settings(drops=rules, s3=s3), {}) if each.name == "drop queue"]
        assert not found.ok
        assert "queue of bucket events" in found.detail


def test_a_model_that_nobody_knows_or_that_refuses_the_input_is_found(valkey: ValkeyProcess, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    folder = tmp_path.as_uri()
    with open_bench(valkey.url, tmp_path / "data") as bench:
        known = {bench.entry.name: bench.entry}
        broken = {"echo": bench.entry.model_copy(update={"problem": "its weights are gone"})}

    def wrong(models: Any, **changes: Any) -> list[str]:
        found = inspect_drops(Settings(drops=(rule("a", folder, **changes),)), models)
        return [each.detail for each in found if not each.ok]

    assert wrong(known) == wrong(known, input={"times": 2}) == wrong({}, model="none") == []
    assert wrong(known, model="none") == ["there is no model 'none'; known models: echo"]
    assert wrong(broken) == ["its model echo cannot be used: its weights are gone"]
    [detail] = wrong(known, input={"times": "often"})
    assert "/input/times" in detail
    [detail] = wrong(known, field="scene")
    assert detail.startswith("the model echo has no field 'scene'; its files are: text. Remove `field`")


def test_prefixes_that_are_no_folders_are_doubted(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "index.txt").touch()
    rules = (rule("a", tmp_path.as_uri(), prefix="in", output_prefix="out"), rule("b", tmp_path.as_uri()))
    found = [each for each in inspect_drops(Settings(drops=rules), {}) if each.doubtful]
    assert [(each.name, each.ok, each.remedy) for each in found] == [
        ("drop rule a", True, "write 'in/' for a folder"),
        ("drop rule a", True, "write 'out/' for a folder"),
    ]


def test_doctor_asks_the_workers_for_the_models_of_rules(valkey: ValkeyProcess, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with open_bench(valkey.url, tmp_path / "data", drops=(rule("a", tmp_path.as_uri(), model="none"),)) as bench:
        found = examine(bench.settings, "http://127.0.0.1:1")
        assert any("known models: echo" in each.detail for each in found if not each.ok)


def test_the_command_says_what_is_wrong_with_a_rule(
    valkey: ValkeyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "scenes"
    long, covered = folder / "long", folder / "covered"
    for inbox in ("long", "covered", "model"):
        (folder / inbox).mkdir(parents=True)
    rules = tuple(
        rule(name, folder.as_uri(), prefix=f"{name}/", output_prefix=f"out/{name}/", model=model)
        for name, model in {"gone": "echo", "model": "none", "long": "echo", "covered": "echo"}.items()
    )
    (long / f"{'x' * 245}.txt").write_text("hi")
    (covered / "a.txt").write_text("hi")
    (folder / "out" / "covered").mkdir(parents=True)
    (folder / "out" / "covered" / "a.txt").write_text("in the way")
    with open_bench(valkey.url, tmp_path / "data", drops=rules) as bench:
        for drop in (drops := open_drops(bench.settings, bench.store, bench.objects)):
            drop.step(), drop.step()
        bench.slots.work("default")
        with capture_logs() as logs:
            for drop in drops * 3:
                drop.step()
        postponed = sorted(each["key"] for each in logs if each["event"] == "drop.postponed")
        assert postponed == ["covered/a.txt"]  # told once; the long name was, before
        monkeypatch.setenv("PENSTOCK_REDIS_URL", valkey.url)
        monkeypatch.setenv("PENSTOCK_DROPS", json.dumps([json.loads(each.model_dump_json()) for each in rules]))
        done = CliRunner().invoke(app, ["drops", "--json"])
        assert done.exit_code == 1
        told = {each["name"]: each["problem"] for each in json.loads(done.stdout)["rules"]}
        assert told["gone"] == f"there is no folder {folder}/gone"
        assert told["model"] == "there is no model 'none'; known models: echo"
        assert "5 bytes too long for its result files" in told["long"]
        assert "lies under, another object's key" in told["covered"]
        details = {each.detail for each in examine(bench.settings, "http://127.0.0.1:1") if not each.ok}
        assert {told["gone"], told["model"]} <= details  # once, by what looked for it itself
        assert {f"its last listing: {told[name]}" for name in ("long", "covered")} <= details
        assert f"its last listing: {told['gone']}" not in details

        table = CliRunner().invoke(app, ["drops"], env={"COLUMNS": "400"})
        assert (table.exit_code, told["gone"] in table.stdout) == (1, True)

        (folder / "out" / "covered" / "a.txt").unlink()
        covering = drops[3]
        covering.step()
        assert (folder / "out" / "covered" / "a.txt.done.json").exists()
        assert covering.errors_by_key.summary() is None


def test_the_command_tells_of_the_last_listing(
    valkey: ValkeyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = (rule("inbox", (tmp_path / "scenes").as_uri()), rule("away", "s3://b"), rule("new", "s3://c"))
    away = S3(endpoint_url="http://127.0.0.1:1", access_key_id="k", secret_access_key="s")
    with open_bench(valkey.url, tmp_path / "data", drops=rules, s3=away) as bench:
        bucket = open_store(rules[0].bucket, bench.settings)
        for name in ("in/a.txt", "in/b.txt", "out/c.txt.error.json"):
            bucket.put_bytes(name, b"{}", content_type="text/plain")
        drops = open_drops(bench.settings, bench.store, bench.objects)
        (tmp_path / "scenes" / "in" / "link.txt").symlink_to("a.txt")
        drops[0].step()
        with pytest.raises(Exception, match="does not answer"):
            drops[1].step()
        written = json.dumps([json.loads(each.model_dump_json()) for each in rules])
        monkeypatch.setenv("PENSTOCK_REDIS_URL", valkey.url)
        monkeypatch.setenv("PENSTOCK_DROPS", written)
        done = CliRunner().invoke(app, ["drops", "--json"])
        assert done.exit_code == 1
        told = json.loads(done.stdout)
        last = {each["name"]: each["last_pass"] for each in told["rules"]}
        assert (last["inbox"]["found"], last["inbox"]["waiting"], last["inbox"]["failed"]) == (2, 2, 1)
        assert "does not answer" in last["away"]["problem"]
        assert last["new"] is None
        problem = {each["name"]: each["problem"] for each in told["rules"]}
        assert (problem["inbox"], problem["new"]) == (None, "no keeper lists it: is one running?")
        assert last["inbox"]["passed_over"] == ["'in/link.txt'"]
        shown = CliRunner().invoke(app, ["drops"], env={"COLUMNS": "200"}).stdout
        assert problem["new"] in shown
        assert "inbox skips names that cannot be objects (copy or rename them): 'in/link.txt'" in shown


def test_a_queue_that_cannot_be_heard_is_its_rules_problem_until_it_can(
    valkey: ValkeyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulator: Emulator
) -> None:
    url, _ = emulator.queue()
    gone = f"{url}-gone"
    emulator.send(url, "{}")
    bucket = f"s3://{emulator.bucket()}"
    rules = (
        rule("inbox", bucket, events=url),
        rule("deaf", bucket, prefix="deaf/", output_prefix="out-deaf/", events=gone),
    )
    monkeypatch.setenv("PENSTOCK_REDIS_URL", valkey.url)
    monkeypatch.setenv("PENSTOCK_DROPS", json.dumps([json.loads(each.model_dump_json()) for each in rules]))

    def problems() -> dict[str, str | None]:
        done = CliRunner().invoke(app, ["drops", "--json"])
        told = {each["name"]: each["problem"] for each in json.loads(done.stdout)["rules"]}
        assert done.exit_code == int(any(told.values()))
        return told

    with open_bench(valkey.url, tmp_path / "data", drops=rules, s3=emulator.s3) as bench:
        drops = open_drops(bench.settings, bench.store, bench.objects)
        watch = DropWatch(drops, bench.store)
        for drop in drops:
            drop.step()
        QueueReader(open_queue(url, bench.settings), watch).step()
        refused = QueueReader(open_queue(gone, bench.settings), watch)
        with pytest.raises(EventQueueUnavailable):
            refused.step()
        told = problems()
        assert told["inbox"] is None
        assert str(told["deaf"]).startswith("its events cannot be read: the queue answers ")
        assert str(told["deaf"]).endswith(f", called in region {emulator.s3.region}")

        emulator.client("sqs").create_queue(QueueName=gone.rpartition("/")[2])
        emulator.send(gone, "{}")
        refused.step()
        assert problems() == {"inbox": None, "deaf": None}
        watch.close()


def test_a_file_that_left_during_its_job_is_told_of_until_it_is_back(
    valkey: ValkeyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, outbox = tmp_path / "scenes" / "in", tmp_path / "scenes" / "out"
    rules = (rule("inbox", inbox.parent.as_uri()),)
    inbox.mkdir(parents=True)
    monkeypatch.setenv("PENSTOCK_REDIS_URL", valkey.url)
    monkeypatch.setenv("PENSTOCK_DROPS", json.dumps([json.loads(rules[0].model_dump_json())]))
    with open_bench(valkey.url, tmp_path / "data", drops=rules) as bench:
        [drop] = open_drops(bench.settings, bench.store, bench.objects)
        watch = DropWatch([drop], bench.store)
        for name in ("gone", "published"):
            (inbox / f"{name}.txt").write_text("hi")
        drop.step(), drop.step()
        bench.slots.work("default")
        (inbox / "gone.txt").unlink()
        drop.step()
        (inbox / "published.txt").unlink()  # a person may, who saw the marker, before the keeper hears of the end
        with capture_logs() as logs:
            watch.check_waiting()
        watch.close()
        assert [each["key"] for each in logs if each["event"] == "drop.disappeared"] == ["in/gone.txt"]
        assert sorted(path.name for path in outbox.iterdir()) == ["published.txt", "published.txt.done.json"]
        drop.step()
        told = json.loads(CliRunner().invoke(app, ["drops", "--json"]).stdout)
        assert told["rules"][0]["last_pass"]["gone"] == ["in/gone.txt"]
        shown = CliRunner().invoke(app, ["drops"], env={"COLUMNS": "200"}).stdout
        assert "inbox has no results for objects that disappeared too early: in/gone.txt" in shown
        (inbox / "gone.txt").write_text("back")
        drop.step()
        assert "no results" not in CliRunner().invoke(app, ["drops"], env={"COLUMNS": "200"}).stdout


def test_a_rule_whose_keeper_died_long_ago_has_a_problem() -> None:
    assert problem_of(_pass(age_s=9000), every_s=3000) is None
    assert problem_of(_pass(age_s=9999), every_s=3000) == "no keeper lists it: is one running?"
    # One that takes an hour to list is not given up meanwhile.
    assert problem_of(_pass(age_s=9999, took_s=3600), every_s=3) is None
    assert problem_of(_pass(age_s=1, problem="there is no folder /a"), every_s=3) == "there is no folder /a"


def _pass(age_s: float, took_s: float = 1, problem: str | None = None) -> Pass:
    return Pass(1, 0, 0, took_s, problem=problem, age_s=age_s)


def test_without_rules_it_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["drops"])
    assert (done.exit_code, "[[drops]]" in done.stdout) == (0, True)
    told = CliRunner().invoke(app, ["drops", "--json"])
    assert (told.exit_code, json.loads(told.stdout)) == (0, {"rules": [], "events_waiting": 0, "elsewhere": []})


def test_without_rules_it_names_those_that_the_service_lists(
    valkey: ValkeyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = (rule("inbox", tmp_path.as_uri()),)
    with open_bench(valkey.url, tmp_path / "data", drops=rules) as bench:
        [drop] = open_drops(bench.settings, bench.store, bench.objects)
        drop.step()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PENSTOCK_REDIS_URL", valkey.url)
        done = CliRunner().invoke(app, ["drops"], env={"COLUMNS": "200"})
        assert (done.exit_code, "the service has rules of other settings: inbox." in done.stdout) == (0, True)
        told = CliRunner().invoke(app, ["drops", "--json"])
        assert json.loads(told.stdout) == {"rules": [], "events_waiting": 0, "elsewhere": ["inbox"]}
        monkeypatch.setenv("PENSTOCK_DROPS", json.dumps([json.loads(rule("new", "s3://c").model_dump_json())]))
        told = CliRunner().invoke(app, ["drops", "--json"])
        found = json.loads(told.stdout)
        assert ([each["name"] for each in found["rules"]], found["elsewhere"]) == (["new"], ["inbox"])
