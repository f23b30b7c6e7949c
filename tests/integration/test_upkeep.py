"""`penstock doctor` and `penstock recover` beside a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.formats import RUNS
from penstock.storage.redis import catalogues, queues, upkeep
from penstock.storage.redis.records import JobStore
from penstock.workers.keeper.keeper import report_newer
from tests.support.api_server import listening
from tests.support.command_line import Done, Shell
from tests.support.service import ECHO, Service, serving
from tests.support.valkey import ValkeyProcess, start_valkey

NOWHERE = "http://127.0.0.1:1"


def found(done: Done) -> dict[str, dict[str, Any]]:
    """Return the findings of `doctor --json` by name."""
    return {finding["name"]: finding for finding in done.document()}


async def keep(service: Service) -> None:
    """Do what a keeper and a worker do when they start."""
    await service.jobs.run(upkeep.lead("a-keeper", 60))
    await service.jobs.run(upkeep.recovering("a-mark", begin=True))
    await service.jobs.run(upkeep.recovering("a-mark", begin=False))
    await service.jobs.run(queues.seen("default", "w", 1, alive_s=20))


async def test_a_healthy_service_is_told_with_its_keeper_its_hints_and_its_sandbox(
    service: Service, valkey: ValkeyProcess
) -> None:
    await keep(service)
    async with listening(service) as server:
        doctor = Shell({"PENSTOCK_URL": server.url, "PENSTOCK_REDIS_URL": valkey.url})
        findings = found(await doctor("doctor", "--data", str(service.settings.data), "--json"))

    broken = {name for name, finding in findings.items() if not finding["ok"]}
    assert broken == {"model broken"}
    assert findings["keeper"]["detail"] == "a-keeper is active"
    assert findings["visibility timeout"]["detail"].endswith("(csmask)")
    assert "processors" in findings["io processes"]["detail"]


@pytest.mark.breadth
async def test_jobs_that_wait_for_a_newer_release_are_told(service: Service, valkey: ValkeyProcess) -> None:
    job = await service.submit()
    shell = Shell({"PENSTOCK_REDIS_URL": valkey.url})
    command = ("doctor", "--data", str(service.settings.data), "--url", NOWHERE, "--json")
    assert found(await shell(*command))["formats"]["ok"]
    await service.jobs.client.hset(f"penstock:tenant:default:job:{job['id']}", "version", RUNS + 1)  # type: ignore[misc]
    finding = found(await shell(*command))["formats"]
    assert (finding["ok"], f"1 waiting jobs need a newer one (format {RUNS + 1})" in finding["detail"]) == (False, True)
    store = JobStore.open(valkey.url)
    with capture_logs() as logged:
        report_newer(store)
    store.close()
    assert [(entry["event"], entry["jobs"], entry["version"]) for entry in logged] == [("jobs.newer", 1, RUNS + 1)]


async def test_what_is_named_is_looked_at_where_there_is_no_data_folder_and_no_keeper(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    done = await Shell({"PENSTOCK_REDIS_URL": valkey.url}, tmp_path)("doctor", "--url", NOWHERE, "--json")

    findings = found(done)
    assert (done.code, findings["redis appendfsync"]["ok"], findings["api"]["ok"]) == (1, True, False)
    assert findings["object store"]["detail"] == "there is no data folder penstock-data"
    assert (findings["keeper"]["ok"], findings["keeper"]["detail"]) == (False, "none is active")
    assert "penstock keeper" in findings["keeper"]["remedy"]
    assert list(tmp_path.iterdir()) == []


async def test_a_service_elsewhere_is_asked_over_its_api_alone(service: Service, tmp_path: Path) -> None:
    await service.jobs.run(queues.seen("default", "w", 1, alive_s=20))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    async with listening(service) as server:
        done = await Shell({"PENSTOCK_URL": server.url}, folder)("doctor", "--json")

    findings = found(done)
    assert {name for name, finding in findings.items() if not finding["ok"]} == {"model broken"}
    assert findings["stores"]["doubtful"]
    assert findings["worker"]["detail"].startswith("1 at queue default")
    assert {"api", "access", "model echo"} < set(findings)
    assert not {"redis", "object store", "visibility timeout"} & set(findings)
    assert list(folder.iterdir()) == []


@pytest.mark.breadth
async def test_the_parts_of_two_services_are_told_apart(service: Service, tmp_path: Path) -> None:
    await keep(service)
    other = start_valkey(tmp_path / "other")
    try:
        async with listening(service) as server:
            named = {"PENSTOCK_URL": server.url, "PENSTOCK_REDIS_URL": other.url}
            findings = found(await Shell(named)("doctor", "--data", str(service.settings.data), "--json"))
    finally:
        other.stop()

    assert (findings["api"]["ok"], findings["one service"]["ok"]) == (True, False)
    assert "PENSTOCK_URL" in findings["one service"]["remedy"]


@pytest.mark.breadth
async def test_a_model_that_may_run_longer_than_a_hint_is_held_is_told(service: Service, tmp_path: Path) -> None:
    patient = ECHO.model_copy(update={"execution_timeout_s": 10**6})
    await service.jobs.run(catalogues.publish([patient], worker="w", queues=["default"], alive_s=600))
    async with listening(service) as server:
        named = {"PENSTOCK_URL": server.url, "PENSTOCK_REDIS_URL": str(service.settings.redis_url)}
        findings = found(await Shell(named, tmp_path)("doctor", "--json"))

    assert findings["visibility timeout"]["ok"] is False
    assert "1e+06 s (echo)" in findings["visibility timeout"]["detail"]


@pytest.mark.breadth
async def test_a_wrong_record_is_told_and_its_timeout_is_not_compared(service: Service, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[models.echo]\nexecution_timeout_s = 1_000_000\n")
    patient = ECHO.model_copy(update={"execution_timeout_s": 10**6})
    await service.jobs.run(catalogues.publish([patient], worker="w", queues=["default"], alive_s=600))
    named = {"PENSTOCK_REDIS_URL": str(service.settings.redis_url), "PENSTOCK_MODELS": '["models.toml"]'}
    async with listening(service) as server:
        shell = Shell({"PENSTOCK_URL": server.url, **named}, tmp_path)
        findings = found(await shell("doctor", "--json"))
        (tmp_path / "models.toml").write_text("[models.echo")
        unread = found(await shell("doctor", "--json"))

    assert findings["catalogue"]["ok"] is False
    assert findings["catalogue"]["detail"].startswith("models.toml: model 'echo': title: is required; runner: is ")
    assert findings["visibility timeout"]["ok"] is True
    assert (unread["catalogue"]["ok"], unread["catalogue"]["detail"][:25]) == (False, "models.toml is not TOML: ")
    assert "visibility timeout" not in unread


@pytest.mark.breadth(but=("words1",))
@pytest.mark.parametrize("words", [["--data", "penstock-data"], []])
async def test_recover_finds_the_valkey_of_the_data_folder(
    valkey: ValkeyProcess, tmp_path: Path, words: list[str]
) -> None:
    data = tmp_path / "penstock-data"
    async with serving(valkey.url, data) as service:
        job = await service.submit()
        await service.jobs.client.flushall()
        (data / "valkey").mkdir()
        (data / "valkey" / "valkey.json").write_text(json.dumps({"port": valkey.port}))

        done = await Shell({}, tmp_path)("recover", *words)

        assert (done.code, done.out) == (0, "1 jobs have a manifest; all of them are in Redis\n")
        assert await service.jobs.client.exists(f"penstock:tenant:default:job:{job['id']}")


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("record", "sentence"), [(None, "`penstock up` never ran on"), ({"port": 1}, "start it with `penstock up`")]
)
async def test_recover_says_which_redis_is_missing(tmp_path: Path, record: Any, sentence: str) -> None:
    (tmp_path / "penstock-data" / "valkey").mkdir(parents=True)
    if record is not None:
        (tmp_path / "penstock-data" / "valkey" / "valkey.json").write_text(json.dumps(record))

    done = await Shell({}, tmp_path)("recover")

    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
