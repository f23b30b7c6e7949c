from abc import ABC, abstractmethod
from typing import Any

from vllm.config import VllmConfig
from vllm.pooling_params import PoolingParams
from vllm.renderers import BaseRenderer


class IOProcessor(ABC):
    def __init__(self, vllm_config: VllmConfig, renderer: BaseRenderer) -> None:
        super().__init__()
        self.vllm_config = vllm_config

    def parse_data(self, data: object) -> Any:
        raise NotImplementedError

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return params or PoolingParams(task="plugin")

    @abstractmethod
    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def pre_process_async(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        return self.pre_process(prompt, request_id, **kwargs)

    @abstractmethod
    def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def post_process_async(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        collected = sorted([(i, item) async for i, item in model_output], key=lambda output: output[0])
        return self.post_process([item for _, item in collected], request_id=request_id, **kwargs)
