"""The runner `vllm` for plugins and embeddings of tokens: vLLM's own engine, in a process of its own beside the worker.

Prompts are those of the processor `vllm-plugin` (prompts of its plugins with pooling parameters), or token ids, which
become embeddings. vLLM composes its batches itself: the prompts of one step are submitted together.

vLLM's engine does not survive an error in a network's forward pass. So prompts are checked before, and a dead engine is
started anew at the next step.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.directory import read_config
from penstock.processors.vllm.library import error_line, vllm
from penstock.processors.vllm.options import engine_arguments, start_timeout_s
from penstock.processors.vllm.serialization import deserialize, serialize
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.vllm.orphans import MARK

#: Values of `options.task` for prompts of token ids: vLLM's ways to make one vector of a text.
TASKS = ("embed", "classify")
#: Seconds that an engine may take to end.
_CLOSE_S = 10.0
#: Seconds between checks of a working engine, and seconds to wait for the last answer of a dead one.
_LOOK_S, _LAST_WORDS_S = 1.0, 2.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PoolingPrompt:
    """A prompt in vLLM's format, with its parameters."""

    prompt: Any
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tensors:
    """The input tensors of a TerraTorch model by name with their shapes, from its `config.json`."""

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, model: Model) -> Tensors | None:
        """Return a model's input tensors; None for models of other kinds. Raises `ModelUnavailable`."""
        config = read_config(model).get("pretrained_cfg")
        if config is None:
            return None
        try:
            return cls({name: tuple(map(int, row["shape"])) for name, row in config["input"]["data"].items()})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelUnavailable(
                f"`pretrained_cfg.input` of config.json is not usable: {error_line(error)}"
            ) from error

    def checked(self, prompt: Any, dtype: torch.dtype) -> Any:
        """Return the prompt with its tensors in the engine's dtype; raise for wrong names and shapes.

        Plugins choose a dtype without knowing the engine's (TerraTorch's: always float16).
        """
        given = prompt.get("multi_modal_data", {}).get("image") if isinstance(prompt, dict) else None
        if not isinstance(given, dict) or set(given) != set(self.shapes):
            raise ProcessorFailed(f"the model takes the tensors {', '.join(sorted(self.shapes))} as its image")
        tensors = {name: self._checked(name, tensor, dtype) for name, tensor in given.items()}
        return {**prompt, "multi_modal_data": {**prompt["multi_modal_data"], "image": tensors}}

    def _checked(self, name: str, tensor: Any, dtype: torch.dtype) -> torch.Tensor:
        shape = self.shapes[name]
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != len(shape):
            raise ProcessorFailed(f"the model takes {name!r} as a tensor of {len(shape)} dimensions")
        if tensor.ndim > 2 and tensor.shape[0] != shape[0]:
            raise InvalidInput(f"the model takes {shape[0]} bands as {name!r}, the prompt has {tensor.shape[0]}")
        return tensor.to(dtype) if tensor.is_floating_point() else tensor


@dataclass(frozen=True, slots=True)
class Started:
    """A running engine and its processes."""

    llm: Any
    processes: Sequence[Any]

    def wait_for(self, work: Callable[[], Any]) -> Any:
        """Do work and return its result; raise `EngineDied` when a process of the engine ends before.

        vLLM's client does not notice that an engine was killed while it waits for an answer: its thread stays.
        """
        return _result_of(work, lambda: all(process.is_alive() for process in self.processes))


class EngineDied(Exception):
    """The engine's process ended before it answered."""


@dataclass(slots=True)
class VllmRunner:
    """A model in vLLM's engine."""

    arguments: Mapping[str, Any]
    max_batch: int
    memory_bytes: int
    #: Seconds that the engine may take to start.
    start_timeout_s: float
    #: vLLM's task for token ids.
    task: str
    #: The engine's precision.
    dtype: torch.dtype
    tensors: Tensors | None
    #: None after the engine died, until the next step.
    engine: Started | None = field(default=None)

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shapes, or one key for all texts: prompts of equal keys are submitted together."""
        return "texts" if "input_ids" in prompt.data else shapes_of(prompt)

    def admit(self, prompt: Prompt) -> PoolingPrompt:
        """Return the prompt in vLLM's format."""
        if "input_ids" in prompt.data:
            return PoolingPrompt({"prompt_token_ids": _tokens(prompt.data["input_ids"])}, {"task": self.task})
        if "prompt" not in prompt.data:
            raise ProcessorFailed("the model takes `input_ids`, or what the processor vllm-plugin makes")
        asked, params = deserialize("prompt", prompt.data), deserialize("params", prompt.data)
        if self.tensors is not None:
            asked = self.tensors.checked(asked, self.dtype)
        return PoolingPrompt(asked, params)

    def step(self, states: Sequence[PoolingPrompt]) -> Sequence[Done]:
        """Submit the prompts and wait for all answers."""
        dead = vllm("v1.engine.exceptions").EngineDeadError
        if self.engine is None:
            self.engine = _started(self.arguments, self.start_timeout_s)
        try:
            return self._encoded(self.engine, states)
        except (dead, EngineDied) as error:
            log.warning("vllm.engine_died", prompts=len(states))
            self.close()
            raise ProcessorFailed("vLLM's engine died of this prompt, or of another prompt of its batch") from error

    def close(self) -> None:
        """End the engine's process."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.llm.llm_engine.engine_core.shutdown(timeout=_CLOSE_S)

    def _encoded(self, engine: Started, states: Sequence[PoolingPrompt]) -> Sequence[Done]:
        pooling_params = vllm("pooling_params").PoolingParams
        answers = engine.wait_for(
            lambda: engine.llm.encode(
                [state.prompt for state in states],
                pooling_params=[pooling_params(**state.params) for state in states],
                pooling_task=states[0].params["task"],
                use_tqdm=False,
            )
        )
        return [Done(self._output(state, answer)) for state, answer in zip(states, answers, strict=True)]

    def _output(self, state: PoolingPrompt, answer: Any) -> Output:
        data = answer.outputs.data
        if isinstance(state.prompt, dict) and state.params == {"task": self.task}:
            return Output({"embedding": data.float().cpu().numpy()})
        counts = {"prompt_token_ids": list(answer.prompt_token_ids), "num_cached_tokens": answer.num_cached_tokens}
        return Output({**serialize("output", data), **counts})


def load_pooling(model: Model) -> Runner:
    """Start vLLM's engine for the model; raise `ModelUnavailable` with vLLM's error."""
    arguments, task = check_pooling(model)
    weights = sum(path.stat().st_size for path in Path(model.source).glob("*.safetensors"))
    timeout_s = start_timeout_s(model)
    tensors, engine = Tensors.of(model), _started(arguments, timeout_s)
    dtype = engine.llm.model_config.dtype
    return VllmRunner(arguments, model.max_batch, weights, timeout_s, task, dtype, tensors, engine)


def check_pooling(model: Model) -> tuple[dict[str, Any], str]:
    """Return the engine's arguments and the task of token ids, without loading anything; raise `ModelUnavailable`."""
    vllm("version")
    if not Path(model.source).is_dir():
        raise ModelUnavailable(f"the source of model {model.name!r} is no directory: {model.source}")
    task = model.options.get("task", TASKS[0])
    if task not in TASKS:
        raise ModelUnavailable(f"model {model.name!r}: `options.task` is one of {', '.join(TASKS)}")
    start_timeout_s(model)
    # The plugin runs as a processor: the engine itself must not load it.
    return {**engine_arguments(model), "hf_overrides": {"io_processor_plugin": None}}, str(task)


def _started(arguments: Mapping[str, Any], timeout_s: float) -> Started:
    llm = vllm("entrypoints.llm").LLM
    os.environ[MARK] = "1"
    before, ends_s = set(multiprocessing.active_children()), time.monotonic() + timeout_s

    def processes() -> Sequence[Any]:
        return [child for child in multiprocessing.active_children() if child not in before]

    try:
        made = _result_of(lambda: llm(**arguments, disable_log_stats=True), lambda: time.monotonic() < ends_s)
        return Started(made, processes())
    except EngineDied as error:
        for process in processes():
            process.kill()
        raise ModelUnavailable(
            f"vLLM's engine did not start within {timeout_s:g} s (`options.start_timeout_s`) and was ended"
        ) from error
    except Exception as error:
        raise ModelUnavailable(f"vLLM's engine does not start: {error_line(error)}") from error


def _result_of(work: Callable[[], Any], alive: Callable[[], bool]) -> Any:
    """Do work in a thread and return its result; raise `EngineDied` if there is none when `alive` returns False."""
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:
            done.put((None, error))

    threading.Thread(target=run, name="vllm-step", daemon=True).start()
    answer: tuple[Any, BaseException | None] | None = None
    while answer is None:
        goes_on = alive()
        with suppress(queue.Empty):
            answer = done.get(timeout=_LOOK_S if goes_on else _LAST_WORDS_S)
        if answer is None and not goes_on:
            raise EngineDied
    result, error = answer
    if error is not None:
        raise error
    return result


def _tokens(ids: Any) -> list[int]:
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1 or not len(ids):
        raise ProcessorFailed("the model takes `input_ids`, an int64 array (tokens,) of at least one")
    return [int(token) for token in ids]
