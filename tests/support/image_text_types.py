"""Hub directories of tiny networks with random weights, for each model type of images and text.

A type's own default configuration is made small by the names of its fields; `image_text_kinds.py` says the rest: the
tokens, the chat template and the preparation of images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.hub import save
from tests.support.image_text_kinds import FIRST, KINDS, Kind
from tests.support.multimodal import write_tokenizer

END = "<end>"
VOCABULARY = 320

#: Small values by the names of fields, in a type's configuration and all configurations inside it.
_SMALL: Mapping[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 2048,
    "initializer_range": 0.2, "bos_token_id": FIRST, "eos_token_id": FIRST, "pad_token_id": FIRST,
    "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2, "image_size": 32, "patch_size": 8,
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_ff": 48, "d_kv": 8, "num_layers": 2,
    "num_decoder_layers": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4, "moe_num_experts": 4, "moe_topk": 2,
    "max_window_layers": 2, "init_std": 0.2, "attention_dropout": 0.0, "hidden_dropout": 0.0,
}  # fmt: skip
#: Fields that follow from others.
_DERIVED = ("layer_types", "transformers_version", "architectures", "dtype", "torch_dtype", "mlp_layer_types")


def template(image: str) -> str:
    """Return a chat template that writes `image` for each image."""
    return (
        "{% for message in messages %}{{ message.role|upper }}: {% if message.content is string %}{{ message.content }}"
        "{% else %}{% for part in message.content %}{% if part.type == 'image' %}" + image + "{% else %}{{ part.text }}"
        "{% endif %}{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    )


def write_kind(model_type: str, folder: Path) -> Path:
    """Save a directory of a model type with random weights."""
    kind = KINDS[model_type]
    torch.manual_seed(7)
    cls = transformers.CONFIG_MAPPING[model_type]
    ids = {token: FIRST + number for number, token in enumerate((END, *kind.tokens))}
    data = _merged(_small(cls().to_dict()), _numbered(kind.config, ids))
    config = cls(**{name: value for name, value in data.items() if name != "model_type"})
    network = transformers.AutoModelForImageTextToText.from_config(config)
    start = getattr(config.get_text_config(), "decoder_start_token_id", None)
    network.generation_config = transformers.GenerationConfig(
        eos_token_id=FIRST, pad_token_id=FIRST, decoder_start_token_id=start
    )
    save(network.float(), folder)
    _write_tokens(folder, list(ids), kind)
    if kind.images:
        (folder / "preprocessor_config.json").write_text(json.dumps(kind.images))
    if kind.processor:
        (folder / "processor_config.json").write_text(json.dumps(kind.processor))
    if kind.image is not None:
        (folder / "chat_template.jinja").write_text(template(kind.image))
    return folder


def _write_tokens(folder: Path, special: list[str], kind: Kind) -> None:
    write_tokenizer(folder, special)
    config = {"bos_token": END, "eos_token": END, "pad_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "extra_special_tokens": dict(kind.named)}))


def _small(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with small values."""
    made: dict[str, Any] = {}
    for name, value in data.items():
        if name in _DERIVED:
            continue
        if isinstance(value, dict) and name.endswith("config"):
            made[name] = _small(value)
        elif name == "mrope_section":
            made[name] = [1, 1, 2]
        elif name in _SMALL and value is not None and not isinstance(value, dict):
            small = float(_SMALL[name]) if isinstance(value, float) else _SMALL[name]
            made[name] = [small] * len(value) if isinstance(value, list) else small
        elif isinstance(value, dict):
            made[name] = {key: [1, 1, 2] if key == "mrope_section" else inner for key, inner in value.items()}
        else:
            made[name] = value
    return made


def _numbered(data: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            made[name] = _numbered(value, ids)
        else:
            made[name] = ids.get(value, value) if isinstance(value, str) else value
    return made


def _merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(data)
    for name, value in changes.items():
        inner = made.get(name)
        made[name] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return made
