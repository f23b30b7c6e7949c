"""The runner `vllm` for OpenAI's requests: chats, completions and embeddings, computed by `vllm serve`.

A request and its answer are those of the runner `openai-server`, so records move between the two. Here the worker
starts the server, counts its memory, and ends it with the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.openai.options import EngineOptions, ServerOptions
from penstock.workers.engine.base import Runner
from penstock.workers.engine.function.process import interpreter_of
from penstock.workers.engine.memory import device_memory, files_bytes
from penstock.workers.engine.openai_server.runner import ServerRunner
from penstock.workers.engine.remote_requests import RemoteRequests
from penstock.workers.engine.vllm.arguments import adapters_of, arguments_of, check_arguments, serve_words
from penstock.workers.engine.vllm.served import END_S, VllmServer, executable

#: Present where the kernel has an NVIDIA driver.
_CUDA = Path("/dev/nvidiactl")


def load_generation(model: Model) -> Runner:
    """Start vLLM's server for the model; raise `ModelUnavailable` with vLLM's error."""
    options, command = options_of(model), executable(model)
    share, _ = _device_memory()
    arguments, adapters = arguments_of(model, options, memory_share=share), adapters_of(model, options)
    server = VllmServer(
        command,
        lambda socket: serve_words(arguments, adapters, name=model.name, socket=socket),
        ServerOptions(
            model=model.name, concurrency=options.concurrency, timeout_s=options.timeout_s, retries=0
        ),
        start_timeout_s=options.start_timeout_s, python=interpreter_of(model),
    )  # fmt: skip
    requests = RemoteRequests(
        server.running, server.ask, places=options.concurrency, name=f"vllm-{model.name}", close_s=3 * END_S
    )
    return ServerRunner(
        model.name, options.concurrency, requests, options.adapters, memory_bytes=reserved_bytes(model, options)
    )


def check_generation(model: Model) -> None:
    """Check the record, and have vLLM check its arguments and the model's configuration; raise `ModelUnavailable`."""
    options = options_of(model)
    executable(model)
    adapters_of(model, options)
    check_arguments(model, options, memory_share=_device_memory()[0])


def options_of(model: Model) -> EngineOptions:
    """Return the options of a model in a directory; raise `ModelUnavailable`."""
    options = EngineOptions.of(model)
    if not Path(model.source).is_dir():
        raise ModelUnavailable(f"the source of model {model.name!r} is no directory: {model.source}")
    return options


def expected_bytes(model: Model) -> int:
    """Return the bytes that the model's engine will reserve; 0 if the record is wrong: its check says why."""
    try:
        return reserved_bytes(model, EngineOptions.of(model))
    except ModelUnavailable:
        return 0


def reserved_bytes(model: Model, options: EngineOptions) -> int:
    """Return the bytes of one device that vLLM's engine takes for weights, activations and cache, at most."""
    share, total_bytes = _device_memory()
    engine: Mapping[str, Any] = options.engine
    if (cache_bytes := engine.get("kv_cache_memory_bytes")) is not None:  # vLLM reserves no share then
        return files_bytes(model) // int(engine.get("tensor_parallel_size", 1)) + int(cache_bytes)
    return int(float(engine.get("gpu_memory_utilization", share)) * total_bytes)


def _device_memory() -> tuple[float, int]:
    """Return the share of the device's memory that models may take, and the bytes of that memory."""
    if _CUDA.exists():
        import torch  # noqa: F401  (so that the GPU's memory is counted)
    return device_memory()
