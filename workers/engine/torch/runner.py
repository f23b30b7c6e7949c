"""The runner `torch`: one forward pass of a torch network per batch.

On a CPU in float32 a prompt's output has the same bits every time, given the prompt's shape, the type of CPU, the torch
version and the number of threads (one thread and two differ by some 1e-8). Outputs would also depend on the other
prompts of a batch (three tiles of 48 x 64 px differ from one), so each has a pass of its own, one after the other or
side by side (`passes`). A GPU and bfloat16 give no such guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.reductions import Reduction
from penstock.workers.engine.base import Done, Runner, dtype_of, shapes_of
from penstock.workers.engine.torch.device import Input, TorchDevice, weights_bytes
from penstock.workers.engine.torch.networks import Network
from penstock.workers.engine.torch.passes import threads_of
from penstock.workers.engine.torch.program import check_program, load_program, read_description
from penstock.workers.engine.torch.scores import answers_of, reduction_of
from penstock.workers.engine.weights import locate, read_weights, requires

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class TorchState:
    """A prompt's pixels on their way to the device, and the reduction of its scores."""

    pixels: Input
    reduction: Reduction | None


class TorchRunner:
    """A convolutional network: `pixels`, float32 (bands, H, W), in; `probability`, float32 (classes, H, W), out.

    Pixels may be a file's own numbers, which are normalised here; prompts may ask for reduced scores.
    """

    takes_numbers = True

    def __init__(self, network: Network, device: TorchDevice, *, max_batch: int) -> None:
        """Move the network to the device."""
        self._network = network
        self._device = device
        self._max_batch = max_batch
        self._module = device.place(network.module, channels_last=True)
        self._memory_bytes = weights_bytes(network.module)

    @property
    def max_batch(self) -> int:
        """The largest batch; on a CPU the passes at once, see `TorchDevice.batch`."""
        return self._device.batch(self._max_batch)

    @property
    def memory_bytes(self) -> int:
        """The bytes of the weights."""
        return self._memory_bytes

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shape: tiles of one shape share a batch."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> TorchState:
        """Return the prompt as (1, bands, H, W), channels last, on its way to the device."""
        self._check(prompt)
        return TorchState(self._device.send_input(prompt.data, "pixels", channels_last=True), reduction_of(prompt))

    def step(self, states: Sequence[TorchState]) -> Sequence[Done]:
        """Run the network once, on a CPU once for each prompt."""
        return self._device.answers(self._step, states)

    def _step(self, states: Sequence[TorchState]) -> Sequence[Done]:
        with self._device.running():
            probability = self._module(torch.cat([self._device.receive(state.pixels) for state in states]))
            answers = answers_of(probability.float(), [state.reduction for state in states])
            return [Done(Output(answer)) for answer in answers]

    def close(self) -> None:
        """Free the device's memory."""
        self._device.free(self._module)

    def _check(self, prompt: Prompt) -> None:
        pixels = prompt.data.get("pixels")
        if not isinstance(pixels, np.ndarray) or pixels.ndim != 3 or dtype_of(prompt, "pixels") != "float32":
            raise ProcessorFailed("the network takes `pixels`, a float32 array (bands, height, width)")
        bands, height, width = pixels.shape
        stride = self._network.stride_px
        if bands != self._network.bands:
            raise InvalidInput(f"the network takes {self._network.bands} bands, the prompt has {bands}")
        if not height or not width or height % stride or width % stride:
            raise InvalidInput(f"the network takes sides that are multiples of {stride}, not {height} x {width}")


def load_torch(model: Model) -> Runner:
    """Load the weights of a known network, or a directory (see `program`); raise `ModelUnavailable`.

    `options.network`, or `network` in a directory's `penstock.toml`, names the network.
    """
    root = locate(model)
    if not root.is_dir():
        network = _known(model, model.options.get("network")).read(read_weights(model))
        return TorchRunner(network, TorchDevice.of(model), max_batch=model.max_batch)
    model = model.model_copy(update={"source": str(root)})
    description = read_description(model)
    if description.network is None:
        return load_program(model, description)
    known = _known(model, description.network)
    return TorchRunner(_filled(model, known), TorchDevice.of(model), max_batch=model.max_batch)


def import_network(model: Model) -> None:
    """Import what a known network needs that is named in the model's options."""
    known = NETWORKS.get(str(model.options.get("network")))
    if known is not None:
        known.imports()


def check_torch(model: Model) -> None:
    """Check what `load_torch` would use, without reading weights; raise `ModelUnavailable`."""
    threads_of(model)
    root = locate(model)
    if not root.is_dir():
        _known(model, model.options.get("network"))
        return
    model = model.model_copy(update={"source": str(root)})
    description = read_description(model)
    if description.network is None:
        check_program(model, description)
        return
    _known(model, description.network)
    if not (root / WEIGHTS).is_file():
        raise _lacks_weights(model)


#: Words on files that no network of `NETWORKS` reads, by their suffix. They name the library and what to write.
_OTHERS = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin"), "is a file of PyTorch: write a function with `torch.jit.load`, "
    "or with its class and `torch.load(path, weights_only=True)`: `@penstock.model`, docs/howto/own-networks.md"),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), "is a pickle, which runs code of its author: write a function that "
    "reads `penstock.weights(NAME, sha256=...)`, docs/howto/own-networks.md"),
    **dict.fromkeys((".plan", ".engine", ".trt"), "is a plan of TensorRT: write a function with `tensorrt`, in an "
    "environment that has it, docs/howto/own-networks.md"),
    **dict.fromkeys((".keras", ".h5", ".tflite"), "is a file of Keras or TensorFlow: write a function with `keras`, "
    "docs/howto/own-networks.md, or export it as ONNX"),
    ".gguf": "is read by llama.cpp and vLLM: start `llama-server` or `vllm serve` with it, and use the runner "
    "`openai-server`, docs/howto/queue-before-a-server.md",
    ".onnx": "is read by the runner `onnx`",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownNetwork:
    """The constructors of a known network."""

    #: Makes the network from the bytes of its published file.
    read: Callable[[bytes], Network]
    #: Makes the network without weights.
    new: Callable[[], Network]
    #: Imports what both need.
    imports: Callable[[], object]


def _known(model: Model, name: object) -> KnownNetwork:
    known, file = NETWORKS.get(str(name)), Path(model.source)
    if name is None and file.suffix.lower() in _OTHERS:
        raise ModelUnavailable(f"model {model.name!r}: {file.name} {_OTHERS[file.suffix.lower()]}")
    if known is None:
        wrong = "`options.network` is missing" if name is None else f"there is no network {name!r}"
        raise ModelUnavailable(f"model {model.name!r}: {wrong}; known networks: {', '.join(NETWORKS)}")
    return known


def _filled(model: Model, known: KnownNetwork) -> Network:
    network, path = known.new(), Path(model.source) / WEIGHTS
    try:
        network.module.load_state_dict(load_file(path))
    except OSError as error:
        raise _lacks_weights(model) from error
    except SafetensorError as error:
        raise ModelUnavailable(f"the file {WEIGHTS} of model {model.name!r} is damaged: {error}") from error
    except RuntimeError as error:
        raise ModelUnavailable(f"the file {WEIGHTS} of model {model.name!r} has another network's weights") from error
    return network


def _lacks_weights(model: Model) -> ModelUnavailable:
    return ModelUnavailable(f"model {model.name!r} lacks the file {WEIGHTS}")


def _csmask() -> Any:
    with requires("demo"):
        from penstock.workers.engine.torch import csmask
    return csmask


def _read_csmask(weights: bytes) -> Network:
    network: Network = _csmask().load_csmask(weights)
    return network


def _new_csmask() -> Network:
    csmask = _csmask()
    network: Network = csmask.network_of(csmask.CsmaskUNet())
    return network


#: Known networks, by the name in a model's options.
NETWORKS: Mapping[str, KnownNetwork] = MappingProxyType(
    {"csmask-unet": KnownNetwork(_read_csmask, _new_csmask, _csmask)}
)
