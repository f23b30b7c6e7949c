"""systemd accepts the units, and the system calls that they allow are enough for a worker and its IO processes.

No service manager runs the units here. A seccomp filter that is made from `SystemCallFilter` stands in for it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyseccomp
import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from penstock.cli.systemd import Installation, units
from penstock.processors.geo.sample import write_sample
from penstock.up.valkey import server_program
from tests.support.stack import free_port

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def test_the_command_of_the_valkey_unit_starts_a_durable_server(tmp_path: Path) -> None:
    where = Installation(Path("/p"), server_program(), tmp_path / "data", tmp_path / "config", "u")
    unit = units(where)["penstock-valkey.service"]
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    (before,) = re.findall(r"^ExecStartPre=(.*)$", unit, re.MULTILINE)
    where.config.mkdir()
    port = free_port()
    (where.config / "valkey.conf").write_text(f"bind 127.0.0.1\nport {port}\nrequirepass secret\n")
    subprocess.run(shlex.split(before), check=True)
    with subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL) as server:
        try:
            settings = durable_settings(f"redis://:secret@127.0.0.1:{port}/0")
        finally:
            server.terminate()
    assert settings == {"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction"}
    assert list((where.data / "valkey").iterdir())


def durable_settings(url: str) -> dict[str, str]:
    """Return the settings of a server that decide what it loses, when it answers."""
    names = ("appendonly", "appendfsync", "save", "maxmemory-policy")
    retry = Retry(ConstantBackoff(0.05), 400, supported_errors=(redis.ConnectionError, redis.TimeoutError))
    with redis.Redis.from_url(url, retry=retry, decode_responses=True) as client:
        return {name: client.config_get(name)[name] for name in names}


@needs_systemd
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = Path(sys.executable)
    for name, text in units(Installation(program, program, tmp_path, tmp_path, "root")).items():
        (tmp_path / name.replace("@.", "@0.")).write_text(text)
    paths = sorted(map(str, tmp_path.glob("*.service")))
    ended = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def allowed(unit: str) -> list[str]:
    """Return the names of the system calls that a unit allows, its groups resolved."""
    text = units(Installation(Path("/p"), Path("/v"), Path("/d"), Path("/c"), "u"))[unit]
    (line,) = re.findall(r"^SystemCallFilter=(.*)$", text, re.MULTILINE)
    return sorted(call for word in line.split() for call in resolved(word))


def resolved(word: str) -> set[str]:
    if not word.startswith("@"):
        return {word}
    listed = subprocess.run(["systemd-analyze", "syscall-filter", word], check=True, capture_output=True, text=True)
    words = [line.strip() for line in listed.stdout.splitlines()[1:] if line.strip() and "#" not in line]
    return {call for inner in words for call in resolved(inner)}


def filtered(calls: list[str]) -> None:
    """Refuse this process all other system calls with EPERM, as the units do."""
    rules = pyseccomp.SyscallFilter(pyseccomp.ERRNO(1))
    for call in calls:
        try:
            rules.add_rule(pyseccomp.ALLOW, call)
        except (OSError, ValueError):  # of another architecture
            continue
    rules.load()


@pytest.mark.breadth
@needs_systemd
def test_the_allowed_system_calls_are_enough_for_a_model_and_its_sandbox(tmp_path: Path) -> None:
    scene = tmp_path / "scene.tif"
    write_sample(scene, size_px=256)
    calls = allowed("penstock-worker@.service")
    assert "openat" in calls
    words = ["run", "csmask", str(scene), "--out", str(tmp_path / "result"), "--isolated", "--verbose"]
    ended = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words],
        preexec_fn=lambda: filtered(calls),
        env=os.environ | {"PENSTOCK_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "result" / "classes.tif").is_file()
    assert "no Landlock" not in ended.stdout + ended.stderr
    assert "no seccomp filter" not in ended.stdout + ended.stderr
    assert "io.ready" in ended.stdout + ended.stderr
