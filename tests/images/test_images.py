"""The images: small, without tools to attack with, and their jobs give the same bytes as `penstock run`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import time
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.client import Job
from tests.support.containers import BUILD, CONFINED, Fleet, image, shared_folder
from tests.support.polling import wait_for

pytestmark = pytest.mark.timeout(1800)  # the first test builds the images

#: Seconds that a worker gives its jobs at SIGTERM, and those that its operator gives the worker (docs/howto/server.md).
DRAIN_S, GRACE_S = 2, 32
#: Files that name the job or its input.
UNLIKE = ("stats.json", "result.json", "item.json")


@pytest.mark.parametrize("target", ["api", "worker"])
def test_an_image_is_small(target: str, images: dict[str, str], record_property: pytest.RecordProperty) -> None:
    spec = importlib.util.spec_from_file_location("build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    record_property("figures", images[image(target)])
    assert build.size_bytes(target) <= build.LIMITS_BYTES[target]


@pytest.mark.parametrize("target", ["api", "worker"])
def test_an_image_has_no_tools_and_nothing_that_its_user_may_change(target: str, images: dict[str, str]) -> None:
    del images
    tools = "for tool in gcc cc make git pip pip3 curl; do command -v $tool; done"
    writable = "find / -xdev -path /proc -prune -o -path /tmp -prune -o -writable ! -type l -print 2>/dev/null"
    caches = "ls -d /root/.cache /var/lib/apt/lists/*_Packages /etc/pip.conf 2>/dev/null"
    words = ["podman", "run", "--rm", *CONFINED, "--entrypoint", "sh", image(target), "-c"]
    # Of the writable files of a read-only container all are devices, but for the data folder.
    found = subprocess.run(
        [*words, f"id -u; {tools}; {caches}; {writable} | grep -v -e '^/dev' -e '^/run'"],
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout.split()
    assert found[0] == "10001"
    assert set(found[1:]) <= {"/data", "/var/tmp", "/var/lock"}, found


def test_the_image_of_the_api_holds_no_heavy_library(images: dict[str, str]) -> None:
    del images
    heavy = "import importlib.util as u; print([m for m in ('torch', 'numpy', 'rasterio') if u.find_spec(m)])"
    words = ["podman", "run", "--rm", *CONFINED, "--entrypoint", "python3", image("api"), "-c", heavy]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "[]\n"


#: Clients of the services that Penstock calls, and those in which boto3 finds credentials.
CLIENTS = "import boto3; [boto3.client(n, region_name='us-east-1') for n in ('s3', 'sqs', 'sts', 'sso', 'sso-oidc')]"
LIBRARIES = "import torch, onnx, onnxruntime, rasterio, rio_cogeo, pyogrio, pyproj, shapely, pystac, PIL, safetensors"

#: Widths of letters, in a terminal of which the image has no table.
WIDTHS = (
    "import os; os.environ['TERM_PROGRAM'] = 'kitty'; import wcwidth; assert wcwidth.wcswidth('e\\u0301\\u732b') == 3"
)


@pytest.mark.parametrize(
    ("target", "code"), [("api", CLIENTS), ("worker", CLIENTS), ("worker", LIBRARIES), ("api", WIDTHS)]
)
def test_what_was_removed_is_not_missed(target: str, code: str, images: dict[str, str]) -> None:
    del images
    words = ["podman", "run", "--rm", *CONFINED, "--entrypoint", "python3", image(target), "-c", code]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def reference(images: dict[str, str], scene: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the digests of the files that `penstock run` makes in the worker's image, without any service."""
    del images
    out = shared_folder(tmp_path_factory.mktemp("run") / "data")
    words = ["podman", "run", "--rm", *CONFINED, "--volume", f"{scene.parent}:/given:ro", "--volume", f"{out}:/data"]
    command = ["run", "csmask", "/given/scene.tif", "--out", "/data/result"]
    subprocess.run([*words, "--env", "OMP_NUM_THREADS=1", image("worker"), *command], check=True, timeout=300)
    files = [path for path in (out / "result").iterdir() if path.name not in UNLIKE]
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in files}


def digests(job: Job) -> dict[str, str]:
    """Return the digests of a job's files, but for those that name the job."""
    assert job.succeeded, job.error
    return {artifact.name: artifact.sha256 for artifact in job.artifacts if artifact.name not in UNLIKE}


def test_a_job_gives_the_bytes_of_penstock_run(running: Fleet, scene: Path, reference: dict[str, str]) -> None:
    worker = running.worker("first")
    with running.client() as client:
        job = client.wait(client.submit("csmask", files={"scene": scene}).id)
    assert worker.stop(GRACE_S) == 0
    assert "classes.tif" in reference
    assert digests(job) == reference


def test_io_processes_are_confined_in_a_container(running: Fleet, record_property: pytest.RecordProperty) -> None:
    worker = running.worker("sandboxed", "--idle-exit", "1")
    wait_for(lambda: not worker.runs(), "the worker does not leave")
    ready = [json.loads(line) for line in worker.logs().splitlines() if '"io.ready"' in line]
    assert ready, worker.logs()
    # A container may refuse namespaces; Landlock and seccomp need none.
    assert not any("Landlock" in sentence or "seccomp" in sentence for line in ready for sentence in line["missing"])
    record_property("figures", f"missing in a container: {'; '.join(ready[0]['missing']) or 'nothing'}")


def test_a_stopped_worker_gives_its_job_back_and_another_one_finishes_it(
    running: Fleet, scene: Path, reference: dict[str, str], record_property: pytest.RecordProperty
) -> None:
    first = running.worker("stopped", "--drain", str(DRAIN_S))
    with running.client() as client:
        job_id = client.submit("csmask", files={"scene": scene}).id
        done = next(event.data["done"] for event in client.events(job_id) if event.data.get("done"))
        begun = time.monotonic()
        assert first.stop(GRACE_S) == 0
        took_s = time.monotonic() - begun
        assert not client.job(job_id).over
        released = [event.type for event in client.event_list(job_id)]
        assert released.count("job.released") == 1
        second = running.worker("resuming")
        job = client.wait(job_id)
        events = client.event_list(job_id)
    assert second.stop(GRACE_S) == 0
    assert digests(job) == reference
    assert job.attempt == 1
    after = [event.data["done"] for event in events[released.index("job.released") + 1 :] if event.data.get("done")]
    assert min(after) >= done
    record_property(
        "figures", f"a busy worker stopped with drain_s={DRAIN_S} ended after {took_s:.1f} s, at tile {done}"
    )
