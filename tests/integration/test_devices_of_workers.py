"""`penstock up` on a machine with GPUs: each worker gets one. `nvidia-smi` is a script that lists two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.polling import wait_for

_LISTS_TWO = "#!/bin/sh\necho 'GPU 0: Some GPU (UUID: GPU-a)'\necho 'GPU 1: Some GPU (UUID: GPU-b)'\n"


@pytest.mark.breadth(but=("options1-expected1",))
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"worker": ("GPU-a", "1"), "worker-2": ("GPU-b", "1")}),
        (["--workers", "3"], {"worker": ("GPU-a", "2"), "worker-2": ("GPU-b", "1"), "worker-3": ("GPU-a", "2")}),
        (["--workers", "0..2"], {"worker": ("GPU-a", "1")}),
    ],
)
def test_each_worker_has_its_device(options: list[str], expected: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    lister = tmp_path / "bin" / "nvidia-smi"
    lister.parent.mkdir()
    lister.write_text(_LISTS_TWO)
    lister.chmod(0o755)
    hidden = ("PENSTOCK_", "CUDA_VISIBLE_DEVICES")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    env["PATH"] = f"{lister.parent}:{env['PATH']}"
    data, log = tmp_path / "data", tmp_path / "out"
    command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(data), "--port", "0", *options]
    with log.open("wb") as out, subprocess.Popen(command, env=env, cwd=tmp_path, stdout=out, stderr=out) as process:
        try:
            wait_for(
                lambda: all(f"{name:<7} process" in log.read_text() for name in expected), "no worker", timeout_s=60
            )
            rows = json.loads((data / "children.json").read_text())
            seen = {name: psutil.Process(row["pid"]).environ() for name, row in rows.items() if "worker" in name}
        finally:
            process.send_signal(signal.SIGTERM)
    assert {
        name: (env["CUDA_VISIBLE_DEVICES"], env["PENSTOCK_DEVICE_WORKERS"]) for name, env in seen.items()
    } == expected
