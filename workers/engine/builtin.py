"""The built-in runners, as the entry points of `penstock.runners` name them.

A runner's libraries are imported when its first model is checked or loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.catalogue.functions import with_signature
from penstock.models import Model
from penstock.processors.io_signature import OTHERS, SAME, IOSignature, Offers
from penstock.processors.openai.options import EngineOptions
from penstock.workers.engine.base import HUB_FILES, Hosting, Runner, RunnerCheck, RunnerFactory, RunnerSpec
from penstock.workers.engine.memory import CONTEXT_BYTES, files_bytes
from penstock.workers.engine.transformers import signatures as transformers
from penstock.workers.engine.weights import locate, requires

#: The ends of paths of weights in a directory of diffusers that are not read: the same weights in another precision.
_NOT_READ = re.compile(r"/safety_checker/[^/]*$|\.(fp16|bf16|non_ema)(-[^/]*)?\.safetensors$")
#: Files that are fetched beside the network of runner `onnx`: its repositories hold one network in many precisions.
_ONNX_FILES = ("*.json", "*.txt")


def _spec(functions: Callable[[], tuple[RunnerFactory, RunnerCheck]], **fields: Any) -> RunnerSpec:
    fields = {"imports": lambda _model: functions(), **fields}
    return RunnerSpec(lambda model: functions()[0](model), lambda model: functions()[1](model), **fields)


def _diffusers() -> tuple[RunnerFactory, RunnerCheck]:
    with requires("diffusers"):
        from penstock.workers.engine.diffusers.runner import check_diffusers, load_diffusers
    return load_diffusers, check_diffusers


def _diffusers_bytes(model: Model) -> int:
    """Return the size of the weights of all parts, each a folder of the directory."""
    try:
        files = [file for file in Path(model.source).glob("*/*.safetensors") if not _NOT_READ.search(file.as_posix())]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0


def _load_fake(model: Model) -> Runner:
    with requires("worker"):
        from penstock.workers.engine.fake import load_fake
    return load_fake(model)


def _function() -> tuple[RunnerFactory, RunnerCheck]:
    with requires("worker"):
        from penstock.workers.engine.function.runner import check_function, load_function
    return load_function, check_function


def _function_bytes(model: Model) -> int:
    """Return the bytes of a CUDA context for a function on a GPU: what else it takes is known when it is loaded."""
    return CONTEXT_BYTES if model.device == "cuda" else 0


def _load_lightgbm(model: Model) -> Runner:
    with requires("lightgbm"):
        from penstock.workers.engine.lightgbm_runner import load_lightgbm
    return load_lightgbm(model)


def _onnx() -> tuple[RunnerFactory, RunnerCheck]:
    with requires("onnx"):
        from penstock.workers.engine.onnx.runner import check_onnx, load_onnx
    return load_onnx, check_onnx


def _onnx_files(model: Model) -> Sequence[str]:
    table = model.options.get("onnx", {})
    file = str(table.get("file", "model.onnx")) if isinstance(table, Mapping) else "model.onnx"
    return (*_ONNX_FILES, file, f"{file}_data*", f"{file}.data")


def _openai_server() -> tuple[RunnerFactory, RunnerCheck]:
    with requires("worker"):
        from penstock.workers.engine.openai_server.runner import check_server, load_server
    return load_server, check_server


def _rapidocr() -> tuple[RunnerFactory, RunnerCheck]:
    with requires("documents"):
        from penstock.workers.engine.onnx.ocr import check_ocr, load_ocr
    return load_ocr, check_ocr


def _terratorch() -> tuple[RunnerFactory, RunnerCheck]:
    with requires("terratorch"):
        if find_spec("terratorch") is None:  # importing it takes many seconds
            raise ModuleNotFoundError(name="terratorch")
    from penstock.workers.engine.terratorch.runner import check_terratorch, load_terratorch

    return load_terratorch, check_terratorch


def _torch() -> tuple[RunnerFactory, RunnerCheck]:
    with requires("worker"):
        from penstock.workers.engine.torch.runner import check_torch, load_torch
    return load_torch, check_torch


def _import_torch(model: Model) -> None:
    with requires("worker"):
        from penstock.workers.engine.torch.runner import import_network
    import_network(model)


def _import_transformers(model: Model) -> None:
    with requires("transformers"):
        from penstock.workers.engine.transformers.loading import import_network
    import_network(model)


def _transformers() -> tuple[RunnerFactory, RunnerCheck]:
    with requires("transformers"):
        from penstock.workers.engine.transformers.loading import check_transformers, load_transformers
    return load_transformers, check_transformers


def _vllm_bytes(model: Model) -> int:
    """Return the size of the weights, or what vLLM's server reserves."""
    if not _is_served_by_vllm(model):
        return files_bytes(model)
    from penstock.workers.engine.vllm.generation import expected_bytes

    return expected_bytes(model)


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


DIFFUSERS = _spec(_diffusers, expected_bytes=_diffusers_bytes, io_signatures={"images": (_DRAWN,)})
FAKE = RunnerSpec(
    _load_fake, loads_safely=True, io_signatures=_FAKES, io_signatures_of=_of_fake,
    hosting=lambda model: Hosting() if model.options.get("steps", 1) == 1 else None,
)  # fmt: skip
FUNCTION = _spec(
    _function,
    expected_bytes=_function_bytes,
    loads_safely=True,
    io_signatures={"function": (_CALL,), **_TILED},
    io_signatures_of=_of_function,
    starts_program=lambda _model: True,
    with_environment=with_signature,
)
LIGHTGBM = RunnerSpec(_load_lightgbm, io_signatures=_TREES)
ONNX = _spec(
    _onnx, expected_bytes=partial(files_bytes, pattern="*.onnx*"), hub_files=_onnx_files,
    io_signatures={"network": (_ANY_NETWORK.model_copy(update={"optional": {"size": "list"}}),)},
    io_signatures_of=_of_onnx, hosting=lambda _model: Hosting(),
)  # fmt: skip
OPENAI_SERVER = _spec(
    _openai_server, expected_bytes=lambda _model: 0, served=True, loads_safely=True,
    io_signatures={"requests": (_SERVED,)},
)  # fmt: skip
RAPIDOCR = _spec(_rapidocr, expected_bytes=partial(files_bytes, pattern="*.onnx*"), io_signatures={"pages": (_PAGE,)})
#: Published checkpoints are files of torch's own format, some with the config of TerraTorch's command line.
TERRATORCH = _spec(
    _terratorch, hub_files=lambda _model: (*HUB_FILES, "*.pt", "*.pth", "*.ckpt", "*.yaml", "*.yml"),
    io_signatures={**_SCENES, "embedding": (_VECTORS,)}, checks_apart=True, hosting=lambda _model: Hosting(),
)  # fmt: skip
TORCH = _spec(
    _torch, imports=_import_torch, io_signatures={"network": (_ANY_NETWORK,)}, io_signatures_of=_of_torch,
    hosting=lambda _model: Hosting(),
)  # fmt: skip
TRANSFORMERS = _spec(
    _transformers, imports=_import_transformers, io_signatures=transformers.OFFERS,
    io_signatures_of=transformers.offers_of, hosting=transformers.hosting_of,
)  # fmt: skip


def load_vllm(model: Model) -> Runner:
    """Start vLLM for the model; raise `ModelUnavailable` with vLLM's error."""
    if _is_served_by_vllm(model):
        from penstock.workers.engine.vllm.generation import load_generation

        return load_generation(model)
    with requires("worker"):
        from penstock.workers.engine.vllm.runner import load_pooling
    return load_pooling(model)


def check_vllm(model: Model) -> None:
    """Check a model without its weights; raise `ModelUnavailable`."""
    if _is_served_by_vllm(model):
        from penstock.workers.engine.vllm.generation import check_generation

        check_generation(model)
        return
    with requires("worker"):
        from penstock.workers.engine.vllm.runner import check_pooling
    check_pooling(model)


def _is_served_by_vllm(model: Model) -> bool:
    return model.processor in EngineOptions.TASKS


VLLM = RunnerSpec(
    load_vllm, check_vllm, expected_bytes=_vllm_bytes, loads_safely=True, io_signatures=_VLLM, checks_apart=True,
    starts_program=_is_served_by_vllm,
    hosting=lambda model: None if _is_served_by_vllm(model) else Hosting(of_any_shape="input_ids", network=True),
)  # fmt: skip
