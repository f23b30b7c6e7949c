"""Functions on a real device: without a network, in a process of their own, whose context counts."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.catalogue.functions import function_records
from penstock.workers.engine.function.runner import load_function
from penstock.workers.engine.memory import CONTEXT_BYTES
from tests.support.gpu_device import needs_cuda

pytestmark = needs_cuda
FILE = """
import penstock


@penstock.model(gpu=True)
class Doubled:
    def load(self) -> None:
        import torch

        self.two = torch.full((1,), 2.0, device="cuda")

    def predict(self, numbers: list[float]) -> list[float]:
        return (self.two * self.two.new_tensor(numbers)).tolist()


@penstock.model
def sees() -> bool:
    import torch

    return torch.cuda.is_available()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "doubled.py"
    path.write_text(FILE)
    return path


def test_a_function_computes_on_the_device_and_others_see_none(file: Path) -> None:
    with penstock.Engine(catalogue=[file]) as engine:
        assert engine.run("doubled", numbers=[1.0, 2.5]).data == {"answer": [2.0, 5.0]}
        assert engine.run("sees").data == {"answer": False}


def test_its_context_counts_as_memory(file: Path) -> None:
    runner = load_function(function_records(file)[0])
    try:
        assert runner.memory_bytes >= CONTEXT_BYTES
    finally:
        runner.close()
