"""A standby's orders, and the process that it becomes by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

from penstock.workers.standby import opened_devices, read_orders

#: Obeys the orders on its standard input, and writes to both of its outputs.
OBEYING = """
import json, os, sys
from types import SimpleNamespace
from penstock.observation.log import configure
from penstock.workers.standby import obey
configure("info")
obey(json.loads(sys.stdin.buffer.readline()), SimpleNamespace(server=SimpleNamespace(log_to=lambda descriptor: None)))
os.write(1, f"device {os.environ['CUDA_VISIBLE_DEVICES']}\\n".encode())
os.write(2, f"standard input {os.read(0, 1)}\\n".encode())
"""


def test_a_standby_takes_the_environment_and_the_log_of_its_worker(tmp_path: Path) -> None:
    log = tmp_path / "worker-2.log"
    log.write_text("an earlier worker\n")
    orders = {"worker": "theid", "log": str(log), "variables": {"CUDA_VISIBLE_DEVICES": "GPU-b"}}
    command, before = [sys.executable, "-c", OBEYING], {**os.environ, "CUDA_VISIBLE_DEVICES": "all"}
    ran = subprocess.run(
        command, input=json.dumps(orders).encode() + b"\nrest", env=before, capture_output=True, check=True
    )
    assert (ran.stdout, ran.stderr) == (b"", b"")
    first, ordered, *outputs = log.read_text().splitlines()
    assert first == "an earlier worker"
    assert "standby.ordered" in ordered
    assert "theid" in ordered
    assert outputs == ["device GPU-b", "standard input b''"]


def test_a_standby_obeys_only_a_whole_line() -> None:
    line = b'{"worker": "theid"}'
    assert read_orders(BytesIO(line + b"\n" + line)) == {"worker": "theid"}
    assert read_orders(BytesIO(line)) is None
    assert read_orders(BytesIO()) is None


def test_an_opened_device_is_noticed(tmp_path: Path) -> None:
    for number, target in enumerate(("/dev/null", "/dev/nvidia0", "/dev/nvidiactl", "socket:[1]")):
        (tmp_path / str(number)).symlink_to(target)
    assert opened_devices(tmp_path) == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert opened_devices(tmp_path / "missing") == []
