"""Functions behind the queue: one that aborts hurts nobody else, and a file becomes a service by one command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from PIL import Image

from penstock.client import Client
from tests.support.polling import wait_for
from tests.support.stack import Stack, free_port, running

pytestmark = pytest.mark.slow
FILE = Path(__file__).parents[1] / "support" / "functions" / "many.py"
THUMBS = '''
import penstock
from penstock import Image

@penstock.model
def thumbnail(image: Image, size: int = 128) -> Image:
    """Shrink an image."""
    return image.resize((size, size))

@penstock.model
def words(text: str) -> dict[str, int]:
    return {"words": len(text.split())}
'''


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    config = f'models = ["{FILE}"]'
    with running(tmp_path_factory.mktemp("functions") / "data", config=config, model="plain") as stack:
        yield stack


def model_processes(stack: Stack) -> list[psutil.Process]:
    children = psutil.Process(stack.pid("worker")).children(recursive=True)
    return [child for child in children if "penstock.functions.child" in child.cmdline()]


def test_a_model_whose_load_aborts_fails_its_own_jobs_alone(stack: Stack) -> None:
    worker = stack.pid("worker")
    with stack.client() as client:
        bad = [client.submit("broken", {"text": "x"}) for _ in range(2)]
        good = [client.submit("plain", {"a": number}) for number in range(6)]
        ends = [client.wait(job.id) for job in good]
        failed = [client.wait(job.id) for job in bad]
    assert [job.succeeded for job in ends] == [True] * 6
    assert {job.raw["attempt"] for job in ends} == {1}
    assert [job.error and job.error.code for job in failed] == ["model_unavailable"] * 2
    assert "SIGABRT" in str(failed[0].error and failed[0].error.detail)
    assert stack.pid("worker") == worker


def test_a_model_process_that_is_killed_fails_its_call_and_serves_the_next(stack: Stack) -> None:
    with stack.client() as client:
        assert client.wait(client.submit("crash", {"how": "not"}).id).succeeded
        hanging = client.submit("crash", {"how": "hang"})
        wait_for(lambda: client.job(hanging.id).raw["phase"] == "inferring", "the call does not begin")
        for process in model_processes(stack):
            process.send_signal(signal.SIGKILL)
        end = client.wait(hanging.id)
        assert end.error is not None
        assert "SIGKILL" in end.error.detail
        assert client.wait(client.submit("crash", {"how": "not"}).id).raw["output"]["text"] == "alive"


def test_lines_of_a_call_of_one_job_are_its_log(stack: Stack) -> None:
    with stack.client() as client:
        job = client.wait(client.submit("divide", {"a": 4, "b": 2}).id)
        assert job.raw["output"]["json"] == {"answer": 2.0}
        assert "dividing 4.0 2.0" in stack.cli("logs", job.id).stdout
        wrong = client.wait(client.submit("divide", {"a": 4, "b": 0}).id)
        assert "many.py:" in stack.cli("logs", wrong.id).stdout


def test_a_canceled_job_ends_and_its_model_serves_the_next(stack: Stack) -> None:
    with stack.client() as client:
        hanging = client.submit("crash", {"how": "hang"})
        wait_for(lambda: client.job(hanging.id).raw["phase"] == "inferring", "the call does not begin")
        client.cancel(hanging.id)
        assert client.wait(hanging.id).raw["status"] == "canceled"
        assert client.wait(client.submit("crash", {"how": "not"}).id).succeeded


def test_a_file_becomes_a_service_by_one_command(tmp_path: Path) -> None:
    (tmp_path / "thumbs.py").write_text(THUMBS)
    Image.new("RGB", (40, 30), "red").save(tmp_path / "photo.png")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    port, log = free_port(), tmp_path / "serve.log"
    command = [sys.executable, "-m", "penstock.cli", "serve", "thumbs.py", "--port", str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: "curl" in log.read_text() or process.poll() is not None, "no lines to paste", timeout_s=120)
        said = log.read_text()
        assert re.search(r"penstock submit thumbnail FILE --wait --url http://127\.0\.0\.1:\d+", said)
        with Client(f"http://127.0.0.1:{port}", patience_s=60) as client:
            job = client.wait(client.submit("words", {"text": "three short words"}).id)
            assert job.raw["output"]["json"] == {"words": 3}
            small = client.run("thumbnail", image=str(tmp_path / "photo.png"), size=20)
            with Image.open(small["image.png"]) as image:
                assert image.size == (20, 20)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_a_file_that_cannot_be_served_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("import penstock\n\n@penstock.model\ndef f(a: set[int]) -> int:\n    return 1\n")
    command = [sys.executable, "-m", "penstock.cli", "serve", "wrong.py", "--port", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "wrong.py:3: f: `a: set[int]` cannot be served: write a list" in done.stdout + done.stderr
