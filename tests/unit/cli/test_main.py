"""The command line without a service: what it refuses before it touches anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.demo import settled
from penstock.cli.main import _input
from penstock.cli.run import read_document
from penstock.client import Client
from tests.support.web_server import Server, reply

JOB = {"id": "1", "model": "m", "status": "succeeded", "created_at": "2026-01-01T00:00:00Z"}


def penstock(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")} | {"COLUMNS": "200"}
    command = [sys.executable, "-m", "penstock.cli", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words", [["keys", "webhook-secret"], ["doctor"], ["recover"]])
def test_a_data_folder_is_looked_for_and_never_made(tmp_path: Path, words: list[str]) -> None:
    done = penstock(tmp_path, *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no data folder penstock-data" in done.stderr
    assert "--data or PENSTOCK_DATA" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_status_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    done = penstock(tmp_path, "list", "--status", "bogus", "--url", "http://127.0.0.1:9")

    assert done.returncode == 2
    assert all(name in done.stderr for name in ("'queued'", "'canceling'", "'expired'"))
    assert "Invalid value for '--status': 'bogus' is not one of" in done.stderr
    few = penstock(tmp_path, "list", "--limit", "0").stderr
    assert "Invalid value for '--limit': must be greater than or equal to 1" in few


def test_the_command_line_starts_without_slow_imports() -> None:
    """Each takes as long to import as the rest, and completions start the command line at every key."""
    code = "import sys, penstock.cli.main; print(*sorted({'pydantic', 'structlog', 'httpx2'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_the_version_is_told(tmp_path: Path) -> None:
    done = penstock(tmp_path, "--version")

    assert done.returncode == 0
    assert re.fullmatch(r"penstock \d+\.\d+\S*\n", done.stdout)


def test_the_help_names_every_exit_code(tmp_path: Path) -> None:
    told = " ".join(penstock(tmp_path, "submit", "--help").stdout.split())
    codes = told.partition("Exit codes: ")[2].split(" · ")

    assert [code.split()[0] for code in codes] == ["0", "1", "2", "3", "4", "130"]
    assert re.search(r"\(exit code 4\)", penstock(tmp_path, "wait", "--help").stdout)
    told = " ".join(penstock(tmp_path, "up", "--help").stdout.replace("│", " ").split())
    assert "Data folder of penstock up [penstock-data]." in told, "defaults in brackets are no markup"


def test_a_sample_replaces_a_file_only_when_asked_to(tmp_path: Path) -> None:
    scene = tmp_path / "scene.tif"
    scene.write_text("mine")

    refused = penstock(tmp_path, "sample", "scene.tif", "--size", "64")
    assert (refused.returncode, scene.read_text()) == (2, "mine")
    assert "--force" in refused.stderr

    assert penstock(tmp_path, "sample", "scene.tif", "--size", "64", "--force").returncode == 0
    assert scene.read_bytes()[:2] == b"II"


def test_a_sample_makes_no_folders(tmp_path: Path) -> None:
    done = penstock(tmp_path, "sample", "far/away/scene.tif")

    assert done.returncode == 2
    assert "there is no folder far/away" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_cannot_be_used_is_refused_with_its_problem(tmp_path: Path) -> None:
    (tmp_path / "scene.tif").write_text("mine")
    model = {"name": "broken", "title": "Broken", "revision": "1", "input_schema": {}, "problem": "no weights"}
    ready = reply(200, json.dumps({"status": "ready", "job_store": None}).encode())
    with Server(ready, reply(200, json.dumps(model).encode())) as service:
        done = penstock(tmp_path, "submit", "broken", "scene.tif", "--url", f"http://127.0.0.1:{service.port}")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "penstock: broken cannot be used at the moment: no weights\n"


@pytest.mark.parametrize(("status", "goes_on"), [(401, True), (410, False)])
def test_a_wait_that_is_refused_says_whether_the_job_continues(tmp_path: Path, status: int, goes_on: bool) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    answers = (
        (200, {"status": "ready", "job_store": None}),
        (200, {"name": "echo", "title": "Echo", "revision": "1", "input_schema": schema, "problem": None}),
        (202, {**JOB, "status": "queued"}),
        (status, {"code": "refused", "detail": "refused", "retryable": False}),
    )
    with Server(*(reply(code, json.dumps(body).encode()) for code, body in answers)) as service:
        done = penstock(tmp_path, "submit", "echo", "hello", "--wait", "--url", f"http://127.0.0.1:{service.port}")
    assert done.returncode == 3
    assert done.stderr.endswith("penstock: refused\n")
    assert ("The job continues. Follow: `penstock events 1`." in done.stderr) is goes_on


def told(delivery: str) -> bytes:
    return reply(200, json.dumps({**JOB, "delivery": delivery}).encode())


def test_the_demo_writes_down_a_job_whose_webhook_is_settled() -> None:
    with (
        Server(told("pending"), told("pending"), told("delivered")) as service,
        Client(f"http://127.0.0.1:{service.port}", patience_s=0) as client,
    ):
        assert settled(client, "1").delivery == "delivered"


def test_the_demo_does_not_wait_for_a_webhook_for_ever() -> None:
    with Server(told("pending")) as service, Client(f"http://127.0.0.1:{service.port}", patience_s=0) as client:
        assert settled(client, "1", patience_s=0).delivery == "pending"
        assert service.accepted == 1


def test_an_input_may_be_given_as_a_whole_and_its_local_files_are_sent(tmp_path: Path) -> None:
    schema: dict[str, Any] = {
        "properties": {"scene": {"type": "string", "format": "media"}, "top": {"type": "integer"}},
        "required": ["scene"],
    }
    whole = {"scene": "scene.tif", "top": 3}
    assert _input(dict(whole), [], schema) == ({"top": 3}, {"scene": "scene.tif"})
    assert _input({"top": 3}, ["scene.tif"], schema) == ({"top": 3}, {"scene": "scene.tif"})
    elsewhere = {"scene": "s3://bucket/scene.tif", "top": 3}
    assert _input(dict(elsewhere), [], schema) == (elsewhere, {})

    done = penstock(tmp_path, "submit", "m", "--help")
    assert "--input" in done.stdout


def test_a_byte_order_mark_before_an_input_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "input.json").write_bytes(BOM_UTF8 + '{"text": "Größe"}'.encode())
    assert read_document(str(tmp_path / "input.json")) == {"text": "Größe"}
    assert read_document('\ufeff{"top": 3}') == {"top": 3}
