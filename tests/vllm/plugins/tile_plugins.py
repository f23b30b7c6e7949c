"""IO-processor plugins for a tiny Prithvi, as their authors write them: they know of vLLM only.

Both return the mean score of each class in each tile of an array (tiles, bands, height, width) in a NumPy file.
"""

from typing import Any

import numpy as np
import torch
from vllm.entrypoints.pooling.pooling.protocol import IOProcessorResponse
from vllm.plugins.io_processors.interface import IOProcessor
from vllm.pooling_params import PoolingParams


def prompts_of(path: str) -> list[dict[str, Any]]:
    tiles = torch.from_numpy(np.load(path)).to(torch.float16)
    images = [{"pixel_values": tile, "location_coords": torch.zeros(1, 2, dtype=torch.float16)} for tile in tiles]
    return [{"prompt_token_ids": [1], "multi_modal_data": {"image": image}} for image in images]


def means_of(model_output: Any) -> list[list[float]]:
    scores = [output.outputs.data.float() for output in model_output]
    return [score.reshape(score.shape[-3:]).mean(dim=(1, 2)).tolist() for score in scores]


class TileScores(IOProcessor):
    """A plugin of the form that vLLM documents now."""

    def __init__(self, vllm_config: Any, renderer: Any) -> None:
        super().__init__(vllm_config, renderer)
        self.bands = vllm_config.model_config.hf_config.to_dict()["pretrained_cfg"]["input"]["data"]["pixel_values"]

    def parse_data(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict) or "tiles" not in data:
            raise ValueError("tiles are missing")
        return data

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        return prompts_of(prompt["tiles"])

    def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        return {"bands": self.bands["shape"][0], "means": means_of(model_output)}


class OlderTileScores(IOProcessor):
    """The same in the form of vLLM 0.11: one argument, `parse_request`, and a response of its own."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)  # type: ignore[call-arg]
        config = self.vllm_config.model_config.hf_config.to_dict()
        self.bands = config["pretrained_cfg"]["input"]["data"]["pixel_values"]

    def parse_request(self, request: Any) -> dict[str, Any]:
        if not isinstance(request, dict) or "tiles" not in request:
            raise ValueError("tiles are missing")
        return request

    def validate_or_generate_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return params or PoolingParams()

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        return prompts_of(prompt["tiles"])

    def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        return {"request_id": request_id, "bands": self.bands["shape"][0], "means": means_of(model_output)}

    def output_to_response(self, plugin_output: Any) -> IOProcessorResponse[Any]:
        request_id = plugin_output.pop("request_id")
        return IOProcessorResponse(request_id=request_id, data=plugin_output)


def current() -> str:
    return "tile_plugins.TileScores"


def older() -> str:
    return "tile_plugins.OlderTileScores"
