"""The command line as a program meets it: exit codes, JSON, interruption, nothing heavy for a `--help`."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from penstock.jobs import Status
from tests.support.polling import wait_for
from tests.support.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.breadth]


@pytest.fixture(scope="module")
def small_scene(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.tif"
    stack.cli("sample", str(path), "--size", "128")
    return path


def test_the_ways_to_look_at_a_job_agree(stack: Stack, small_scene: Path) -> None:
    done = stack.cli(
        "submit", "csmask", str(small_scene), "--wait", "--json", "--param", "outputs=stats", "--meta", "a=b"
    )
    job = json.loads(done.stdout)
    assert (job["status"], job["metadata"], [a["name"] for a in job["artifacts"]]) == (
        "succeeded", {"a": "b"}, ["stats.json"],
    )  # fmt: skip

    assert json.loads(stack.cli("status", job["id"], "--json").stdout)["id"] == job["id"]
    assert job["id"] in [row["id"] for row in json.loads(stack.cli("list", "--json").stdout)]
    assert job["id"] in stack.cli("list", "--status", "succeeded", "--model", "csmask").stdout
    events = [json.loads(line)["type"] for line in stack.cli("events", job["id"], "--json").stdout.splitlines()]
    assert (events[0], events[1], events[-1]) == ("snapshot", "job.created", "job.succeeded")
    trace = json.loads(stack.cli("trace", job["id"], "--json").stdout)
    assert [event["type"] for event in trace["events"]] == events[1:]
    assert "scene" in stack.cli("models").stdout


def test_a_result_is_reproduced(stack: Stack, small_scene: Path) -> None:
    done = stack.cli("submit", "csmask", str(small_scene), "--wait", "--json")
    job = json.loads(done.stdout)
    made = job["provenance"]
    assert (made["model"]["name"], made["inputs"][0]["size_bytes"]) == ("csmask", small_scene.stat().st_size)
    assert made["inputs"][0]["sha256"] == hashlib.sha256(small_scene.read_bytes()).hexdigest()
    assert made["software"].keys() >= {"penstock", "python", "torch", "gdal", "rasterio"}
    assert json.loads(stack.cli("status", job["id"], "--json").stdout)["provenance"] == made

    found = json.loads(stack.cli("reproduce", job["id"], "--json").stdout)
    assert (found["job"], found["equal"], found["differences"]) == (job["id"], True, [])
    assert {each["name"] for each in found["results"]} > {each["name"] for each in job["artifacts"]}
    assert found["reproduction"] != job["id"]
    assert "The results are the same." in stack.cli("reproduce", job["id"]).stdout
    never = stack.cli("reproduce", str(uuid.uuid4()), check=False)
    assert never.returncode == 3


def test_one_idempotency_key_is_one_job(stack: Stack, small_scene: Path) -> None:
    with stack.client() as client:
        media = client.upload(small_scene)
    words = ("submit", "csmask", media, "--idempotency-key", str(small_scene), "--json")

    first, second = (json.loads(stack.cli(*words).stdout)["id"] for _ in range(2))
    assert first == second


def test_one_idempotency_key_and_one_file_are_one_job(stack: Stack, small_scene: Path, tmp_path: Path) -> None:
    def submit(path: Path) -> subprocess.CompletedProcess[str]:
        return stack.cli("submit", "csmask", str(path), "--idempotency-key", str(tmp_path), "--json", check=False)

    first, second = (json.loads(submit(small_scene).stdout)["id"] for _ in range(2))
    assert first == second
    stack.cli("sample", str(other := tmp_path / "small.tif"), "--size", "64")
    refused = submit(other)
    assert (refused.returncode, "used before" in refused.stderr) == (3, True)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["submit", "csmask"], 2, "the model's files are: scene"),
        (["submit", "csmask", "never.tif"], 2, "never.tif"),
        (["submit", "csmask", "s3://b/k", "--param", "colour=1"], 2, "known fields: scene, files, sidecar, beside"),
        (["submit", "csmask", "s3://b/k", "--param", "radiometry.scale=big"], 2, "'big' is not a number"),
        (["submit", "csmask", "s3://b/k", "--meta", "novalue"], 2, "write it as key=value"),
        (["submit", "csmask", "s3://b/k", "--param", "outputs=colour"], 3, "/input/outputs/0"),
        (["submit", "nomodel", "s3://b/k"], 3, "csmask"),
        (["status", "0190a6b2-0000-7000-8000-000000000000"], 3, "no such job"),
        (["models", "--url", "http://127.0.0.1:1"], 3, "no answer from http://127.0.0.1:1"),
        (["models", "--url", "nonsense"], 2, "is not the address of a service"),
        (["list", "--status", "bogus"], 2, "'queued', 'running'"),
        (["nocommand"], 2, "nocommand"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_a_code(stack: Stack, words: list[str], code: int, sentence: str) -> None:
    done = stack.cli(*words, check=False)

    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_canceled_job_is_no_success(stack: Stack, big_scene: Path) -> None:
    job = json.loads(stack.cli("submit", "csmask", str(big_scene), "--json").stdout)

    stack.cli("cancel", job["id"])
    with stack.client() as client:
        assert client.wait(job["id"]).status is Status.CANCELED
    assert stack.cli("status", job["id"], check=False).returncode == 1


def test_an_interrupted_wait_says_how_to_follow_the_job_that_goes_on(
    stack: Stack, big_scene: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    command = [sys.executable, "-m", "penstock.cli", "submit", "csmask", str(big_scene), "--wait", "--url", stack.url]
    with said.open("wb") as out, subprocess.Popen(command, stderr=out, stdout=subprocess.DEVNULL) as process:
        with stack.client() as client:
            wait_for(lambda: said.read_text().startswith("job "), "the job was not submitted", timeout_s=60)
            wait_for(
                lambda: client.job(said.read_text().split()[1]).status is Status.RUNNING, "no job runs", timeout_s=60
            )
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130

    text = said.read_text()
    job_id = text.split("penstock cancel ")[1].split("`")[0]
    assert f"penstock events {job_id}" in text
    with stack.client() as client:
        assert not client.cancel(job_id).succeeded
        client.delete(job_id)


def test_doctor_finds_a_healthy_service_and_a_missing_one(stack: Stack, tmp_path: Path) -> None:
    well = stack.cli("doctor", "--data", str(stack.data), "--json")
    names = {finding["name"] for finding in json.loads(well.stdout)}
    assert {"redis appendfsync", "object store", "api", "worker", "model csmask"} <= names

    ill = stack.cli("doctor", "--data", str(tmp_path), "--url", "http://127.0.0.1:1", check=False)
    assert ill.returncode == 1
    assert "penstock up" in ill.stdout


def test_the_webhook_secret_stays_the_same(stack: Stack) -> None:
    first, second = (stack.cli("keys", "webhook-secret", "--data", str(stack.data)).stdout for _ in range(2))

    assert first.startswith("whsec_")
    assert first == second


def test_help_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "rasterio", "fastapi", "httpx2", "celery")
    code = f"import sys, penstock.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
