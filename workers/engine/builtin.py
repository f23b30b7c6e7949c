"""The built-in runners, as the entry points of `penstock.runners` name them.

A runner's libraries are imported when its first model is checked or loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.catalogue.functions import with_signature
from penstock.models import Model
from penstock.processors.io_signature import OTHERS, SAME, IOSignature, Offers
from penstock.processors.openai.options import EngineOptions
from penstock.workers.engine.base import HUB_FILES, Hosting, RunnerSpec
from penstock.workers.engine.memory import CONTEXT_BYTES, files_bytes
from penstock.workers.engine.transformers import signatures as transformers
from penstock.workers.engine.weights import locate, requires

#: The ends of paths of weights in a directory of diffusers that are not read: the same weights in another precision.
_NOT_READ = re.compile(r"/safety_checker/[^/]*$|\.(fp16|bf16|non_ema)(-[^/]*)?\.safetensors$")
#: Files that are fetched beside the network of runner `onnx`: its repositories hold one network in many precisions.
_ONNX_FILES = ("*.json", "*.txt")


def _spec(module: str, name: str, extra: str = "worker", **fields: Any) -> RunnerSpec:
    """Return the spec of `load_NAME` and `check_NAME` of a module, which needs the packages of an extra."""
    fields = {"check": _later(module, f"check_{name}", extra), "imports": lambda _model: _find(module, extra), **fields}
    return RunnerSpec(_later(module, f"load_{name}", extra), **fields)


def _later(module: str, function: str, extra: str = "worker") -> Callable[[Model], Any]:
    """Return a function of a module, which is imported with the first call."""
    return lambda model: getattr(_find(module, extra), function)(model)


def _find(module: str, extra: str) -> ModuleType:
    with requires(extra):
        if extra == "terratorch" and find_spec(extra) is None:  # importing it takes many seconds
            raise ModuleNotFoundError(name=extra)
        return import_module(f"penstock.workers.engine.{module}")


def _diffusers_bytes(model: Model) -> int:
    """Return the size of the weights of all parts, each a folder of the directory."""
    try:
        files = [file for file in Path(model.source).glob("*/*.safetensors") if not _NOT_READ.search(file.as_posix())]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0


def _function_bytes(model: Model) -> int:
    """Return the bytes of a CUDA context for a function on a GPU: what else it takes is known when it is loaded."""
    return CONTEXT_BYTES if model.device == "cuda" else 0


def _onnx_files(model: Model) -> Sequence[str]:
    table = model.options.get("onnx", {})
    file = str(table.get("file", "model.onnx")) if isinstance(table, Mapping) else "model.onnx"
    return (*_ONNX_FILES, file, f"{file}_data*", f"{file}.data")


def _is_served_by_vllm(model: Model) -> bool:
    return model.processor in EngineOptions.TASKS


def _of_vllm(what: str) -> Callable[[Model], Any]:
    """Return a function for models that vLLM serves, and for those that it computes inside Penstock's process."""
    served, inside = _later("vllm.generation", f"{what}_generation"), _later("vllm.runner", f"{what}_pooling")
    return lambda model: served(model) if _is_served_by_vllm(model) else inside(model)


def _vllm_bytes(model: Model) -> int:
    """Return the size of the weights, or what vLLM's server reserves."""
    reserved = _later("vllm.generation", "expected_bytes")
    return reserved(model) if _is_served_by_vllm(model) else files_bytes(model)


_TILES = {"pixels": "float32 (bands, H, W)"}
_MAPPED = {"probability": "float32 (classes, H, W)"}
_COORDINATES = {"temporal_coords": "float32 (dates, 2)", "location_coords": "float32 (2)"}
#: A network whose files name its arrays.
_ANY_NETWORK = IOSignature(prompt={OTHERS: "array"}, output={OTHERS: "array"})

_DRAWN = IOSignature(
    prompt={"task": "text", **dict.fromkeys(("width", "height", "steps", "seed"), "number")},
    optional={
        **dict.fromkeys(("guidance_scale", "true_cfg_scale", "strength", "label", "previews"), "number"),
        **dict.fromkeys(("prompt", "negative_prompt"), "text"),
        "image": "uint8 (H, W, 3)",
        "mask": "uint8 (H, W)",
    },
    output={"image": "uint8 (H, W, channels)"},
)
_CALL = IOSignature(
    prompt={"call": "object", "places": "list"}, optional={OTHERS: "array"},
    output={"value": "object", "places": "list"},
)  # fmt: skip
#: Functions of a scene's tiles, by processor.
_TILED = {
    "raster-segmentation": (IOSignature(prompt=_TILES, output=_MAPPED),),
    "raster-regression": (IOSignature(prompt=_TILES, output={"values": "float32 (quantities, H, W)"}),),
    "raster-embedding": (IOSignature(prompt=_TILES, output={"embedding": "float32 (dimensions)"}),),
    "raster-detection": (
        IOSignature(
            prompt=_TILES,
            output={"boxes": "float32 (objects, 4)", "scores": "float32 (objects)", "labels": "int64 (objects)"},
        ),
    ),
}
_FAKES = {
    "echo": (IOSignature(prompt={OTHERS: "any"}, output={OTHERS: SAME}),),
    "probability": (IOSignature(prompt={"pixels": "array (bands, H, W)"}, optional={OTHERS: "any"}, output=_MAPPED),),
    "logits": (
        IOSignature(
            prompt={"pixels": "array (bands, H, W)"}, optional={OTHERS: "any"}, output={"logits": "float32 (classes)"}
        ),
    ),
}
_TREES = {
    "pixels": (IOSignature(prompt=_TILES, output=_MAPPED),),
    "tables": (IOSignature(prompt={"features": "float32 (rows, columns)"}, output={"values": "float32 (rows, ...)"}),),
}
_PAGE = IOSignature(
    prompt={"image": "uint8 (H, W, 3)"},
    output={"boxes": "float32 (lines, 4, 2)", "scores": "float32 (lines)", "texts": "list"},
)
_SERVED = IOSignature(
    prompt={"route": "text", "body": "object", "media": "list"},
    optional={"medium_*": "uint8 (bytes)"},
    output={"answer": "object"},
)
_SCENES = {
    "segmentation": (IOSignature(prompt=_TILES, optional=_COORDINATES, output=_MAPPED),),
    "regression": (IOSignature(prompt=_TILES, optional=_COORDINATES, output={"values": "float32 (quantities, H, W)"}),),
}
_VECTORS = IOSignature(
    prompt=_TILES, optional=_COORDINATES, output={"embedding": "float32 (dimensions, rows, columns)"}
)
_VLLM = {
    "requests": (_SERVED,),
    "texts": (IOSignature(prompt={"input_ids": "int64 (tokens)"}, output={"embedding": "float32 (dimensions)"}),),
    "plugins": (
        IOSignature(
            prompt={"prompt": "object", "params": "object"},
            optional={"prompt.*": "array", "params.*": "array"},
            output={
                "output": "object", "output.*": "array", "prompt_token_ids": "list", "num_cached_tokens": "number",
            },
        ),
    ),
}  # fmt: skip


def _of_fake(model: Model) -> Offers:
    kind = str(model.options.get("answer", "probability")) if model.options.get("classes") else "echo"
    return {kind: _FAKES[kind]}


def _of_onnx(model: Model) -> Offers | None:
    from penstock.workers.engine.onnx.signatures import signature_of

    found = signature_of(model)
    return None if found is None else {"network": (found,)}


def _of_torch(model: Model) -> Offers | None:
    """Return the signature of a program's directory, or that of the known networks."""
    from penstock.workers.engine.torch.description import describe

    root = locate(model)
    described = describe(root) if root.is_dir() else None
    if described is None or described.network is not None:
        return {"network": (IOSignature(prompt=_TILES, output=_MAPPED),)}
    return {"program": (described.signature,)}


def _of_function(model: Model) -> Offers:
    kind = model.processor if model.processor in _TILED else "function"
    return {kind: _TILED.get(kind, (_CALL,))}


DIFFUSERS = _spec(
    "diffusers.calls", "diffusers", "diffusers", expected_bytes=_diffusers_bytes, io_signatures={"images": (_DRAWN,)}
)
FAKE = _spec(
    "fake", "fake", check=None, loads_safely=True, io_signatures=_FAKES, io_signatures_of=_of_fake,
    hosting=lambda model: Hosting() if model.options.get("steps", 1) == 1 else None,
)  # fmt: skip
FUNCTION = _spec(
    "function.runner", "function", expected_bytes=_function_bytes, loads_safely=True,
    io_signatures={"function": (_CALL,)}, io_signatures_of=_of_function, starts_program=lambda _model: True,
    with_environment=with_signature,
)  # fmt: skip
LIGHTGBM = _spec("lightgbm_runner", "lightgbm", "lightgbm", check=None, io_signatures=_TREES)
OLMOEARTH = _spec(
    "olmoearth", "olmoearth", "olmoearth", hub_files=lambda _model: (*HUB_FILES, "weights.pth"),
    io_signatures={"embedding": (_VECTORS,)}, hosting=lambda _model: Hosting(),
)  # fmt: skip
ONNX = _spec(
    "onnx.runner", "onnx", "onnx", expected_bytes=partial(files_bytes, pattern="*.onnx*"), hub_files=_onnx_files,
    io_signatures={"network": (_ANY_NETWORK.model_copy(update={"optional": {"size": "list"}}),)},
    io_signatures_of=_of_onnx, hosting=lambda _model: Hosting(),
)  # fmt: skip
OPENAI_SERVER = _spec(
    "openai_server.runner", "server", expected_bytes=lambda _model: 0, served=True, loads_safely=True,
    io_signatures={"requests": (_SERVED,)},
)  # fmt: skip
RAPIDOCR = _spec(
    "onnx.ocr", "ocr", "documents", expected_bytes=partial(files_bytes, pattern="*.onnx*"),
    io_signatures={"pages": (_PAGE,)},
)  # fmt: skip
#: Published checkpoints are files of torch's own format, some with the config of TerraTorch's command line.
TERRATORCH = _spec(
    "terratorch.runner", "terratorch", "terratorch",
    hub_files=lambda _model: (*HUB_FILES, "*.pt", "*.pth", "*.ckpt", "*.yaml", "*.yml"),
    io_signatures={**_SCENES, "embedding": (_VECTORS,)}, checks_apart=True, hosting=lambda _model: Hosting(),
)  # fmt: skip
TORCH = _spec(
    "torch.runner", "torch", imports=_later("torch.runner", "import_network"),
    io_signatures={"network": (_ANY_NETWORK,)}, io_signatures_of=_of_torch, hosting=lambda _model: Hosting(),
)  # fmt: skip
TRANSFORMERS = _spec(
    "transformers.loading", "transformers", "transformers",
    imports=_later("transformers.loading", "import_network", "transformers"), io_signatures=transformers.OFFERS,
    io_signatures_of=transformers.offers_of, hosting=transformers.hosting_of,
)  # fmt: skip
VLLM = RunnerSpec(
    _of_vllm("load"), _of_vllm("check"), expected_bytes=_vllm_bytes, loads_safely=True, io_signatures=_VLLM,
    checks_apart=True, starts_program=_is_served_by_vllm,
    hosting=lambda model: None if _is_served_by_vllm(model) else Hosting(of_any_shape="input_ids", network=True),
)  # fmt: skip
