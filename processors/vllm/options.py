"""The `options` of a model with a vLLM plugin: the plugin's name, its fields, and vLLM's engine arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from penstock.errors import ConfigError
from penstock.models import Model
from penstock.processors.directory import read_config
from penstock.processors.openai.options import START_TIMEOUT_S

#: Known options. The runner reads `engine`, `start_timeout_s` and `task`; the plugin gets the resulting configuration.
KNOWN = ("engine", "fields", "fixed", "media", "plugin", "sample", "start_timeout_s", "task")
#: Engine arguments of TerraTorch's models, which have no tokens and no attention and cannot be compiled.
TERRATORCH = {
    "model_impl": "terratorch", "skip_tokenizer_init": True, "enforce_eager": True, "enable_mm_embeds": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PluginFields:
    """The fields of a plugin's data, by the source of their values."""

    #: Required fields with a media reference: the service fetches the file, and the plugin receives its local path.
    media: tuple[str, ...] = ()
    #: Optional fields of a request, with the JSON Schema of each.
    free: Mapping[str, Any] = field(default_factory=dict)
    #: Fixed values for the plugin, which a request cannot set.
    fixed: Mapping[str, Any] = field(default_factory=dict)


_INDICES = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0},
    "minItems": 1,
    "description": "Bands of the file in the model's order, counted from 0; default: the first six.",
}

#: Preset fields of known plugins, which a record need not describe.
FIELDS: Mapping[str, PluginFields] = MappingProxyType(
    {
        "terratorch_segmentation": PluginFields(
            ("data",), {"indices": _INDICES}, {"data_format": "path", "out_data_format": "b64_json"}
        )
    }
)


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """A record's validated options."""

    plugin: str
    fields: PluginFields
    #: Request for the warm-up, with media as paths, relative to the model's source; None = no sample.
    sample: Mapping[str, Any] | None

    @classmethod
    def of(cls, model: Model) -> PluginOptions:
        """Read a model's options; raise `ConfigError` for missing, unknown or invalid ones."""
        options = model.options
        if unknown := sorted(set(options) - set(KNOWN)):
            raise _wrong(model, f"unknown options: {', '.join(unknown)}; known: {', '.join(KNOWN)}")
        plugin = options.get("plugin")
        if not isinstance(plugin, str) or not plugin:
            raise _wrong(model, "`options.plugin` must name a vLLM plugin, such as terratorch_segmentation")
        fields = _fields(model, FIELDS.get(plugin, PluginFields()))
        sample = options.get("sample")
        if sample is not None and (not isinstance(sample, Mapping) or set(fields.media) - set(sample)):
            raise _wrong(model, f"`options.sample` must be a table with at least {', '.join(fields.media)}")
        return cls(plugin, fields, sample)


def engine_arguments(model: Model) -> dict[str, Any]:
    """Return vLLM's engine arguments from the record, the model's directory and `options.engine`.

    The plugin and the engine receive the same arguments. Raises `ConfigError` for invalid ones.
    """
    chosen = model.options.get("engine", {})
    if not isinstance(chosen, Mapping):
        raise _wrong(model, '`options.engine` must be a table of vLLM\'s engine arguments, such as dtype = "float16"')
    common = {"model": model.source, "runner": "pooling", "dtype": model.dtype, "max_num_seqs": model.max_batch}
    return {**common, **(TERRATORCH if "pretrained_cfg" in read_config(model) else {}), **chosen}


def start_timeout_s(model: Model) -> float:
    """Return the seconds that a model's engine may take to start; raise `ConfigError`."""
    chosen = model.options.get("start_timeout_s", START_TIMEOUT_S)
    if isinstance(chosen, bool) or not isinstance(chosen, int | float) or not 0 < chosen < math.inf:
        raise _wrong(model, "`options.start_timeout_s` must be a number of seconds above 0")
    return float(chosen)


def _fields(model: Model, preset: PluginFields) -> PluginFields:
    media = model.options.get("media", preset.media)
    free, fixed = model.options.get("fields", preset.free), model.options.get("fixed", preset.fixed)
    if not isinstance(media, list | tuple) or not all(isinstance(name, str) for name in media):
        raise _wrong(
            model, "`options.media` must be a list of names: the fields of the plugin's data with media references"
        )
    if not isinstance(free, Mapping) or not isinstance(fixed, Mapping):
        raise _wrong(model, "`options.fields` must be a table of JSON Schemas, and `options.fixed` a table of values")
    if twice := ({*media} & {*free}) | ({*media} & {*fixed}) | ({*free} & {*fixed}):
        raise _wrong(model, f"fields are listed twice in `media`, `fields` and `fixed`: {', '.join(sorted(twice))}")
    try:
        Draft202012Validator.check_schema({"properties": dict(free)})
    except SchemaError as error:
        raise _wrong(model, f"`options.fields` holds an invalid JSON Schema: {error.message}") from error
    return PluginFields(tuple(media), free, fixed)


def _wrong(model: Model, what: str) -> ConfigError:
    return ConfigError(f"model {model.name!r}: {what}")
