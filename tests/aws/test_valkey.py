"""The command of the template's Valkey, run with a real server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from penstock.config import Settings
from penstock.errors import ConfigError
from penstock.storage.checks import require_durable_redis
from penstock.up.valkey import server_program
from tests.aws.deployment import template
from tests.support.polling import wait_for


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _launch(folder: Path, port: int, changes: dict[str, str]) -> subprocess.Popen[bytes]:
    container = template()["Resources"]["Valkey"]["Properties"]["ContainerDefinitions"][0]
    (script,) = container["Command"]
    for right, other in {"port 6379": f"port {port}", "/data": str(folder), **changes}.items():
        assert right in script
        script = script.replace(right, other)
    bin_folder = folder.parent / "bin"
    bin_folder.mkdir(exist_ok=True)
    if not (bin_folder / "valkey-server").exists():
        (bin_folder / "valkey-server").symlink_to(server_program())
    env = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "VALKEY_PASSWORD": "secret"}
    return subprocess.Popen([*container["EntryPoint"], script], env=env, cwd=folder, stdout=subprocess.DEVNULL)


def _answers(url: str) -> bool:
    try:
        with Redis.from_url(url) as client:
            return bool(client.ping())
    except RedisError:
        return False


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not here (Debian: util-linux)")
def test_it_is_durable_and_a_second_server_waits_for_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    first_port, second_port = _free_port(), _free_port()
    urls = [f"redis://:secret@127.0.0.1:{port}/0" for port in (first_port, second_port)]
    first = _launch(folder, first_port, {})
    second = None
    try:
        wait_for(lambda: _answers(urls[0]), "the first Valkey does not answer")
        require_durable_redis(Settings(redis_url=urls[0]))
        assert not _answers(f"redis://127.0.0.1:{first_port}/0"), "without the password"
        with Redis.from_url(urls[0]) as client:
            client.set("key", "value")
        second = _launch(folder, second_port, {})
        assert not _answers(urls[1])
        first.kill()
        first.wait(10)
        wait_for(lambda: _answers(urls[1]), "the second Valkey does not take over")
        with Redis.from_url(urls[1]) as client:
            assert client.get("key") == b"value"
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait(10)


def test_penstock_refuses_it_without_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    port = _free_port()
    url = f"redis://:secret@127.0.0.1:{port}/0"
    server = _launch(folder, port, {"appendfsync always": "appendfsync everysec"})
    try:
        wait_for(lambda: _answers(url), "Valkey does not answer")
        with pytest.raises(ConfigError, match="appendfsync"):
            require_durable_redis(Settings(redis_url=url))
    finally:
        server.kill()
        server.wait(10)
