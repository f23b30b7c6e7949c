"""IO-processor plugins as their authors write them: they know of vLLM only."""

import base64
import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import rasterio
import torch
from PIL import Image
from vllm.plugins.io_processors.interface import IOProcessor
from vllm.pooling_params import PoolingParams


class Tally(IOProcessor):
    """Adds up the numbers of a JSON file, a prompt each, and keeps what it needs of a request in itself."""

    def __init__(self, vllm_config: Any, renderer: Any) -> None:
        super().__init__(vllm_config, renderer)
        self.name = vllm_config.model_config.hf_config.to_dict()["name"]
        self.kept: dict[str, dict[str, Any]] = {}

    def parse_data(self, data: Any) -> dict[str, Any]:
        if type(data) is not dict or data["format"] != "path":
            raise ValueError("a path is meant")
        return data

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return PoolingParams(task="plugin", extra_kwargs={"factor": 3})

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        numbers = json.loads(Path(prompt["file"]).read_text())
        if not all(isinstance(number, int | float) for number in numbers):
            raise KeyError("not a number")
        self.kept[request_id or "offline"] = {"times": prompt.get("times", 1), "count": len(numbers)}
        return [
            {
                "prompt_token_ids": [1],
                "multi_modal_data": {"image": {"pixel_values": torch.full((1, 2, 2), float(n), dtype=torch.float16)}},
            }
            for n in numbers
        ]

    def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        kept = self.kept.pop(request_id or "offline")
        assert len(model_output) == kept["count"]
        total = sum(float(output.outputs.data.mean()) for output in model_output) * kept["times"]
        if total > 1_000:
            raise RuntimeError("it does not fit")
        image = BytesIO()
        Image.new("L", (2, 2), int(total)).save(image, "PNG")
        encoded = base64.b64encode(image.getvalue()).decode()
        return {"name": self.name, "total": total, "images": [encoded], "request_id": request_id}


class Later(Tally):
    """The same, asynchronously only."""

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def pre_process_async(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        return Tally.pre_process(self, prompt, request_id)

    def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def post_process_async(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        return Tally.post_process(self, [item async for _, item in model_output], request_id)


class Old(Tally):
    """The same with the method's name up to vLLM 0.16."""

    def parse_data(self, data: Any) -> dict[str, Any]:
        raise NotImplementedError

    def parse_request(self, request: Any) -> dict[str, Any]:
        return Tally.parse_data(self, request)


@dataclass
class IOProcessorResponse:
    """The response that plugins of the first form make, as `vllm.entrypoints` has it."""

    data: Any
    request_id: str | None = None


class First(IOProcessor):
    """The same in the interface of vLLM 0.11: one argument, `parse_request`, and a response of its own."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)  # type: ignore[call-arg]
        self.name = self.vllm_config.model_config.hf_config.to_dict()["name"]
        self.kept: dict[str, dict[str, Any]] = {}

    def parse_request(self, request: Any) -> dict[str, Any]:
        return Tally.parse_data(self, request)  # type: ignore[arg-type]

    def validate_or_generate_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return PoolingParams(extra_kwargs={"factor": 3})

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        return Tally.pre_process(self, prompt, request_id)  # type: ignore[arg-type]

    def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        return IOProcessorResponse(Tally.post_process(self, model_output, request_id), request_id)  # type: ignore[arg-type]

    def output_to_response(self, plugin_output: Any) -> IOProcessorResponse:
        return IOProcessorResponse(plugin_output.data, plugin_output.request_id)


class Crashing(IOProcessor):
    """Ends its process with a signal."""

    def parse_data(self, data: object) -> Any:
        return data

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        import faulthandler

        faulthandler._sigsegv()

    def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        return None


class Choosy(IOProcessor):
    """Does not take the model."""

    def __init__(self, vllm_config: Any, renderer: Any) -> None:
        raise ValueError("The model config does not contain the datamodule configuration")

    pre_process = post_process = IOProcessor.parse_data  # type: ignore[assignment]


def tally() -> str:
    return "double_plugins.Tally"


def later() -> str:
    return "double_plugins.Later"


def old() -> str:
    return "double_plugins.Old"


def first() -> str:
    return "double_plugins.First"


def crashing() -> str:
    return "double_plugins.Crashing"


def choosy() -> str:
    return "double_plugins.Choosy"


def elsewhere() -> None:
    return None


def broken() -> str:
    raise RuntimeError("no licence found")


class Scenes(IOProcessor):
    """A double of TerraTorch's segmentation plugin on one tile: the band with the greatest number wins."""

    def __init__(self, vllm_config: Any, renderer: Any) -> None:
        super().__init__(vllm_config, renderer)
        self.profiles: dict[str | None, Any] = {}

    def parse_data(self, data: Any) -> dict[str, Any]:
        if (data["data_format"], data["out_data_format"]) != ("path", "b64_json"):
            raise ValueError("unknown formats")
        return data

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        with rasterio.open(prompt["data"]) as scene:
            pixels, self.profiles[request_id] = scene.read(), dict(scene.profile)
        tensor = torch.from_numpy(pixels[prompt.get("indices") or list(range(6))] / 1e4).to(torch.float16)
        return [{"prompt_token_ids": [1], "multi_modal_data": {"image": {"pixel_values": tensor}}}]

    def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        profile = {**self.profiles.pop(request_id), "count": 1, "dtype": "uint8", "compress": "lzw", "nodata": None}
        profile.pop("predictor", None)
        with rasterio.MemoryFile() as memory:
            with memory.open(**profile) as made:
                made.write(model_output[0].outputs.data.argmax(0).numpy().astype("uint8"), 1)
            encoded = base64.b64encode(memory.read()).decode()
        return {"data_format": "b64_json", "data": encoded, "request_id": request_id}


def scenes() -> str:
    return "double_plugins.Scenes"
