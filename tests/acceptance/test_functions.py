"""Functions behind the queue: one that aborts hurts nobody else, and a file becomes a service by one command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from penstock.client.answers import PenstockAPIError
from penstock.workers.engine.device_class import has_gpu
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

pytestmark = pytest.mark.slow
FILE = Path(__file__).parents[1] / "support" / "functions" / "many.py"


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
        [failure] = client.model("broken").raw["load_failures"]
        assert failure["reason"] == "was ended by SIGABRT"
        for job in bad:
            client.cancel(job.id)
    assert [job.succeeded for job in ends] == [True] * 6
    assert {job.raw["attempt"] for job in ends} == {1}
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


def test_a_function_has_its_own_help_and_takes_texts_that_begin_with_dashes(stack: Stack) -> None:
    for command, name in (("run", f"{FILE}:thumbnail"), ("submit", "thumbnail")):
        said = stack.cli(command, name, "--help").stdout
        assert said.startswith(f"Usage: penstock {command} {name} [OPTIONS] IMAGE\n\nShrink an image\n"), said
        assert "--size INTEGER  at least 16; at most 1024; default: 128" in said
    assert "Exit codes" in stack.cli("run", "--help").stdout
    assert stack.cli("run", f"{FILE}:counted", "--", "--text", "-1").stdout == "--text -11\n"
    said = stack.cli("submit", "counted", "--wait", "--", "--text", "-1").stdout
    assert "--text -11" in said


def test_choices_keep_their_type_in_forms_and_on_the_command_line(stack: Stack) -> None:
    form = {"model": "taxed", "price": "105", "vat": "10", "whole": "on"}
    with stack.client() as client:  # which waits until the service knows the model
        assert client.run("taxed", price=100).data == {"answer": 120}
    texts = {name: (None, text) for name, text in form.items()}
    job = httpx2.post(f"{stack.url}/v1/jobs", files=texts, headers={"prefer": "wait=50"}, timeout=60)
    assert job.status_code == 200, job.text
    assert job.json()["input"] == {"price": 105, "vat": 10, "whole": True}, job.text
    assert job.json()["output"]["json"] == {"answer": 116}, job.text
    said = stack.cli("submit", "taxed", "--price", "105", "--vat", "10", "--whole", "--wait").stdout
    assert said.endswith("\n116\n"), said


def test_lines_of_a_call_of_one_job_are_its_log(stack: Stack) -> None:
    with stack.client() as client:
        job = client.wait(client.submit("divide", {"a": 4, "b": 2}).id)
        assert job.raw["output"]["json"] == {"answer": 2.0}
        assert "dividing 4.0 2.0" in stack.cli("logs", job.id).stdout
        wrong = client.wait(client.submit("divide", {"a": 4, "b": 0}).id)
        said = stack.cli("logs", wrong.id).stdout
        assert "place=many.py:" in said
        assert "\n        return a / b\n" in said
        assert "\\n" not in said


@pytest.mark.skipif(has_gpu(), reason="on a machine with a GPU it can be used")
def test_a_function_that_needs_a_gpu_says_so_on_a_machine_without(stack: Stack) -> None:
    said = "model 'on_gpu' needs a CUDA device and this machine has none"
    with stack.client() as client:
        model = client.model("on_gpu")
        assert (model.problem, model.input_schema["properties"]) == (said, {})
        with pytest.raises(PenstockAPIError, match="needs a CUDA device"):
            client.submit("on_gpu", {})
    done = stack.cli("run", f"{FILE}:on_gpu", check=False)
    assert (done.returncode, said in done.stderr) == (3, True)


def test_files_keep_their_names(stack: Stack, tmp_path: Path) -> None:
    first, second = tmp_path / "été 1.txt", tmp_path / "b.tar.gz"
    first.write_text("abc")
    second.write_text("de")
    with stack.client() as client:
        result = client.run("named", paths=[first, second, second], file=second)
        assert result.data == {"answer": ["ete_1.txt 3", "b.tar.gz 2", "b.tar.gz 2", "b.tar.gz", "b.tar.gz"]}
        assert client.run("named_too", path=second).text == "b.tar.gz 2 False"


def test_a_canceled_job_ends_and_its_model_serves_the_next(stack: Stack) -> None:
    with stack.client() as client:
        hanging = client.submit("crash", {"how": "hang"})
        wait_for(lambda: client.job(hanging.id).raw["phase"] == "inferring", "the call does not begin")
        client.cancel(hanging.id)
        assert client.wait(hanging.id).raw["status"] == "canceled"
        assert client.wait(client.submit("crash", {"how": "not"}).id).succeeded
