from __future__ import annotations

import shutil
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from penstock.errors import DeviceLost, InvalidInput, ModelUnavailable, OutOfMemory, PenstockError
from penstock.models import Model
from penstock.processors.numbers import as_floats
from penstock.workers.engine.torch.csmask import CsmaskUNet, network_of
from penstock.workers.engine.torch.device import TorchDevice, arrays_of, class_ids, torch_errors, weights_bytes
from penstock.workers.engine.torch.runner import TorchRunner
from tests.support.numbers import numbers_prompt

CPU = TorchDevice(torch.device("cpu"))
DTYPES = ("uint8", "int8", "uint16", "int16")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def a_model(**fields: Any) -> Model:
    common = {"title": "M", "runner": "torch", "processor": "none", "source": "none", "revision": "1"}
    return Model(name="m", **{**common, **fields})


def test_a_model_says_where_and_in_which_precision_it_runs() -> None:
    device = TorchDevice.of(a_model(device="cpu", dtype="bfloat16", options={"compile": True}))
    assert (device.device.type, device.dtype, device.compiles, device.is_cpu) == ("cpu", torch.bfloat16, True, True)
    assert not TorchDevice.of(a_model(device="cpu")).compiles


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda_auto_is_the_processor_and_a_model_that_names_cuda_is_refused() -> None:
    assert TorchDevice.of(a_model()).is_cpu
    with pytest.raises(ModelUnavailable, match="needs a CUDA device and this machine has none"):
        TorchDevice.of(a_model(device="cuda:0"))


def test_a_sent_array_arrives_as_it_is_and_is_not_written_to() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    array.flags.writeable = False
    for channels_last in (False, True):
        sent = CPU.send(array[None], channels_last=channels_last)
        tensor = CPU.receive(sent)
        assert np.array_equal(tensor.numpy(), array[None])
        assert tensor.is_contiguous(memory_format=torch.channels_last) or not channels_last
    batch = CPU.stack([CPU.send(array), CPU.send(array + 1)])
    assert batch.shape == (2, 2, 3, 4)
    assert batch[1, 0, 0, 0] == 1


def test_strided_and_zero_dimensional_arrays_are_sent() -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3).T[::-1]
    assert CPU.receive(CPU.send(array)).tolist() == array.tolist()
    assert CPU.receive(CPU.send(np.array(5.0))).item() == 5


def test_running_takes_no_gradients_and_computes_in_bfloat16_only_where_that_is_asked_for() -> None:
    layer = CPU.place(nn.Linear(4, 4))
    for dtype in (torch.float32, torch.bfloat16):
        with TorchDevice(torch.device("cpu"), dtype).running():
            answer = layer(torch.ones(1, 4))
        assert answer.dtype == dtype
        assert answer.is_inference()


def test_place_makes_a_network_ready_for_inference() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
    placed = CPU.place(network, channels_last=True)
    assert not any(module.training for module in placed.modules())
    assert not any(parameter.requires_grad for parameter in placed.parameters())
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.ran_compiled = False

    def forward(self, pixels: Tensor) -> Tensor:
        self.ran_compiled = torch.compiler.is_compiling()
        answer: Tensor = self.second(torch.relu(self.first(pixels)))
        return answer


@pytest.mark.breadth
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.filterwarnings("default")
def test_a_compiled_network_answers_like_the_plain_one() -> None:
    torch.manual_seed(1)
    network, pixels = Small(), torch.randn(3, 4)
    with CPU.running():
        plain = network(pixels)
    assert not network.ran_compiled
    compiling = TorchDevice(torch.device("cpu"), compiles=True)
    compiled = compiling.place(network)
    with compiling.running():
        torch.testing.assert_close(compiled(pixels), plain)
    assert network.ran_compiled


def test_the_weights_of_a_network_are_counted_once() -> None:
    network = nn.Sequential(nn.Linear(10, 10, bias=False), nn.BatchNorm1d(10))
    network.append(network[0])
    counted = 100 * 4 + 4 * 10 * 4 + 8
    assert weights_bytes(network) == counted


def test_the_memory_of_a_network_is_let_go() -> None:
    network = nn.Linear(4, 4)
    CPU.free(network)
    assert network.weight.is_meta


class Packed(Tensor):
    """Stands for float32 and holds a byte for each with a scale for all, as torchao's tensors do."""

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor) -> Packed:
        made: Packed = Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)  # type: ignore[attr-defined]
        return made

    def __init__(self, data: Tensor, scale: Tensor) -> None:
        self.data_int8, self.scale = data, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise NotImplementedError(f"{func} of packed numbers")

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["data_int8", "scale"], None


def a_quantised_network() -> nn.Module:
    network: Any = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8))
    network.register_buffer("packed", Packed(torch.zeros(4, 4, dtype=torch.int8), torch.ones(1)))
    network.is_quantized = True
    return network


def test_quantised_weights_count_as_what_they_take() -> None:
    assert weights_bytes(a_quantised_network()) == 64 * 4 + (4 * 8 * 4 + 8) + (16 + 4)


def test_quantised_weights_are_let_go_though_they_have_no_place_without_memory() -> None:
    network: Any = a_quantised_network()
    kept = [weakref.ref(one) for one in (network.packed, network[0], network[0].weight, network[1].running_mean)]
    CPU.free(network)
    assert [one() for one in kept] == [None] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_outputs_keep_their_batch_from_nobody(dtype: torch.dtype) -> None:
    first, second = arrays_of(torch.ones(2, 3, 4, dtype=dtype).transpose(1, 2))
    assert first.dtype == np.float32
    assert first.flags.c_contiguous
    assert first.base is None or first.base.nbytes == first.nbytes
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize(("classes", "dtype"), [(1, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_class_maps_are_as_small_as_their_classes_allow(classes: int, dtype: type[np.generic]) -> None:
    scores = torch.zeros(2, classes, 3, 4)
    scores[:, -1] = 1
    for array in arrays_of(class_ids(scores)):
        assert array.dtype == dtype
        assert array.shape == (3, 4)
        assert (array == classes - 1).all()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("classes", [1, 2, 5, 300])
def test_of_equal_scores_the_first_class_wins_and_nan_is_above_all(classes: int, layout: torch.memory_format) -> None:
    """The class is that of numpy's argmax, which reduces the scores of other runners."""
    generator = torch.Generator().manual_seed(classes)
    scores = torch.randint(0, 3, (2, classes, 40, 50), generator=generator).float()
    for value in (float("nan"), float("inf"), -float("inf"), -0.0):
        scores[torch.rand(scores.shape, generator=generator) < 0.1] = value
    ids = class_ids(scores.contiguous(memory_format=layout))
    assert np.array_equal(ids.numpy(), scores.numpy().argmax(axis=1))


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
        (MemoryError(), OutOfMemory),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), OutOfMemory),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), OutOfMemory),
        (RuntimeError("CUDA error: out of memory"), OutOfMemory),
        (RuntimeError("CUDA error: device-side assert triggered"), DeviceLost),
    ],
)
def test_torch_s_errors_become_ours(error: BaseException, ours: type[PenstockError]) -> None:
    with pytest.raises(ours) as raised, torch_errors():
        raise error
    assert raised.value.__cause__ is error


def test_what_a_network_had_made_until_there_was_no_room_is_let_go() -> None:
    made: list[weakref.ref[Tensor]] = []

    def forward() -> None:
        activations = torch.zeros(8)
        made.append(weakref.ref(activations))
        raise torch.OutOfMemoryError

    with pytest.raises(OutOfMemory) as raised, torch_errors():
        forward()
    assert raised.value.__cause__ is not None
    assert made[0]() is None


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape mismatch"), torch_errors():
        raise RuntimeError("shape mismatch")


@needs_cuda
def test_copies_run_beside_the_device_s_work_and_arrive_whole() -> None:
    device = TorchDevice.of(a_model(device="cuda"))
    arrays = [np.full((3, 512, 512), number, np.float32) for number in range(16)]
    sent = [device.send(array, channels_last=False) for array in arrays]
    assert all(one.copied is not None and one.tensor.is_cuda for one in sent)
    with device.running():
        means = device.stack(sent).mean(dim=(1, 2, 3))
    assert [array.item() for array in arrays_of(means)] == list(range(16))


def a_network_runner() -> TorchRunner:
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
    prompt, runner = numbers_prompt(dtype), a_network_runner()
    (ours,), (before,) = (runner.step([runner.admit(each)]) for each in (prompt, as_floats(prompt)))
    assert ours.output.data["probability"].tobytes() == before.output.data["probability"].tobytes()


def test_numbers_and_floats_share_a_batch() -> None:
    runner = a_network_runner()
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
        a_network_runner().admit(numbers_prompt(bands=5))
