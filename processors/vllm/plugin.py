"""The processor `vllm-plugin`: runs an unmodified IO-processor plugin of vLLM.

The job's input is the plugin's data, as clients send it to vLLM's `/pooling`. The plugin's methods are called in the
same order as in vLLM: `parse_data`, `pre_process` and `merge_pooling_params`, then `post_process`. In between, the
engine computes the prompts in batches with those of other jobs.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import inspect
import math
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError

from penstock.errors import ConfigError, InvalidInput, MediaUnreadable, PenstockError, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import read_config
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vllm.library import Library, Vllm, error_line, plugin_class
from penstock.processors.vllm.older import answer_of, make_plugin, pooling_params_of
from penstock.processors.vllm.options import PluginFields, PluginOptions
from penstock.processors.vllm.request import request_for
from penstock.processors.vllm.serialization import deserialize, serialize

#: PluginFields of vLLM's `PoolingParams` that the engine sets, not the plugin.
_ENGINES_OWN = frozenset({"output_kind"})
#: Number of base64 characters that hold the longest of the first bytes.
_BEGINNING_CHARS = 12


class VllmPlugin:
    """The processor for one model's vLLM plugin."""

    #: Request of a plugin without fields; each instance has the request of its model's record.
    request: type[BaseModel] = request_for(PluginFields())
    outputs = (
        OUTPUTS.spec("answer", "the result: the answer of the plugin, with its files as artifacts", kind="json"),
    )

    #: A plugin's prompt with its pooling parameters, and its answer; arrays inside have names of their own.
    io_signatures = (
        IOSignature(
            prompt={"prompt": "object", "params": "object"},
            optional={"prompt.*": "array", "params.*": "array"},
            output={"output": "object"},
        ),
    )

    def __init__(self, model: Model, library: Library | None = None) -> None:
        """Make the plugin in the same way as vLLM; raise `ModelUnavailable` or `ConfigError` if this fails.

        A model with a warm-up must have a request for it, so that a check without vLLM's engine finds its lack, too.
        """
        self._model, self._library = model, library or Vllm()
        self._options = PluginOptions.of(model)
        self.request = request_for(self._options.fields)
        if model.warm_up:
            self._require_dummy()
        surroundings = self._library.surroundings(model)
        self._plugin: Any = make_plugin(plugin_class(self._options.plugin), surroundings.config, surroundings.renderer)

    def pre_process(self, request: RootModel[dict[str, Any]], media: Media) -> Prepared[str]:
        """Return the plugin's prompts; the plugin makes all of them at once."""
        request_id = f"penstock-{uuid.uuid4().hex}"
        paths = {name: str(media.path(request.root[name])) for name in self._options.fields.media}
        data = {**request.root, **paths, **self._options.fields.fixed}
        with self._refusals({path: request.root[name] for name, path in paths.items()}):
            parsed = self._parse(data)
            made = self._call("pre_process", prompt=parsed, request_id=request_id)
            params = plain_params(pooling_params_of(self._plugin))
        prompts = as_list(made)
        self._check_count(len(prompts))
        return Prepared(_prompts(prompts, params), len(prompts), len(prompts), request_id)

    def post_process(self, outputs: Iterator[Output], context: str, sink: ArtifactSink) -> Result:
        """Return `{"data": ...}`, the plugin's answer with `{"artifact": name}` instead of each file."""
        answers = [self._answer(context, number, output) for number, output in enumerate(final_outputs(outputs))]
        with self._failures("post_process"):
            made = self._call("post_process", model_output=answers, request_id=context)
            answer = TypeAdapter(Any).dump_python(answer_of(self._plugin, made), mode="json")
        if isinstance(answer, dict) and answer.get("request_id") == context:
            del answer["request_id"]  # users know the job's id only
        return Result(data={"data": with_artifacts(answer, sink)})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return the record's sample, or a scene of noise for TerraTorch's models; raise `ConfigError` for others."""
        self._require_dummy()
        sample = self._options.sample
        if sample is None:
            return self._scene(limits, folder)
        files = self._sample_files(sample)
        made = {f"media://{name}": Path(shutil.copy(path, folder / name)) for name, path in files.items()}
        return Dummy({**sample, **{name: f"media://{name}" for name in files}}, made)

    def _require_dummy(self) -> None:
        """Raise `ConfigError` if the warm-up has no request: neither a valid sample nor a scene of TerraTorch's."""
        sample, fields = self._options.sample, self._options.fields
        if sample is not None:
            self._check_sample(sample)
            return
        config = read_config(self._model).get("pretrained_cfg")
        if config is None or fields.media != ("data",):
            example = ", ".join(f'{name} = "a file"' for name in fields.media)
            raise ConfigError(
                f"model {self._model.name!r}: the warm-up has no request for the plugin {self._options.plugin!r}: set "
                f"`sample` in options, such as `sample = {{ {example or '...'} }}` with files of the model's "
                "directory, or set `warm_up = false` in the record"
            )
        _shape(config)

    def _check_sample(self, sample: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for a sample that is no request of the model, or whose files are missing."""
        try:
            self.request.model_validate({**sample, **dict.fromkeys(self._options.fields.media, "media://file")})
        except ValidationError as error:
            found = error.errors(include_url=False)[0]["msg"]
            raise ConfigError(f"model {self._model.name!r}: `options.sample` is no request of it: {found}") from error
        for name, path in self._sample_files(sample).items():
            if not path.is_file():
                raise ConfigError(
                    f"model {self._model.name!r}: `options.sample` names a missing file as {name}: {path}"
                )

    def _sample_files(self, sample: Mapping[str, Any]) -> dict[str, Path]:
        return {name: Path(self._model.source, str(sample[name])) for name in self._options.fields.media}

    def _parse(self, data: Mapping[str, Any]) -> Any:
        """Call the plugin's `parse_data`, whose name was `parse_request` up to vLLM 0.16."""
        try:
            return self._plugin.parse_data(data)
        except NotImplementedError:  # by `IOProcessor.parse_data`, if the plugin has only the older name
            if not hasattr(self._plugin, "parse_request"):
                raise
            return self._plugin.parse_request(data)

    def _call(self, method: str, **arguments: Any) -> Any:
        """Call `pre_process` or `post_process`, or its asynchronous form if the plugin has only that."""
        try:
            return getattr(self._plugin, method)(**arguments)
        except NotImplementedError:  # by the plugin's own method, if it has only the asynchronous one
            later = getattr(self._plugin, f"{method}_async", None)
            if not inspect.iscoroutinefunction(later):
                raise
        if method == "post_process":
            arguments = {**arguments, "model_output": _numbered(arguments["model_output"])}
        return asyncio.run(later(**arguments))

    def _answer(self, request_id: str, number: int, output: Output) -> Any:
        data, plain = deserialize("output", output.data), output.data
        tokens, cached = plain.get("prompt_token_ids", []), plain.get("num_cached_tokens", 0)
        return self._library.output(f"{request_id}-{number}", data, tokens, cached)

    def _check_count(self, count: int) -> None:
        most = self._model.limits.max_tiles
        if most is not None and count > most:
            raise InvalidInput(f"The plugin makes {count} prompts of this input; this model accepts at most {most}.")

    @contextmanager
    def _refusals(self, references: Mapping[str, str]) -> Iterator[None]:
        """Translate a plugin's errors: errors that vLLM answers with 400 are errors of the input."""
        try:
            yield
        except PenstockError:
            raise
        except OSError as error:
            raise MediaUnreadable(f"The plugin cannot read its input: {_named(error, references)}.") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidInput(f"The plugin rejects its input: {_named(error, references)}.") from error
        except Exception as error:
            raise self._failed("pre_process", _named(error, references)) from error

    @contextmanager
    def _failures(self, method: str) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            raise self._failed(method, error_line(error)) from error

    def _failed(self, method: str, why: str) -> ProcessorFailed:
        return ProcessorFailed(f"the vLLM plugin {self._options.plugin!r} failed in {method}: {why}")

    def _scene(self, limits: Limits, folder: Path) -> Dummy:
        """Return a scene of noise that fills a batch, for TerraTorch's segmentation plugin."""
        bands, side_px = _shape(read_config(self._model)["pretrained_cfg"])
        side_px *= math.isqrt(max(1, self._model.max_batch - 1)) + (self._model.max_batch > 1)
        if limits.max_pixels is not None:
            side_px = min(side_px, math.isqrt(limits.max_pixels))
        _write_noise(folder / "scene.tif", bands, side_px)
        return Dummy({"data": "media://dummy"}, {"media://dummy": folder / "scene.tif"})


def as_list(made: Any) -> list[Any]:
    """Return a plugin's prompts as a list; a single prompt is a text, an object, or a list of token ids."""
    if isinstance(made, str | bytes | dict) or (made and all(isinstance(token, int) for token in made)):
        return [made]
    return list(made)


def plain_params(params: Any) -> dict[str, Any]:
    """Return the fields of vLLM's `PoolingParams` that are set; the default task is `plugin`."""
    names = getattr(params, "__struct_fields__", None) or vars(params)
    given = {name: getattr(params, name) for name in names if name not in _ENGINES_OWN}
    return {"task": "plugin", **{name: value for name, value in given.items() if value is not None}}


def _prompts(prompts: list[Any], params: Mapping[str, Any]) -> Iterator[Prompt]:
    """Yield the prompts and remove each from the list, to free its memory."""
    prompts.reverse()
    while prompts:
        yield Prompt({**serialize("prompt", prompts.pop()), **serialize("params", dict(params))})


async def _numbered(answers: Sequence[Any]) -> Any:
    for numbered in enumerate(answers):
        yield numbered


def _shape(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of bands of a TerraTorch model and the side of its tiles."""
    try:
        data = config["input"]["data"]
        shape = data[config["input"].get("target") or next(iter(data))]["shape"]
        tiles = config["model"]["init_args"].get("tiled_inference_parameters", {})
        return int(shape[0]), int(tiles.get("h_crop") or tiles.get("crop") or shape[-1])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, StopIteration) as error:
        raise ConfigError(
            f"`pretrained_cfg` of config.json does not describe the input: {error_line(error)}"
        ) from error


def _write_noise(path: Path, bands: int, side_px: int) -> None:
    from penstock.processors.geo.options import Band
    from penstock.processors.geo.sample import write_noise

    write_noise(path, [Band(name=f"b{number}", mean=0.2, std=0.1) for number in range(1, bands + 1)], side_px)


def _named(error: BaseException, references: Mapping[str, str]) -> str:
    """Return an error's text, with media references instead of local paths, which users must not see."""
    text = error_line(error)
    for path, reference in references.items():
        text = text.replace(path, reference)
    return text.rstrip(".")


#: First bytes of file formats, with suffix and media type. Other texts stay in the answer unchanged.
_KINDS = (
    (b"II*\0", ".tif", "image/tiff"),
    (b"MM\0*", ".tif", "image/tiff"),
    (b"II+\0", ".tif", "image/tiff"),
    (b"\x89PNG\r\n\x1a\n", ".png", "image/png"),
    (b"\xff\xd8\xff", ".jpg", "image/jpeg"),
    (b"\x93NUMPY", ".npy", "application/octet-stream"),
    (b"\x89HDF\r\n\x1a\n", ".h5", "application/x-hdf5"),
)
_UNFIT = re.compile(r"[^0-9A-Za-z_-]+")


def with_artifacts(answer: Any, sink: ArtifactSink, at: Sequence[str] = ()) -> Any:
    """Add the files in an answer to the sink, and return the answer with `{"artifact": name}` instead of each file.

    A file is named after its path in the answer: `data.tif`, `tiles-0.png`.
    """
    match answer:
        case dict():
            return {key: with_artifacts(value, sink, (*at, key)) for key, value in answer.items()}
        case list():
            return [with_artifacts(value, sink, (*at, str(index))) for index, value in enumerate(answer)]
        case str() if (found := _file(answer)) is not None:
            data, suffix, media_type = found
            name = (_UNFIT.sub("-", "-".join(at)).strip("-") or "answer") + suffix
            path = sink.path(name)
            path.write_bytes(data)
            sink.add(name, path, media_type=media_type)
            return {"artifact": name}
        case _:
            return answer


def _file(text: str) -> tuple[bytes, str, str] | None:
    try:
        beginning = base64.b64decode(text[:_BEGINNING_CHARS], validate=True)
        kind = next((kind for kind in _KINDS if beginning.startswith(kind[0])), None)
        return None if kind is None else (base64.b64decode(text, validate=True), *kind[1:])
    except (binascii.Error, ValueError):
        return None
