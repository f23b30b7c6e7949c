"""An engine whose network doubles its image, in float32; values of 13 kill it, as an error in a forward pass does."""

import multiprocessing
import signal
from collections.abc import Sequence
from typing import Any

import torch

from vllm.engine.arg_utils import EngineArgs
from vllm.outputs import PoolingOutput, PoolingRequestOutput
from vllm.pooling_params import PoolingParams
from vllm.v1.engine.exceptions import EngineDeadError


class LLM:
    #: Arguments of each engine that was started, and the sizes of all batches.
    started: list[dict[str, Any]] = []  # noqa: RUF012
    batches: list[int] = []  # noqa: RUF012

    def __init__(self, **arguments: Any) -> None:
        self.model_config = EngineArgs(**arguments).create_engine_config().model_config
        self.started.append(arguments)
        if arguments.get("hang"):  # as vLLM does, it waits for the process of its engine
            core = multiprocessing.get_context("spawn").Process(target=signal.pause, daemon=True)
            core.start()
            core.join()
            raise RuntimeError("Engine core initialization failed")
        self.llm_engine = self.engine_core = self
        self.dead = False

    def shutdown(self, timeout: float | None = None) -> None:
        self.dead = True

    def encode(
        self, prompts: Sequence[Any], pooling_params: Sequence[PoolingParams], *, pooling_task: str, use_tqdm: bool
    ) -> list[PoolingRequestOutput]:
        if self.dead:
            raise EngineDeadError
        self.batches.append(len(prompts))
        return [self._answer(*asked, pooling_task) for asked in zip(prompts, pooling_params, strict=True)]

    def _answer(self, prompt: Any, params: PoolingParams, task: str) -> PoolingRequestOutput:
        tokens = prompt["prompt_token_ids"]
        if task == "embed":
            return PoolingRequestOutput("0", PoolingOutput(torch.tensor(tokens) / 10), tokens, 0, True)
        image = prompt["multi_modal_data"]["image"]["pixel_values"]
        if image.dtype != self.model_config.dtype or (image == 13).any():
            self.dead = True
            raise EngineDeadError
        factor = (params.extra_kwargs or {}).get("factor", 2)
        return PoolingRequestOutput("0", PoolingOutput(image.float() * factor), tokens, 0, True)
