"""A file's own numbers on a device of torch, beside the floats that numpy makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.errors import InvalidInput
from penstock.processors.numbers import as_floats
from penstock.workers.engine.torch.csmask import CsmaskUNet, network_of
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.torch.runner import TorchRunner
from tests.support.numbers import numbers_prompt

CPU = TorchDevice(torch.device("cpu"))
DTYPES = ("uint8", "int8", "uint16", "int16")


def a_runner() -> TorchRunner:
    torch.manual_seed(1)
    return TorchRunner(network_of(CsmaskUNet()), CPU, max_batch=4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("side", [1, 70, 320])
def test_torch_gives_the_bits_of_numpy(dtype: str, channels_last: bool, side: int) -> None:
    prompt = numbers_prompt(dtype, side=side)
    floats = as_floats(prompt).data["pixels"]
    found = CPU.receive(CPU.send_input(prompt.data, "pixels", channels_last=channels_last))
    assert found.is_contiguous(memory_format=torch.channels_last) if channels_last else found.is_contiguous()
    assert found.numpy().reshape(floats.shape).tobytes() == floats.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_network_answers_numbers_with_the_bytes_of_its_answer_to_floats(dtype: str) -> None:
    prompt, runner = numbers_prompt(dtype), a_runner()
    (ours,), (before,) = (runner.step([runner.admit(each)]) for each in (prompt, as_floats(prompt)))
    assert ours.output.data["probability"].tobytes() == before.output.data["probability"].tobytes()


def test_numbers_and_floats_share_a_batch() -> None:
    runner = a_runner()
    prompts = [numbers_prompt("uint8"), numbers_prompt("uint16"), as_floats(numbers_prompt("int16"))]
    assert len({runner.bucket(prompt) for prompt in prompts}) == 1
    alone = [runner.step([runner.admit(prompt)])[0].output.data["probability"] for prompt in prompts]
    together = runner.step([runner.admit(prompt) for prompt in prompts])
    for one, done in zip(alone, together, strict=True):
        np.testing.assert_allclose(done.output.data["probability"], one, atol=1e-5)


def test_a_waiting_prompt_holds_the_numbers_alone() -> None:
    prompt = numbers_prompt("uint16")
    sent = CPU.send_input(prompt.data, "pixels", channels_last=True)
    assert np.shares_memory(sent.numbers.tensor.numpy(), prompt.data["pixels"])  # type: ignore[union-attr]


def test_numbers_of_a_wrong_shape_are_refused() -> None:
    with pytest.raises(InvalidInput, match="takes 6 bands, the prompt has 5"):
        a_runner().admit(numbers_prompt(bands=5))
