"""A fault that a device does not recover from: the process is of no more use, and says so."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import Tensor, nn

from tests.support.gpu_device import needs_cuda
from tests.support.polling import wait_for
from tests.support.stack import running

pytestmark = [needs_cuda, pytest.mark.slow]

PROGRAM = """
import json, sys, time
from contextlib import closing
import torch
from torch import nn
from penstock.errors import DeviceLost
from penstock.workers.engine.engine import BatchingEngine
from tests.support.gpu_device import Doubled
from tests.support.gpu_device import a_model
from tests.support.gpu_device import probability
from tests.support.gpu_device import runs
from tests.support.gpu_device import squares
from tests.support.engine_jobs import never
from penstock.workers.engine.runners import Runners

class Faulty(nn.Module):
    def forward(self, pixels):
        places = pixels[:, 0, 0, 0].long() * 10**6
        return pixels + torch.zeros(4, device=pixels.device)[places].sum()

told = {}
with closing(BatchingEngine(Runners.of({"made": runs(Faulty), "other": runs(Doubled)}))) as engine:
    [good] = engine.run(a_model("other"), squares([3]), check=never)
    told["good"] = float(probability(good)[0, 0, 0])
    for what, model, value in (("first", "made", 1), ("same", "made", 0), ("other", "other", 3)):
        try:
            list(engine.run(a_model(model), squares([value]), check=never))
            told[what] = "nothing"
        except DeviceLost:
            told[what] = "DeviceLost"
    told["lost"] = engine.lost
print(json.dumps(told), flush=True)
"""


def test_an_assertion_on_the_device_loses_it_for_every_model_and_the_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"good": 6.0, "first": "DeviceLost", "same": "DeviceLost", "other": "DeviceLost", "lost": True}
    # Torch aborts a process that still has tensors of a lost device at its very end.
    assert done.returncode in (0, -signal.SIGABRT), done.stderr


class Table(nn.Module):
    """Looks numbers up; one beyond the table is an assertion on the device that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(8.0))

    def forward(self, at: Tensor) -> Tensor:
        return self.get_buffer("table")[at] * 2


RECORD = """
[models.table]
title = "A table"
runner = "torch"
processor = "tensor"
source = "{source}"
revision = "1"
device = "cuda"
warm_up = false
max_attempts = 2
files = {{ "program.pt2" = "{digest}" }}
"""


def a_table(folder: Path) -> Path:
    """Write the table's program and its catalogue."""
    folder.mkdir()
    batch = {"at": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}
    program = torch.export.export(Table(), (torch.zeros(2, 3, dtype=torch.int64),), dynamic_shapes=batch)
    torch.export.save(program, folder / "program.pt2")
    (folder / "penstock.toml").write_text('[inputs.at]\ndtype = "int64"\nshape = ["N"]\n[outputs.found]\n')
    digest = sha256((folder / "program.pt2").read_bytes()).hexdigest()
    path = folder.parent / "models.toml"
    path.write_text(RECORD.format(source=folder, digest=digest))
    return path


def test_the_service_replaces_the_worker_and_the_next_job_succeeds(tmp_path: Path) -> None:
    models = a_table(tmp_path / "table")
    places = {"good": np.array([1, 7]), "bad": np.array([1, 10**6])}
    for name, at in places.items():
        save_file({"at": at}, tmp_path / f"{name}.safetensors")
    config = f'models = ["{models}"]\nraw_tensors = true\n'
    with running(tmp_path / "data", config=config) as stack, stack.client() as client:
        wait_for(lambda: any(m.name == "table" and m.problem is None for m in client.models()), "no table")
        media = {name: client.upload(tmp_path / f"{name}.safetensors") for name in places}
        ask = {name: {"file": media[name], "outputs": ["json"]} for name in places}
        assert client.wait(client.submit("table", ask["good"]).id, timeout_s=120).succeeded
        first = stack.pid("worker")
        bad = client.wait(client.submit("table", ask["bad"]).id, timeout_s=240)
        assert (bad.status, bad.error and bad.error.code) == ("failed", "device_lost"), stack.log.read_text()
        good = client.wait(client.submit("table", ask["good"]).id, timeout_s=240)
        assert good.succeeded, stack.log.read_text()
        assert stack.pid("worker") != first
