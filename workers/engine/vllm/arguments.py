"""The arguments of `vllm serve` for a record with the runner `vllm`. Pure but for the check, which asks vLLM itself."""

from __future__ import annotations

import json
import wave
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.openai.image_embeddings import ImageEmbeddings
from penstock.processors.openai.kinds import kinds_of
from penstock.processors.openai.options import MEDIA_KINDS, EngineOptions
from penstock.processors.vllm.library import error_line, vllm
from penstock.workers.engine.vllm.weights_check import check_weights

#: Arguments of `vllm serve` beyond those of its engine: how chats become prompts, and answers become messages.
CHAT_ARGUMENTS = frozenset(
    {
        "chat_template", "chat_template_content_format", "default_chat_template_kwargs", "enable_auto_tool_choice",
        "enable_prompt_tokens_details", "exclude_tools_when_tool_choice_none", "return_tokens_as_token_ids",
        "tool_call_parser", "tool_parser_plugin", "tool_strict_level", "trust_request_chat_template",
    }
)  # fmt: skip
#: Arguments that the record sets elsewhere, and the names that it has there.
_ELSEWHERE = {
    "model": "source", "runner": "processor", "served_model_name": "the record's name", "lora_modules": "adapters",
}  # fmt: skip
#: A LoRA adapter's description in its folder.
_ADAPTER = "adapter_config.json"


def arguments_of(model: Model, options: EngineOptions, *, memory_share: float) -> dict[str, Any]:
    """Return vLLM's engine arguments; `memory_share` is the device's share that the engine reserves by default."""
    common = {
        "model": model.source, "runner": EngineOptions.TASKS[model.processor], "dtype": model.dtype,
        "max_num_seqs": options.concurrency, "gpu_memory_utilization": memory_share,
    }  # fmt: skip
    adapted = {"enable_lora": True, "max_loras": len(options.adapters)} if options.adapters else {}
    return {**common, **adapted, **options.engine, **_limits(options)}


def _limits(options: EngineOptions) -> dict[str, Any]:
    """Return the argument that keeps vLLM from reserving memory for media that no request has."""
    most = {kind: number for kind, number in options.media.items() if kind != "file"}
    return {"limit_mm_per_prompt": {**most, **options.engine.get("limit_mm_per_prompt", {})}} if most else {}


def serve_words(arguments: Mapping[str, Any], adapters: Mapping[str, Path], *, name: str, socket: Path) -> list[str]:
    """Return the words after `vllm serve` that have these arguments, with the paths of adapters by their names."""
    given = {key: value for key, value in arguments.items() if key != "model"}
    words = [str(arguments["model"]), "--served-model-name", name, "--uds", str(socket)]
    words += ["--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"]
    words += [word for key, value in given.items() for word in _words(key, value)]
    if adapters:
        words += ["--lora-modules", *(f"{adapter}={path}" for adapter, path in adapters.items())]
    return words


def adapters_of(model: Model, options: EngineOptions) -> dict[str, Path]:
    """Return the folders of a model's adapters; raise `ModelUnavailable` for a folder that is none."""
    found = {name: Path(model.source) / folder for name, folder in options.adapters.items()}
    for name, path in found.items():
        if not (path / _ADAPTER).is_file():
            raise ModelUnavailable(f"model {model.name!r}: the adapter {name!r} lacks the file {path / _ADAPTER}")
    return found


def check_arguments(model: Model, options: EngineOptions, *, memory_share: float) -> None:
    """Have vLLM check the arguments and the model's configuration and names of weights; raise `ModelUnavailable`."""
    engine = vllm("engine.arg_utils").AsyncEngineArgs
    check_names(model, options.engine, {field.name for field in fields(engine)} | CHAT_ARGUMENTS)
    arguments = arguments_of(model, options, memory_share=memory_share)
    given = {name: value for name, value in arguments.items() if name not in CHAT_ARGUMENTS}
    try:
        whole = engine(**given).create_engine_config()
        config, taken = whole.model_config, kinds_taken(whole.model_config)
    except Exception as error:
        raise ModelUnavailable(f"vLLM rejects model {model.name!r}: {error_line(error)}") from error
    if model.processor == "openai-chat":
        check_kinds(model, kinds := kinds_of(model, options), taken)
        if "audio" in (taken if kinds is None else kinds):
            check_audio(model, config)
        check_embeddings(model, ImageEmbeddings.of(model, options), config)
    check_weights(model, whole)


def kinds_taken(config: Any) -> Collection[str]:
    """Return the kinds of media that vLLM takes for a model, by its `ModelConfig`."""
    if not config.is_multimodal_model:
        return ()
    limits = vllm("multimodal").MULTIMODAL_REGISTRY.get_processing_info(config).supported_mm_limits
    return [kind for kind, most in limits.items() if most != 0]


def check_audio(model: Model, config: Any) -> None:
    """Have vLLM read a second of silence; raise `ModelUnavailable` where a package for recordings is missing."""
    try:
        import_module("av")
        sound = vllm("multimodal.media").AudioMediaIO().load_bytes(_silence())
        vllm("multimodal").MULTIMODAL_REGISTRY.get_processing_info(config).parse_mm_data({"audio": [sound]})
    except (ImportError, OSError) as error:
        raise ModelUnavailable(
            f"vLLM cannot read recordings for model {model.name!r} here ({error_line(error)}): `pip install "
            f"'vllm[audio]'`, or set `options.media = {{ audio = 0 }}`"
        ) from error


def check_embeddings(model: Model, embeddings: ImageEmbeddings | None, config: Any) -> None:
    """Raise `ModelUnavailable` where vLLM's embeddings of images have another width than the model's description."""
    if embeddings is not None and embeddings.width != (width := config.get_inputs_embeds_size()):
        raise ModelUnavailable(
            f"vLLM takes embeddings of {width} numbers for model {model.name!r}, whose `config.json` says "
            f"{embeddings.width}: remove `options.engine.enable_mm_embeds`"
        )


def _silence() -> bytes:
    with BytesIO() as file:
        with wave.open(file, "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(8000)
            sound.writeframes(bytes(2 * 8000))
        return file.getvalue()


def check_kinds(model: Model, kinds: Collection[str] | None, taken: Collection[str]) -> None:
    """Raise `ModelUnavailable` for kinds of media that requests may have and vLLM does not take for the model."""
    if wrong := [kind for kind in kinds or () if kind not in taken]:
        right = [kind for kind in MEDIA_KINDS if kind in taken]
        none = ", ".join(f"{kind} = 0" for kind in wrong)
        raise ModelUnavailable(
            f"vLLM takes no {' and no '.join(wrong)} for model {model.name!r}, only {', '.join(['text', *right])}: set "
            f"`options.media = {{ {none} }}`"
        )


def check_names(model: Model, engine: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `ModelUnavailable` for names in `options.engine` that are not known, with the nearest one that is."""
    for name in engine:
        if name in _ELSEWHERE:
            raise ModelUnavailable(f"model {model.name!r}: options.engine.{name} is set by {_ELSEWHERE[name]}")
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ModelUnavailable(f"model {model.name!r}: vLLM has no engine argument {name!r}{hint}")


def _words(name: str, value: Any) -> Iterator[str]:
    """Yield the words of an argument as vLLM's command line takes it."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    elif value is not None:
        yield f"--{flag}"
        yield from map(_word, value) if isinstance(value, list | tuple) else (_word(value),)


def _word(value: Any) -> str:
    return json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)
