"""Failures of commands: exit codes, sentences, and with --json a problem document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.failures import wants_json
from penstock.cli.logs import added
from tests.support.web_server import Server, reply

READY = reply(200, json.dumps({"status": "ready", "job_store": None}).encode(), Content_Type="application/json")
ECHO: dict[str, Any] = {
    "name": "echo", "title": "Echo", "revision": "1", "problem": None,
    "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}  # fmt: skip
JOB = {"id": "1", "model": "echo", "status": "queued", "created_at": "2026-01-01T00:00:00Z"}
NGINX = {"Content_Type": "text/html", "Server": "nginx/1.24"}


def penstock(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    command = [sys.executable, "-m", "penstock.cli", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def answered(body: object, status: int = 200) -> bytes:
    return reply(status, json.dumps(body).encode(), Content_Type="application/json")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [(["list", "--json"], True), (["--json"], True), (["run", "m", "--", "--json"], False), ([], False)],
)
def test_the_option_is_found_before_the_command_is_read(words: list[str], wanted: bool) -> None:
    assert wants_json(words) is wanted


def test_the_services_own_problem_is_printed_as_it_came() -> None:
    problem = {
        "type": "urn:penstock:problem:unknown_job", "status": 404, "code": "unknown_job", "title": "No such job.",
        "detail": "there is no job 1", "retryable": False, "errors": [{"pointer": "/id", "detail": "is not known"}],
        "more": 1,
    }  # fmt: skip
    with Server(answered(problem, 404)) as service:
        done = penstock("status", "1", "--json", "--url", f"http://127.0.0.1:{service.port}")
    assert (done.returncode, json.loads(done.stdout)) == (3, problem)
    assert done.stderr == "penstock: there is no job 1 (/id: is not known)\n"


@pytest.mark.parametrize(
    ("words", "exit_code", "code", "detail"),
    [
        (["list", "--limit", "0"], 2, "invalid_usage", "must be greater than or equal to 1"),
        (["nonsense"], 2, "invalid_usage", "No such command 'nonsense'"),
        (["list", "--bogus"], 2, "invalid_usage", "No such option: --bogus"),
        (["list", "--url", "http://127.0.0.1:9"], 3, "unreachable", "Connection refused"),
        (["list", "--url", "elsewhere"], 2, "client_error", "'elsewhere' is not the address of a service"),
        (["submit", "m", "none.tif"], 2, "client_error", "cannot read none.tif: No such file or directory"),
        (["doctor", "--data", "none"], 2, "config_error", "there is no data folder none"),
        (["run", "nomodel", "x"], 2, "unknown_model", "there is no model 'nomodel'"),
        (["run", "csmask", "never.tif"], 1, "media_not_found", "there is no such file"),
    ],
)
def test_each_failure_is_a_problem_document(
    tmp_path: Path, words: list[str], exit_code: int, code: str, detail: str
) -> None:
    done = penstock(*words, "--json", folder=tmp_path)
    assert done.returncode == exit_code, done.stderr
    problem = json.loads(done.stdout)
    assert (problem["code"], problem["type"]) == (code, f"urn:penstock:problem:{code}")
    assert detail in problem["detail"]
    assert {"title", "retryable", "errors"} <= set(problem)


def test_a_wait_whose_time_is_over_prints_the_job() -> None:
    with Server(READY, answered(ECHO), answered(JOB, 202), answered(JOB)) as service:
        url = f"http://127.0.0.1:{service.port}"
        done = penstock("submit", "echo", "hello", "--timeout", "0", "--json", "--url", url)
    assert done.returncode == 4, done.stderr
    problem = json.loads(done.stdout)
    assert (problem["code"], problem["retryable"], problem["job"]["id"]) == ("still_running", True, "1")
    assert problem["detail"] == "job 1 is queued after 0 s; it goes on"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (reply(404, b"<html>", **NGINX), "HTTP 404, text/html, nginx/1.24"),
        (reply(200, b"<html>", **NGINX), "HTTP 200, text/html, nginx/1.24"),
        (answered({"detail": "Not Found"}, 404), "HTTP 404, application/json"),
        (answered({"hello": "world"}), "HTTP 200, application/json"),
        (answered([]), "HTTP 200, application/json"),
        (answered({"jobs": [{"id": 1}]}), "HTTP 200, application/json"),
        (reply(200), "HTTP 200"),
    ],
)
def test_another_server_is_named_as_such(answer: bytes, what: str) -> None:
    with Server(answer) as service:
        url = f"http://127.0.0.1:{service.port}"
        done = penstock("list", "--url", url)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"penstock: {url} is not Penstock, or stands before it: its answer ({what}) is none of Penstock's; "
        "check the service's address (PENSTOCK_URL)\n"
    )


def test_another_server_is_named_before_a_job_is_sent() -> None:
    with Server(answered([])) as service:
        done = penstock("submit", "echo", "hello", "--url", f"http://127.0.0.1:{service.port}")
    assert done.returncode == 3
    assert "is not Penstock" in done.stderr


def test_piped_progress_is_quiet() -> None:
    over = {**JOB, "status": "succeeded", "output": {"text": "HELLO", "json": None}}
    with Server(READY, answered(ECHO), answered(JOB, 202), answered(JOB), answered(over), answered(ECHO)) as service:
        done = penstock("submit", "echo", "hello", "--wait", "--url", f"http://127.0.0.1:{service.port}")
    assert (done.returncode, done.stdout) == (0, "1  echo  succeeded\nHELLO\n")
    assert done.stderr == "job 1\n"


def test_further_lines_are_those_after_the_known_ones() -> None:
    assert added([], ["a", "b"]) == ["a", "b"]
    assert added(["a", "b"], ["a", "b", "c"]) == ["c"]
    assert added(["a", "b"], ["b", "c"]) == ["c"]  # the first is no longer kept
    assert added(["a"], ["x", "y"]) == ["x", "y"]
    assert added(["a", "a"], ["a", "a"]) == []


def test_the_lines_of_a_running_job_are_followed_to_its_end() -> None:
    def told(*texts: str) -> bytes:
        lines = [{"at": "2026-01-01T00:00:00Z", "attempt": 1, "source": "runner", "level": "info", "text": text}
                 for text in texts]  # fmt: skip
        return answered({"lines": lines, "cut": 0})

    runs, over = answered(JOB), answered({**JOB, "status": "succeeded"})
    more = (runs, told("warm", "half"), over, told("warm", "half", "x"))
    with Server(told(), runs, told("warm"), *more) as service:
        done = penstock("logs", "1", "-f", "--json", "--url", f"http://127.0.0.1:{service.port}")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["warm", "half", "x"]
