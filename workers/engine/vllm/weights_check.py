"""The check that vLLM finds the weights of its network in a model's files, without their numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import structlog
import torch
from safetensors import safe_open

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.vllm.library import error_line, vllm

#: Errors by which vLLM's networks refuse names and shapes of weights.
_REFUSALS = (AssertionError, KeyError, RuntimeError, ValueError)
#: The word in errors of torch that say that something has no numbers, as for a network that reads them: then only the
#: start can tell.
_WITHOUT_NUMBERS = "meta tensor"
#: Formats of weights that are files in safetensors, by vLLM's names.
_FORMATS = ("auto", "safetensors")

log = structlog.get_logger(__name__)


def check_weights(model: Model, config: Any) -> None:
    """Have vLLM fill its network with weights that have names, shapes and no numbers; raise `ModelUnavailable`.

    `config` is vLLM's configuration of the model. Other files than safetensors are not looked at.
    """
    files = sorted(Path(model.source).glob("*.safetensors"))
    if not files or config.load_config.load_format not in _FORMATS or config.model_config.quantization is not None:
        return
    try:
        with _alone(config), torch.device("meta"):
            loader = vllm("model_executor.model_loader").get_model_loader(config.load_config)
            network = loader.create_model(config, config.model_config)
    except Exception as error:
        log.info("vllm.weights_not_checked", model=model.name, error=error_line(error))
        return
    try:
        with _alone(config):
            found = network.load_weights(_outlines(files))
    except Exception as error:
        if isinstance(error, _REFUSALS) and _WITHOUT_NUMBERS not in str(error):
            raise ModelUnavailable(f"vLLM rejects the weights of model {model.name!r}: {error_line(error)}") from error
        log.info("vllm.weights_not_checked", model=model.name, error=error_line(error))
        return
    # vLLM itself starts without weights of most layers, and answers nonsense.
    lacking = sorted({name for name, _ in network.named_parameters()} - found) if found is not None else []
    if lacking:
        raise ModelUnavailable(
            f"the files of model {model.name!r} lack {len(lacking)} of the weights of vLLM's network, the first is "
            f"{lacking[0]!r}"
        )


def _outlines(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names of weights, with tensors that have their shapes and no numbers."""
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (it is no mapping)
                yield name, torch.empty(file.get_slice(name).get_shape(), device="meta")


@contextmanager
def _alone(config: Any) -> Iterator[None]:
    """Let vLLM build networks in this process, as the only one of its group."""
    with vllm("config").set_current_vllm_config(config):
        _join()
        yield


@cache
def _join() -> None:
    state = vllm("distributed.parallel_state")
    with tempfile.TemporaryDirectory(prefix="vllm-") as folder:
        state.init_distributed_environment(1, 0, f"file://{folder}/meeting", 0, "gloo")
        state.initialize_model_parallel(1, 1)
