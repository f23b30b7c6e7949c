"""Containers as an operator runs them: read-only, without capabilities, as uid 10001, on this machine's loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.client import Client, ClientError
from tests.support.polling import wait_for
from tests.support.stack import free_port

BUILD = Path(__file__).parents[2] / "infra" / "docker" / "build.py"
#: The user of the images.
UID = 10001
TOOLS = ("debootstrap", "buildah", "podman", "runc")
#: runc may raise no limit above those of the process that starts it; podman asks for a million unless told otherwise.
CONFINED = (
    "--runtime", "runc", "--network", "host", "--read-only", "--tmpfs", "/tmp:size=256m", "--cap-drop", "all",
    "--security-opt", "no-new-privileges", "--ulimit", "nofile=1024:4096", "--ulimit", "nproc=1024:4096",
)  # fmt: skip
#: Starts the Valkey in the image of the API on $PORT.
VALKEY = """
import os
from penstock.up.valkey import server_program
path = str(server_program())
options = {"port": os.environ["PORT"], "bind": "127.0.0.1", "dir": "/data", "appendonly": "yes",
           "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction"}
os.execv(path, [path, *(word for name, value in options.items() for word in ("--" + name, value))])
"""


def image(target: str) -> str:
    """Return the name of the image that infra/docker/build.py builds."""
    return f"localhost/penstock-{target}"


def missing() -> str:
    """Return the reason why containers cannot be run here, or an empty text."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"no {', '.join(lacking)} (infra/apt.txt)"
    return "" if os.geteuid() == 0 else "not root"


def podman(*words: str, check: bool = True, timeout_s: float = 300) -> str:
    """Run podman and return its standard output; what it says on standard error is part of a failure."""
    ended = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=timeout_s)
    assert not check or ended.returncode == 0, f"podman {' '.join(words)}: {ended.stderr}"
    return ended.stdout


def shared_folder(path: Path) -> Path:
    """Make a folder that belongs to the user of the images, and return it."""
    path.mkdir(parents=True, mode=0o700)
    os.chown(path, UID, UID)
    return path


@dataclass(frozen=True)
class Container:
    """A started container."""

    name: str

    def state(self) -> Mapping[str, Any]:
        """Return podman's record of the container's process: `Running`, `ExitCode`, `StartedAt`, `FinishedAt`."""
        found: dict[str, Any] = json.loads(podman("inspect", "--format", "json", self.name))[0]["State"]
        return found

    def runs(self) -> bool:
        """Return True while the container's process runs."""
        return bool(self.state()["Running"])

    def logs(self) -> str:
        """Return what the container has written."""
        words = ["podman", "logs", self.name]
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60).stdout

    def stop(self, grace_s: int) -> int:
        """Stop the container as an orchestrator does: SIGTERM, and SIGKILL after the grace. Return its exit code."""
        podman("stop", "--time", str(grace_s), self.name, timeout_s=grace_s + 60)
        return int(self.state()["ExitCode"])

    def times_s(self) -> tuple[float, float]:
        """Return the times of its start and its end in seconds since 1970; the end is 0 while it runs."""
        state = self.state()
        return _seconds(state["StartedAt"]), 0.0 if state["Running"] else _seconds(state["FinishedAt"])


@dataclass(frozen=True)
class Fleet:
    """An API, a keeper and a Valkey in containers; workers are started one by one."""

    name: str
    folder: Path
    port: int
    settings: Mapping[str, str]

    @property
    def url(self) -> str:
        """The API's address."""
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Client:
        """Return a client of the API."""
        return Client(self.url, patience_s=90)

    def start(self, name: str, target: str, *command: str, options: tuple[str, ...] = ()) -> Container:
        """Start a container of an image in the background."""
        return Container(podman(*self._words(f"{self.name}-{name}", target, "--detach", *options), *command).strip())

    def once(self, target: str, *command: str) -> str:
        """Run a command in an image to its end, and return its standard output."""
        return podman(*self._words(f"{self.name}-once", target, "--rm"), *command)

    def worker(self, name: str, *options: str) -> Container:
        """Start a worker."""
        return self.start(name, "worker", "worker", "--id", name, *options)

    def end(self) -> None:
        """End and remove all containers of this fleet."""
        names = podman("ps", "--all", "--filter", f"name=^{self.name}-", "--format", "{{.Names}}").split()
        if names:
            podman("rm", "--force", "--time", "20", *names)

    def _words(self, name: str, target: str, *options: str) -> list[str]:
        given = [word for key, value in self.settings.items() for word in ("--env", f"{key}={value}")]
        volume = ["--volume", f"{self.folder}:/data"]
        return ["run", "--name", name, *CONFINED, *given, *volume, *options, image(target)]


@contextmanager
def fleet(name: str, folder: Path, catalogue: str = "", **settings: str) -> Iterator[Fleet]:
    """Start an API, a keeper and a Valkey that share a folder; gives them when the API is ready, and removes them.

    The folder is made here. `catalogue` is the text of its models.toml, `settings` are variables of all containers.
    """
    valkey, port = free_port(), free_port()
    own = {
        "PENSTOCK_HOST": "127.0.0.1",
        "PENSTOCK_PORT": str(port),
        "PENSTOCK_REDIS_URL": f"redis://127.0.0.1:{valkey}/0",
        "PENSTOCK_SECRET": "of-these-containers-only",
        "OMP_NUM_THREADS": "1",
        "PORT": str(valkey),
    }
    started = Fleet(f"{name}-{os.getpid()}", shared_folder(folder), port, own | settings)
    (folder / "models.toml").write_text(catalogue)
    try:
        started.start("valkey", "api", "-c", VALKEY, options=("--entrypoint", "python3"))
        api = started.start("api", "api")
        started.start("keeper", "api", "keeper")
        wait_for(lambda: _ready(started), f"the API is not ready: {api.logs()}", timeout_s=60)
        yield started
    finally:
        started.end()


def _ready(started: Fleet) -> bool:
    with suppress(ClientError), Client(started.url, patience_s=0) as client:
        return client.job_store() is not None
    return False


def _seconds(text: str) -> float:
    # podman prints nanoseconds and a zone; Python reads microseconds.
    moment, zone = text[:19], text[-6:] if text[-6] in "+-" else "+00:00"
    fraction = text[19:].removesuffix(zone).removesuffix("Z").removeprefix(".")
    return datetime.fromisoformat(f"{moment}.{(fraction + '000000')[:6]}{zone}").timestamp()
