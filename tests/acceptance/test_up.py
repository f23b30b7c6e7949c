"""`penstock up` as an operator meets it: killed children, a killed supervisor, a second one, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from penstock.client import Client, ClientError
from penstock.jobs import Status
from tests.support.polling import wait_for

pytestmark = pytest.mark.slow


@dataclass
class Up:
    """A `penstock up` in a terminal of its own, so to say."""

    data: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def said(self) -> str:
        return (self.data / "up.log").read_text()

    @property
    def client(self) -> Client:
        return Client(f"http://127.0.0.1:{self.port}", patience_s=60)

    def pids(self) -> dict[str, int]:
        rows = json.loads((self.data / "children.json").read_text())
        return {name: row["pid"] for name, row in rows.items()}

    def children(self) -> dict[str, psutil.Process]:
        return {name: psutil.Process(pid) for name, pid in self.pids().items()}

    def valkey(self) -> psutil.Process:
        (server,) = [p for p in psutil.process_iter() if _works_in(p, self.data / "valkey")]
        return server

    def wait_until_ready(self) -> None:
        with Client(f"http://127.0.0.1:{self.port}", patience_s=0) as client:
            wait_for(lambda: self._is_ready(client), f"not ready: {self.said}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def _is_ready(self, client: Client) -> bool:
        assert self.process.poll() is None, self.said
        try:
            served = [model for model in client.models() if model.problem is None]
            return bool(served) and client.queue().workers > 0
        except ClientError:
            return False


class Operator:
    """Starts `penstock up` on one data folder, again and again."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.runs: list[Up] = []
        data.mkdir(parents=True)
        (data / "penstock.toml").touch()

    def run(self, *options: str, port: int | None = None) -> Up:
        port = _free_port() if port is None else port
        command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(self.data), "--port", str(port), *options]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        env["PENSTOCK_CONFIG"] = str(self.data / "penstock.toml")
        with (self.data / "up.log").open("wb") as log:
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.runs.append(Up(self.data, port, process))
        return self.runs[-1]

    def leave(self) -> None:
        """End whatever still runs."""
        for run in self.runs:
            if run.process.poll() is None:
                run.end()
        for process in psutil.process_iter():
            if _works_in(process, self.data / "valkey"):
                process.kill()


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    person = Operator(tmp_path / "data")
    yield person
    person.leave()


@pytest.mark.breadth
def test_children_that_die_are_replaced_and_ctrl_c_ends_everything(operator: Operator) -> None:
    run = operator.run()
    run.wait_until_ready()
    before, valkey = run.children(), run.valkey()
    assert set(before) == {"api", "keeper", "worker"}
    assert all(os.getpgid(p.pid) != os.getpgid(run.process.pid) for p in [*before.values(), valkey])

    for process in before.values():
        process.kill()
    wait_for(lambda: not set(run.pids().values()) & {p.pid for p in before.values()}, run.said)
    run.wait_until_ready()
    assert "worker  was ended by SIGKILL" in run.said
    assert "worker  runs again" in run.said

    after = run.children()
    assert run.end(signal.SIGINT) == 0
    assert all(map(_gone, [*after.values(), valkey]))
    assert not (run.data / "children.json").exists()


@pytest.mark.breadth
def test_valkey_that_dies_is_replaced_with_its_data(operator: Operator, tmp_path: Path) -> None:
    run = operator.run()
    run.wait_until_ready()
    valkey = run.valkey()
    with run.client as client:
        job = _run_a_bad_job(client, tmp_path)

        valkey.kill()
        psutil.wait_procs([valkey], 10)

        wait_for(lambda: "valkey  runs again" in run.said, run.said)
        assert client.job(job).status is Status.FAILED


@pytest.mark.breadth
def test_jobs_are_there_again_after_an_end_and_a_start(operator: Operator, tmp_path: Path) -> None:
    run = operator.run()
    run.wait_until_ready()
    with run.client as client:
        job = _run_a_bad_job(client, tmp_path)
    assert run.end() == 0

    run = operator.run()
    run.wait_until_ready()
    with run.client as client:
        assert client.job(job).status is Status.FAILED


@pytest.mark.breadth
def test_a_killed_supervisor_takes_its_children_along_and_the_next_one_finds_valkey(
    operator: Operator, tmp_path: Path
) -> None:
    run = operator.run()
    run.wait_until_ready()
    children, valkey = run.children(), run.valkey()
    with run.client as client:
        job = _run_a_bad_job(client, tmp_path)

    run.process.kill()
    run.process.wait()
    if sys.platform == "linux":  # elsewhere the next supervisor ends them
        wait_for(lambda: all(map(_gone, children.values())), "the children live on")
    assert valkey.is_running()

    run = operator.run()
    run.wait_until_ready()
    assert "was still running" in run.said
    assert run.valkey().pid == valkey.pid
    with run.client as client:
        assert client.job(job).status is Status.FAILED
    assert run.end() == 0
    assert _gone(valkey)


@pytest.mark.breadth
def test_children_that_outlived_their_supervisor_are_ended_first(operator: Operator) -> None:
    left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    row = {"pid": left.pid, "started_s": psutil.Process(left.pid).create_time()}
    (operator.data / "children.json").write_text(json.dumps({"worker": row}))

    run = operator.run()
    assert left.wait(30) == -signal.SIGTERM
    run.wait_until_ready()
    assert "worker  ended: an earlier supervisor had left it running" in run.said


@pytest.mark.breadth
def test_a_second_one_on_the_same_data_is_refused(operator: Operator) -> None:
    first = operator.run()
    first.wait_until_ready()

    second = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "up", "--data", str(operator.data), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert second.returncode == 2
    assert f"another `penstock up` (process {first.process.pid})" in second.stderr
    assert "Traceback" not in second.stderr
    first.wait_until_ready()


@pytest.mark.breadth
def test_a_wrong_record_is_said_at_the_start_and_by_its_own_model_while_the_others_serve(operator: Operator) -> None:
    models = operator.data / "models.toml"
    models.write_text("[models.wrong]\ntitle = 3\nrunner = 'fake'\nprocessor = 'x'\nsource = '.'\nrevision = '1'\n")
    (operator.data / "penstock.toml").write_text(f'models = ["{models}"]\n')
    run = operator.run()
    run.wait_until_ready()
    problem = f"{models}: model 'wrong': title: must be a valid string"
    assert f"models  wrong cannot be used: {problem}" in " ".join(run.said.split("\n"))
    with run.client as client:
        found = client.model("wrong")
        assert (found.problem, found.ready) == (problem, False)
        with pytest.raises(ClientError, match="wrong cannot be used at the moment: "):
            client.submit("wrong", {})
        assert client.model("csmask").problem is None


def test_a_port_in_use_is_said_before_anything_is_started(operator: Operator) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(closing(socket.socket()))
        other.bind(("127.0.0.1", 0))
        other.listen()
        run = operator.run(port=other.getsockname()[1])

        assert run.process.wait(60) == 2
    assert f"port {run.port} on 127.0.0.1 cannot be used" in run.said
    assert not (run.data / "valkey").exists()


@pytest.mark.breadth
def test_an_impatient_operator_ends_it_at_once(operator: Operator) -> None:
    run = operator.run()
    run.wait_until_ready()
    worker, valkey = run.children()["worker"], run.valkey()
    worker.suspend()  # it will not end by itself

    run.process.send_signal(signal.SIGINT)
    wait_for(lambda: "ending" in run.said, run.said)
    assert run.end(signal.SIGINT) == 0

    assert "worker  killed" in run.said
    assert _gone(worker)
    assert _gone(valkey)


def _run_a_bad_job(client: Client, folder: Path) -> str:
    """Submit a job that fails as soon as a worker looks at it, and return its id when it did."""
    (folder / "text.tif").write_text("no scene")
    job = client.wait(client.submit("csmask", files={"scene": folder / "text.tif"}).id)
    assert (job.status, job.error.code if job.error else "") == (Status.FAILED, "media_unreadable")
    return job.id


def _gone(process: psutil.Process) -> bool:
    """Return True where a process ended; one that nobody collects counts too."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return "valkey-server" in process.name() and process.cwd() == str(folder)
    except psutil.Error:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
