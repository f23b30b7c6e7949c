"""A model whose load ends its process hurts nobody else: real workers, with a runner that aborts."""

from __future__ import annotations

from pathlib import Path

import httpx2
import psutil
import pytest

from penstock.client import Client, Job, PenstockAPIError
from penstock.storage.redis import loads
from penstock.storage.redis.records import JobStore
from penstock.up.valkey import recorded_url
from tests.support.deadly_runner import install, record
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

pytestmark = pytest.mark.slow


def config_of(folder: Path, *records: str, more: str = "") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    catalogue = folder / "models.toml"
    catalogue.write_text("".join(records))
    return f'models = ["{catalogue}"]\npoll_s = 1\n{more}'


def submit(client: Client, model: str, text: str) -> str:
    return client.submit(model, {"text": text}).id


def said(stack: Stack, words: str) -> bool:
    return words in stack.log.read_text()


def attempts(jobs: list[Job]) -> set[int]:
    return {job.attempt for job in jobs}


def test_two_bad_jobs_do_not_keep_six_good_ones_from_a_pool_that_scales_to_zero(tmp_path: Path) -> None:
    records = record("bad", "abort", tmp_path), record("good", "well", tmp_path)
    config = config_of(tmp_path / "catalogue", *records, more="idle_exit_s = 2\nslots = 2\n")
    site = install(tmp_path / "site")
    options = ("--workers", "0..3")
    with (
        running(tmp_path / "up", config=config, options=options, model="good", **site) as stack,
        stack.client() as client,
    ):
        wait_for(lambda: client.queue().workers == 0, "the worker that published the models does not leave")
        bad = [submit(client, "bad", "x") for _ in range(2)]
        good = [submit(client, "good", f"text {number}") for number in range(6)]
        ended = [client.wait(job) for job in good]
        assert [job.succeeded for job in ended] == [True] * 6
        assert attempts(ended) == {1}
        failed = [client.wait(job) for job in bad]
        assert {job.error.code for job in failed if job.error} == {"model_load_failed"}
        assert attempts(failed) == {2}
        detail = failed[0].error.detail if failed[0].error else ""
        assert "its load was ended by SIGABRT" in detail
        assert "terminate called: no such symbol" in detail
        assert not said(stack, "was ended by")  # no worker died


def test_warm_ups_of_bad_models_interrupt_no_job_and_are_told_and_retried(tmp_path: Path) -> None:
    ends = {"abort": "was ended by SIGABRT", "segfault": "was ended by SIGSEGV", "exit": "ended with the exit status 0"}
    bad = [record(how, how, tmp_path, max_attempts=100) for how in ends]
    hanging = record("hang", "hang", tmp_path, warm_up=False)  # it would keep the warm-up from the others
    config = config_of(tmp_path / "catalogue", record("good", "well", tmp_path), *bad, hanging, more="slots = 2\n")
    site = install(tmp_path / "site")
    with running(tmp_path / "up", config=config, model="good", **site) as stack, stack.client() as client:
        worker = stack.pid("worker")
        job = submit(client, "good", "wait")
        for name, how in ends.items():
            wait_for(lambda name=name, how=how: how in note_of(client, name), f"the end of {name} is not told")

        [failure] = client.model("abort").raw["load_failures"]
        assert (failure["reason"], failure["lines"][-1]) == (ends["abort"], "terminate called: no such symbol")
        told = stack.cli("doctor", "--data", str(stack.data), check=False).stdout
        assert "SIGABRT" in told
        assert "penstock models retry abort" in told
        assert 'penstock_model_load_failures{model="abort"} 1.0' in httpx2.get(f"{stack.url}/metrics").text

        (tmp_path / "abort.healed").touch()
        done = stack.cli("models", "retry", "abort", "--data", str(stack.data))
        assert "abort" in done.stdout
        wait_for(lambda: client.model("abort").ready, "the model is not tried again")
        assert client.wait(submit(client, "abort", "x")).succeeded
        wrong = stack.cli("models", "retry", "abrt", "--data", str(stack.data), check=False)
        assert wrong.returncode != 0
        assert "there is no model 'abrt' (did you mean 'abort'?)" in wrong.stderr

        waiting = submit(client, "segfault", "x")
        fail_elsewhere(stack, "segfault")
        ended = client.wait(waiting)
        assert ended.error is not None
        assert ended.error.code == "model_unavailable"
        assert "SIGSEGV" in ended.error.detail
        assert "on 3 machines" in (client.model("segfault").problem or "")
        with pytest.raises(PenstockAPIError, match="cannot be used at the moment: its load was ended by SIGSEGV"):
            submit(client, "segfault", "x")

        submit(client, "hang", "x")
        (tmp_path / "good.gate").touch()
        ended = client.wait(job)
        assert (ended.succeeded, ended.attempt) == (True, 1)
        assert stack.pid("worker") == worker
        wait_for((tmp_path / "hang.tries").exists, "the last load does not begin")
    pids = [int(line) for line in (tmp_path / "hang.tries").read_text().splitlines()]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def note_of(client: Client, name: str) -> str:
    return str(client.model(name).raw["note"])


def fail_elsewhere(stack: Stack, model: str) -> None:
    """Store that a model's load failed on two more machines."""
    store = JobStore.open(recorded_url(stack.data / "valkey") or "")
    [own] = [found for found in store.run(loads.load_failures()) if found.model == model]
    for machine in ("far", "away"):
        store.run(loads.load_failed(model, machine, record=own.record, how=own.how, lines=own.lines))
    store.close()
