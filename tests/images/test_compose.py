"""infra/compose.yaml runs with the images that were built, and with a Valkey and a Prometheus of ours."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from penstock.client import Client, ClientError
from penstock.processors.geo.sample import write_sample
from tests.support.polling import wait_for
from tests.support.stack import free_port

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "infra" / "compose.yaml"
SERVICES = yaml.safe_load(COMPOSE.read_text())["services"]
PODMAN_COMPOSE = str(Path(sys.executable).with_name("podman-compose"))
VALKEY_IMAGE, PROMETHEUS_IMAGE = "localhost/penstock-valkey", "localhost/penstock-prometheus"

MONITORING = ("--profile", "monitoring")

#: Runs podman-compose with these words and this standard input, and returns its standard output.
Compose = Callable[..., bytes]


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", ["worker", "worker-gpu"])
def test_a_worker_has_thirty_seconds_more_than_it_gives_its_jobs(name: str) -> None:
    command = SERVICES[name]["command"]
    drain_s = int(command[command.index("--drain") + 1])
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= drain_s + 30


def test_published_ports_are_on_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def filled_in(**values: str) -> str:
    """Return infra/compose.env with these values; it must have a line for each."""
    text = COMPOSE.with_name("compose.env").read_text()
    for name, value in values.items():
        text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
        assert count == 1, name
    return text


def test_the_settings_to_fill_in_are_those_that_compose_requires() -> None:
    required = set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text()))
    assert required == {"PENSTOCK_SECRET", "VALKEY_PASSWORD", "PENSTOCK_PUBLIC_URL"}
    assert "COMPOSE_PROFILES=cpu\n" in filled_in(**dict.fromkeys(required, "text"))


@pytest.fixture
def port() -> int:
    return free_port()


def build(name: str, image: str, context: Path) -> None:
    """Build an image from a Dockerfile beside this file, with the files of a folder."""
    words = ["buildah", "bud", "--isolation", "chroot", "--layers", "--tag", image]
    file = Path(__file__).with_name(f"{name}.Dockerfile")
    subprocess.run([*words, "--file", str(file), str(context)], check=True, capture_output=True, timeout=300)


@pytest.fixture
def compose(images: dict[str, str], port: int, tmp_path: Path) -> Iterator[Compose]:
    """Start the services; gives a function that runs podman-compose with them, and removes them."""
    del images
    build("valkey", VALKEY_IMAGE, tmp_path)
    limits = {"nofile": {"soft": 1024, "hard": 4096}, "nproc": {"soft": 1024, "hard": 4096}}
    override = tmp_path / "override.yaml"
    # The limits of containers may not exceed those of this machine.
    override.write_text(yaml.safe_dump({"services": {name: {"ulimits": limits} for name in SERVICES}}))
    env, url = tmp_path / "env", f"http://127.0.0.1:{port}"
    env.write_text(
        filled_in(PENSTOCK_SECRET="of-this-test-only", VALKEY_PASSWORD="of-this-test-only", PENSTOCK_PUBLIC_URL=url)
        + f"PENSTOCK_PORT={port}\nVALKEY_IMAGE={VALKEY_IMAGE}\n"
        + "PENSTOCK_API_IMAGE=localhost/penstock-api\nPENSTOCK_WORKER_IMAGE=localhost/penstock-worker\n"
        + f"PROMETHEUS_IMAGE={PROMETHEUS_IMAGE}\nPROMETHEUS_PORT={free_port()}\n"
        + f"PROMETHEUS_KEY_FILE={tmp_path / 'prometheus.key'}\n"
    )
    words = [
        PODMAN_COMPOSE, "--project-name", f"compose-test-{os.getpid()}", "--file", str(COMPOSE),
        "--file", str(override), "--env-file", str(env), "--profile", "cpu",
    ]  # fmt: skip

    def run(*more: str, given: bytes = b"") -> bytes:
        ended = subprocess.run([*words, *more], input=given, capture_output=True, timeout=300)
        assert ended.returncode == 0, ended.stderr.decode(errors="replace")
        return ended.stdout

    try:
        run("up", "--detach", "--no-build")
        yield run
    finally:
        subprocess.run([*words, *MONITORING, "down", "--volumes", "--timeout", "50"], capture_output=True, timeout=300)


@pytest.mark.timeout(1800)
def test_a_job_runs_on_the_services_of_compose_and_outlives_the_loss_of_their_volumes(
    compose: Compose, port: int, tmp_path: Path
) -> None:
    created = compose("exec", "-T", "api", "penstock", "keys", "create", "--scopes", "read,submit,monitor")
    key = created.decode().split()[-1]
    write_sample(tmp_path / "scene.tif", size_px=256)
    with Client(f"http://127.0.0.1:{port}", api_key=key, patience_s=90) as client:
        wait_for(lambda: serves(client), "the worker does not serve csmask")
        job = client.wait(client.submit("csmask", files={"scene": tmp_path / "scene.tif"}).id)
        client.download(job, tmp_path / "before")
        assert job.succeeded, job.error

        # The commands of docs/howto/server.md.
        checked = compose("exec", "-T", "--env", f"PENSTOCK_API_KEY={key}", "api", "penstock", "doctor", "--json")
        assert {"redis appendfsync", "object store"} <= {finding["name"] for finding in json.loads(checked)}, checked
        backup = compose("exec", "-T", "api", "tar", "--create", "--directory", "/data", "objects")
        compose("down", "--volumes", "--timeout", "50")
        restore = ("--entrypoint", "tar", "api", "--extract", "--directory", "/data")
        compose("run", "--rm", "--no-deps", "-T", *restore, given=backup)
        compose("up", "--detach", "--no-build")
        wait_for(lambda: serves(client), "the restored service does not serve csmask")
        found = client.job(job.id)
        client.download(found, tmp_path / "after")
    assert found.succeeded
    before, after = (tmp_path / folder / "classes.tif" for folder in ("before", "after"))
    assert before.read_bytes() == after.read_bytes()


@pytest.mark.timeout(1800)
def test_a_job_outlives_an_upgrade_of_one_service_after_another(compose: Compose, port: int, tmp_path: Path) -> None:
    created = compose("exec", "-T", "api", "penstock", "keys", "create", "--scopes", "read,submit,monitor")
    write_sample(tmp_path / "scene.tif", size_px=1536)
    with Client(f"http://127.0.0.1:{port}", api_key=created.decode().split()[-1], patience_s=90) as client:
        wait_for(lambda: serves(client), "the worker does not serve csmask")
        job = client.submit("csmask", files={"scene": tmp_path / "scene.tif"})
        wait_for(lambda: client.job(job.id).status == "running", "the job does not start")
        # The commands of docs/howto/server.md.
        for service in ("worker", "keeper", "api"):
            compose("up", "--detach", "--no-deps", "--no-build", "--force-recreate", service)
        found = client.wait(job.id)
    assert found.succeeded, found.error


@pytest.mark.timeout(1800)
def test_prometheus_finds_the_api_and_reads_the_alerts(compose: Compose, tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    assert program is not None, "needs Debian's package prometheus (infra/apt.txt)"
    (tmp_path / "context").mkdir()
    shutil.copy(program, tmp_path / "context" / "prometheus")
    build("prometheus", PROMETHEUS_IMAGE, tmp_path / "context")
    key = compose("exec", "-T", "api", "penstock", "keys", "create", "--name", "prometheus", "--scopes", "monitor")
    (tmp_path / "prometheus.key").write_bytes(key)
    compose(*MONITORING, "up", "--detach", "--no-deps", "--no-build", "prometheus")
    published = dict(re.findall(r"^(\w+)=(.*)$", (tmp_path / "env").read_text(), re.MULTILINE))["PROMETHEUS_PORT"]
    url = f"http://127.0.0.1:{published}/api/v1"

    wait_for(lambda: values(url, "penstock_queue_workers") == ["1"], "Prometheus does not see the worker", timeout_s=90)
    assert values(url, 'up{job="penstock"}') == ["1"]
    (group,) = httpx2.get(f"{url}/rules", timeout=10).json()["data"]["groups"]
    alerts = yaml.safe_load((COMPOSE.parent / "monitoring" / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert [rule["name"] for rule in group["rules"]] == [alert["alert"] for alert in alerts]


def values(url: str, query: str) -> list[str]:
    """Return the values of a query; none while Prometheus does not answer."""
    try:
        found = httpx2.get(f"{url}/query", params={"query": query}, timeout=10).json()
    except (httpx2.TransportError, ValueError):  # while it starts it answers with a sentence
        return []
    return [series["value"][1] for series in found["data"]["result"]]


def serves(client: Client) -> bool:
    try:
        return any(model.name == "csmask" and model.problem is None for model in client.models())
    except ClientError:
        return False
