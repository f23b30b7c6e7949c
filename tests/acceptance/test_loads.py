"""A model whose load ends its process hurts nobody else: real workers, with a runner that aborts."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client import Client, Job
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


def test_a_warm_up_of_a_bad_model_interrupts_no_job(tmp_path: Path) -> None:
    records = record("good", "well", tmp_path), *(record(how, how, tmp_path) for how in ("abort", "segfault", "exit"))
    config = config_of(tmp_path / "catalogue", *records, more="slots = 1\n")
    site = install(tmp_path / "site")
    with running(tmp_path / "up", config=config, model="good", **site) as stack, stack.client() as client:
        worker = stack.pid("worker")
        job = submit(client, "good", "wait")
        for name, how in (
            ("abort", "was ended by SIGABRT"),
            ("segfault", "was ended by SIGSEGV"),
            ("exit", "ended with"),
        ):
            wait_for(lambda name=name, how=how: how in str(client.model(name).raw["note"]), f"{name} is not told")
        (tmp_path / "good.gate").touch()
        ended = client.wait(job)
        assert (ended.succeeded, ended.attempt) == (True, 1)
        assert stack.pid("worker") == worker
