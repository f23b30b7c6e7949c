"""The processor `vllm-plugin`: an IO processor that was written for vLLM, unmodified.

The job's input is the plugin's data, as clients of vLLM's `/pooling` send it, and the plugin's two halves run here as
they do there: `parse_data`, `pre_process` and `merge_pooling_params`, then `post_process`. In between the prompts go
to the engine with those of all other jobs.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, RootModel, TypeAdapter

from penstock.errors import ConfigError, InvalidInput, MediaUnreadable, PenstockError, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import read_config
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vllm.crossing import put_together, taken_apart
from penstock.processors.vllm.files import with_artifacts
from penstock.processors.vllm.library import Library, Vllm, plugin_class, said
from penstock.processors.vllm.options import Fields, PluginOptions
from penstock.processors.vllm.request import request_for

#: Of vLLM's `PoolingParams`: how the engine hands its answers over is not the plugin's to say.
_ENGINES_OWN = frozenset({"output_kind"})


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    #: Under which the plugin keeps what it needs itself.
    request_id: str


class VllmPlugin:
    """Runs one plugin of vLLM's for one model."""

    #: Of a plugin without fields; each model's own follows from its record.
    request: type[BaseModel] = request_for(Fields())
    outputs = (OUTPUTS.spec("answer", "the result: what the plugin answers, its files as artifacts", kind="json"),)

    def __init__(self, model: Model, library: Library | None = None) -> None:
        """Make the plugin as vLLM does; raise `ModelUnavailable` or `ConfigError` for what keeps it from working."""
        self._model, self._library = model, library or Vllm()
        self._options = PluginOptions.of(model)
        self.request = request_for(self._options.fields)
        surroundings = self._library.surroundings(model)
        self._plugin: Any = plugin_class(self._options.plugin)(surroundings.config, surroundings.renderer)

    def pre_process(self, request: RootModel[dict[str, Any]], media: Media) -> Prepared[Context]:
        """Return the prompts that the plugin makes; it makes all of them at once."""
        context = Context(f"penstock-{uuid.uuid4().hex}")
        paths = {name: str(media.path(request.root[name])) for name in self._options.fields.media}
        data = {**request.root, **paths, **self._options.fields.fixed}
        with self._refusals({path: request.root[name] for name, path in paths.items()}):
            parsed = self._parsed(data)
            made = self._call("pre_process", prompt=parsed, request_id=context.request_id)
            params = plain_params(self._plugin.merge_pooling_params())
        prompts = as_list(made)
        self._check_count(len(prompts))
        return Prepared(_prompts(prompts, params), len(prompts), len(prompts), context)

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"data": ...}`, the plugin's answer, in which `{"artifact": name}` stands for each file."""
        answers = [self._answer(context, number, output) for number, output in enumerate(final_outputs(outputs))]
        with self._failures("post_process"):
            made = self._call("post_process", model_output=answers, request_id=context.request_id)
            answer = TypeAdapter(Any).dump_python(made, mode="json")
        if isinstance(answer, dict) and answer.get("request_id") == context.request_id:
            del answer["request_id"]  # the job's own id is the one to go by
        return Result(data={"data": with_artifacts(answer, sink)})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return the record's sample, or a scene of noise for TerraTorch's models; raise `ConfigError` without any."""
        sample = self._options.sample
        if sample is None:
            return self._scene(limits, folder)
        files = {name: Path(self._model.source, str(sample[name])) for name in self._options.fields.media}
        made = {f"media://{name}": Path(shutil.copy(path, folder / name)) for name, path in files.items()}
        return Dummy({**sample, **{name: f"media://{name}" for name in files}}, made)

    def _parsed(self, data: Mapping[str, Any]) -> Any:
        """Have the plugin look at its data. Up to vLLM 0.16 the method had another name."""
        try:
            return self._plugin.parse_data(data)
        except NotImplementedError:
            if not hasattr(self._plugin, "parse_request"):
                raise
            return self._plugin.parse_request(data)

    def _call(self, half: str, **arguments: Any) -> Any:
        """Call one half as vLLM does; where the plugin has only the asynchronous form of it, that one."""
        try:
            return getattr(self._plugin, half)(**arguments)
        except NotImplementedError:
            later = getattr(self._plugin, f"{half}_async", None)
            if not inspect.iscoroutinefunction(later):
                raise
        if half == "post_process":
            arguments = {**arguments, "model_output": _numbered(arguments["model_output"])}
        return asyncio.run(later(**arguments))

    def _answer(self, context: Context, number: int, output: Output) -> Any:
        data, plain = put_together("output", output.data), output.data
        tokens, cached = plain.get("prompt_token_ids", []), plain.get("num_cached_tokens", 0)
        return self._library.output(f"{context.request_id}-{number}", data, tokens, cached)

    def _check_count(self, count: int) -> None:
        most = self._model.limits.max_tiles
        if most is not None and count > most:
            raise InvalidInput(f"The plugin makes {count} prompts of this input; this model takes at most {most}.")

    @contextmanager
    def _refusals(self, references: Mapping[str, str]) -> Iterator[None]:
        """Tell what the plugin refuses from what it fails at, by the errors that vLLM answers with 400."""
        try:
            yield
        except PenstockError:
            raise
        except OSError as error:
            raise MediaUnreadable(f"The plugin cannot read its input: {_named(error, references)}.") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidInput(f"The plugin refuses its input: {_named(error, references)}.") from error
        except Exception as error:
            raise self._failed("pre_process", _named(error, references)) from error

    @contextmanager
    def _failures(self, half: str) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            raise self._failed(half, said(error)) from error

    def _failed(self, half: str, why: str) -> ProcessorFailed:
        return ProcessorFailed(f"the vLLM plugin {self._options.plugin!r} failed in {half}: {why}")

    def _scene(self, limits: Limits, folder: Path) -> Dummy:
        """Return a scene of noise that fills a batch: what TerraTorch's segmentation plugin takes."""
        config = read_config(self._model).get("pretrained_cfg")
        if config is None or self._options.fields.media != ("data",):
            raise ConfigError(
                f"model {self._model.name!r}: nobody knows what its plugin takes: give `options.sample`, a request "
                "with files of the model's directory, or set `warm_up = false`"
            )
        bands, side_px = _shape(config)
        side_px *= math.isqrt(max(1, self._model.max_batch - 1)) + (self._model.max_batch > 1)
        if limits.max_pixels is not None:
            side_px = min(side_px, math.isqrt(limits.max_pixels))
        _write_noise(folder / "scene.tif", bands, side_px)
        return Dummy({"data": "media://dummy"}, {"media://dummy": folder / "scene.tif"})


def as_list(made: Any) -> list[Any]:
    """Return the prompts that a plugin made as a list: one alone is a text, an object, or a list of token ids."""
    if isinstance(made, str | bytes | dict) or (made and all(isinstance(token, int) for token in made)):
        return [made]
    return list(made)


def plain_params(params: Any) -> dict[str, Any]:
    """Return what is set in vLLM's `PoolingParams` as plain data; the task is `plugin` where nothing is said of it."""
    names = getattr(params, "__struct_fields__", None) or vars(params)
    given = {name: getattr(params, name) for name in names if name not in _ENGINES_OWN}
    return {"task": "plugin", **{name: value for name, value in given.items() if value is not None}}


def _prompts(prompts: list[Any], params: Mapping[str, Any]) -> Iterator[Prompt]:
    """Yield prompts and forget each: the plugin made them all, they need not stay."""
    prompts.reverse()
    while prompts:
        yield Prompt({**taken_apart("prompt", prompts.pop()), **taken_apart("params", dict(params))})


async def _numbered(answers: Sequence[Any]) -> Any:
    for numbered in enumerate(answers):
        yield numbered


def _shape(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bands of a TerraTorch model and the side of its tiles."""
    try:
        data = config["input"]["data"]
        shape = data[config["input"].get("target") or next(iter(data))]["shape"]
        tiles = config["model"]["init_args"].get("tiled_inference_parameters", {})
        return int(shape[0]), int(tiles.get("h_crop") or tiles.get("crop") or shape[-1])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, StopIteration) as error:
        raise ConfigError(f"`pretrained_cfg` of config.json does not say what is taken: {said(error)}") from error


def _write_noise(path: Path, bands: int, side_px: int) -> None:
    from penstock.processors.geo.options import Band
    from penstock.processors.geo.sample import write_noise

    write_noise(path, [Band(name=f"b{number}", mean=0.2, std=0.1) for number in range(1, bands + 1)], side_px)


def _named(error: BaseException, references: Mapping[str, str]) -> str:
    """Return what a plugin said, with the media as the job calls them: their paths are nobody's business."""
    text = said(error)
    for path, reference in references.items():
        text = text.replace(path, reference)
    return text.rstrip(".")
