"""What a model's record says of its plugin: its name, its fields, and the arguments of vLLM's engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from penstock.errors import ConfigError
from penstock.models import Model
from penstock.processors.directory import read_config

#: What `options` may hold. `engine` and `task` are the runner's, and the plugin sees the configuration they make.
KNOWN = ("engine", "fields", "fixed", "media", "plugin", "sample", "task")


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a plugin's data come from whom."""

    #: What names a medium: fetched by the service, and the plugin gets the path of the local file. Required.
    media: tuple[str, ...] = ()
    #: What else a request may have, with the JSON Schema of each. All may be left out.
    free: Mapping[str, Any] = field(default_factory=dict)
    #: What the plugin always gets, and no request may set.
    fixed: Mapping[str, Any] = field(default_factory=dict)


_INDICES = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0},
    "minItems": 1,
    "description": "Bands of the file in the model's order, counted from 0; without it the first six.",
}

#: The plugins whose fields need no words in a record.
FIELDS: Mapping[str, Fields] = MappingProxyType(
    {
        "terratorch_segmentation": Fields(
            ("data",), {"indices": _INDICES}, {"data_format": "path", "out_data_format": "b64_json"}
        )
    }
)


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """A record's options, checked."""

    plugin: str
    fields: Fields
    #: A request for the warm-up, its media as paths, relative ones from the model's source on. None = there is none.
    sample: Mapping[str, Any] | None

    @classmethod
    def of(cls, model: Model) -> PluginOptions:
        """Read them; raise `ConfigError` for what is missing, unknown or not meant so."""
        options = model.options
        if unknown := sorted(set(options) - set(KNOWN)):
            raise _wrong(model, f"unknown options: {', '.join(unknown)}; known are: {', '.join(KNOWN)}")
        plugin = options.get("plugin")
        if not isinstance(plugin, str) or not plugin:
            raise _wrong(model, "`options.plugin` names the vLLM plugin to run, such as terratorch_segmentation")
        fields = _fields(model, FIELDS.get(plugin, Fields()))
        sample = options.get("sample")
        if sample is not None and (not isinstance(sample, Mapping) or set(fields.media) - set(sample)):
            raise _wrong(model, f"`options.sample` is a table that has at least {', '.join(fields.media)}")
        return cls(plugin, fields, sample)


def engine_arguments(model: Model) -> dict[str, Any]:
    """Return the arguments of vLLM's engine: what follows from the record and its directory, and `options.engine`.

    The plugin's configuration and the engine's own are made of the same ones. Raises `ConfigError`.
    """
    chosen = model.options.get("engine", {})
    if not isinstance(chosen, Mapping):
        raise _wrong(model, '`options.engine` is a table of vLLM\'s engine arguments, such as dtype = "float16"')
    common = {"model": model.source, "runner": "pooling", "dtype": model.dtype, "max_num_seqs": model.max_batch}
    return {**common, **(_TERRATORCH if "pretrained_cfg" in read_config(model) else {}), **chosen}


#: What TerraTorch's models need: they have no tokens, no attention, and nothing to compile.
_TERRATORCH = {
    "model_impl": "terratorch", "skip_tokenizer_init": True, "enforce_eager": True, "enable_mm_embeds": True,
}  # fmt: skip


def _fields(model: Model, preset: Fields) -> Fields:
    media = model.options.get("media", preset.media)
    free, fixed = model.options.get("fields", preset.free), model.options.get("fixed", preset.fixed)
    if not isinstance(media, list | tuple) or not all(isinstance(name, str) for name in media):
        raise _wrong(model, "`options.media` is a list of names: the fields of the plugin's data that name a medium")
    if not isinstance(free, Mapping) or not isinstance(fixed, Mapping):
        raise _wrong(model, "`options.fields` is a table of JSON Schemas, and `options.fixed` one of values")
    if twice := ({*media} & {*free}) | ({*media} & {*fixed}) | ({*free} & {*fixed}):
        raise _wrong(model, f"stand twice among `media`, `fields` and `fixed`: {', '.join(sorted(twice))}")
    try:
        Draft202012Validator.check_schema({"properties": dict(free)})
    except SchemaError as error:
        raise _wrong(model, f"`options.fields` holds no JSON Schema: {error.message}") from error
    return Fields(tuple(media), free, fixed)


def _wrong(model: Model, what: str) -> ConfigError:
    return ConfigError(f"model {model.name!r}: {what}")
