"""Tiny configurations of the model types that transformers knows, made from each type's own default configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import transformers

_SIDE = 64
#: Names of settings, as patterns -> small values. The first that matches counts; only whole numbers are changed.
_SMALL: tuple[tuple[str, int], ...] = (
    (r"(pad|eos|bos|cls|sep|mask|decoder_start|unk)_token_id", -1),
    (r"vocab_size|n_vocab|padded_vocab_size|vocab_size_or_config_json_file", 128),
    (r".*(num_key_value_heads|num_kv_heads|kv_heads|multi_query_group_num|n_kv_heads|num_v_heads|num_k_heads)", 2),
    (r".*(num_attention_heads|num_heads|n_head|n_heads|attention_heads)", 4),
    (r".*head_dim|d_kv|.*key_value_proj_dim|d_head", 8),
    (r"(num_hidden_layers|n_layers?|num_layers|num_decoder_layers|encoder_layers|decoder_layers|n_layer)", 2),
    (r"(hidden_size|d_model|n_embd|dim|embedding_size|word_embed_proj_dim|d_embed|model_dim|n_embed|emb_dim)", 32),
    (r".*(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|n_inner|d_inner|ff_dim|ffn_dim)", 64),
    (r".*(num_experts|n_routed_experts|num_local_experts|moe_num_experts)", 4),
    (r".*(num_experts_per_tok|experts_top_k|moe_topk|moe_k|top_k|num_experts_per_token)", 2),
    (r"(max_position_embeddings|n_positions|max_sequence_length|max_seq_len|n_ctx)", 128),
)


def _each(kinds: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return dict.fromkeys(kinds, settings)


#: Settings of single types, beside the patterns.
OWN: Mapping[str, Mapping[str, Any]] = {
    **_each(
        (
            "axk2", "deepseek_v3", "deepseek_v32", "dots3_note", "dots3_note_text",
            "glm4_moe_lite", "glm_moe_dsa", "minicpm3", "youtu",
        ),
        {"num_key_value_heads": 4},
    ),
    **_each(("codegen", "gptj"), {"rotary_dim": 8}),
    **_each(("longt5", "switch_transformers", "t5"), {"decoder_start_token_id": 0}),
    **_each(
        ("bert", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "reformer", "rembert",
         "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod"),
        {"is_decoder": True},
    ),
    **_each(
        ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"),
        {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    ),
    **_each(
        ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
        {"num_hidden_layers": 4},
    ),
    "axk1": {"num_hidden_layers": 4, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1},
    "bailing_hybrid": {
        "layer_types": ["linear_attention", "full_attention"], "num_key_value_heads": 4, "n_group": 1, "topk_group": 1,
    },
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16},
    "deepseek_v2": {
        "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "topk_method": "greedy",
    },
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    **_each(("lfm2", "lfm2_moe"), {"layer_types": ["conv", "full_attention"]}),
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 2},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"], "num_key_value_heads": 4},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "mlp"], "mamba_num_heads": 8, "mamba_head_dim": 8,
        "n_groups": 2, "ssm_state_size": 16,
    },
    **_each(("qwen3_5", "qwen3_5_moe"), {"text_config": {"num_hidden_layers": 4}}),
    "recurrent_gemma": {"num_hidden_layers": 3},
    "zamba": {"num_hidden_layers": 3, "layer_types": ["mamba", "hybrid", "mamba"]},
    "zamba2": {
        "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"], "mamba_headdim": 8,
        "n_mamba_heads": 8, "mamba_d_state": 16, "num_mem_blocks": 1,
    },
}  # fmt: skip


def small(kind: str, own: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Return a tiny configuration of a model type, with `own` settings in place of those of `OWN`."""
    usual = transformers.AutoConfig.for_model(kind)
    return type(usual)(**_merged(_shrunk(usual), OWN.get(kind, {}) if own is None else own), **more)


def small_image(kind: str, **more: Any) -> Any:
    """Return a tiny configuration of a network of images of 64 x 64 px."""
    usual = transformers.AutoConfig.for_model(kind)
    made = {"image_size": _SIDE} if kind in WHOLE else {**_shrunk(usual), **_narrowed(usual)}
    return type(usual)(**_merged(made, IMAGES.get(kind, {})), **more)


def _narrowed(config: Any) -> dict[str, Any]:
    """Return the settings of stages: one layer each, a quarter of the width."""
    made: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if isinstance(value, dict) and isinstance(getattr(config, name, None), transformers.PreTrainedConfig):
            made[name] = {**_shrunk(getattr(config, name)), **_narrowed(getattr(config, name))}
        elif name == "image_size" and value is not None:
            made[name] = [_SIDE, _SIDE] if isinstance(value, list | tuple) else _SIDE
        elif name in _DEPTHS and isinstance(value, list | tuple):
            made[name] = [1] * len(value)
        elif name in _WIDTHS and isinstance(value, list | tuple):
            made[name] = [width // 4 for width in value]
        elif name in _WIDTHS and type(value) is int:
            made[name] = value // 4
    return made


_DEPTHS = ("depths", "depth", "num_layers", "layers")
_WIDTHS = (
    "hidden_sizes",
    "embed_dims",
    "embed_dim",
    "neck_hidden_sizes",
    "embedding_size",
    "fusion_hidden_size",
)
#: Settings of types whose texts are embedded or classified, where they differ from those of language models.
SCORED: Mapping[str, Mapping[str, Any]] = {
    **_each(
        (
            "bert", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "reformer",
            "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl",
        ),
        {},
    ),
    "esm": {"vocab_size": 128, "pad_token_id": 0, "mask_token_id": 2},
    "funnel": {"block_sizes": [1, 1], "d_head": 8, "d_inner": 64, "n_head": 4, "d_model": 32},
    "mistral4": {"num_key_value_heads": 4},
}  # fmt: skip
#: Settings of single types of images, beside the patterns.
IMAGES: Mapping[str, Mapping[str, Any]] = {
    "bit": {"num_groups": 4},
    "swin2sr": {"embed_dim": 16, "num_heads": [2, 2], "depths": [1, 1], "window_size": 4},
    **_each(("swin", "donut-swin"), {"window_size": 2}),
    **_each(
        ("beit", "data2vec-vision"),
        {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "use_auxiliary_head": False},
    ),
    "dpt": {
        "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8] * 4,
        "fusion_hidden_size": 8, "is_hybrid": False, "patch_size": 8,
    },
    "depth_anything": {
        "backbone_config": transformers.Dinov2Config(
            hidden_size=16, num_hidden_layers=4, num_attention_heads=2, mlp_ratio=2, image_size=_SIDE, patch_size=8,
            out_features=["stage1", "stage2", "stage3", "stage4"], reshape_hidden_states=False,
        ),
        "patch_size": 8, "reassemble_hidden_size": 16, "neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8,
        "head_hidden_size": 8,
    },
    "upernet": {
        "backbone_config": transformers.ConvNextConfig(
            hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, out_features=["stage1", "stage2", "stage3", "stage4"]
        ),
        "hidden_size": 16, "auxiliary_in_channels": 16, "auxiliary_channels": 8, "pool_scales": [1, 2],
    },
    "cvt": {"embed_dim": [16, 32, 64], "num_heads": [1, 2, 4], "drop_path_rate": [0.0, 0.0, 0.0]},
}  # fmt: skip
#: Types of small networks whose widths depend on each other: their sizes stay.
WHOLE = ("cvt", "depth_anything", "hgnet_v2", "levit", "pp_lcnet", "textnet", "upernet")


def _merged(made: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    inner = {name: _merged(made[name], value) for name, value in own.items() if isinstance(made.get(name), dict)}
    return {**made, **own, **inner}


def _shrunk(config: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if isinstance(value, dict) and isinstance(getattr(config, name, None), transformers.PreTrainedConfig):
            made[name] = _shrunk(getattr(config, name))
        elif type(value) is int or (value is None and name in ("num_key_value_heads", "head_dim")):
            found = next((small for pattern, small in _SMALL if re.fullmatch(pattern, name)), None)
            if found == -1:
                made[name] = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}.get(name, 2)
            elif found is not None and value is not None:
                made[name] = min(found, value)
    return made


#: Gains of the layers of types whose numbers would vanish or grow beyond bounds with the usual one.
GAINS: Mapping[str, float] = {"align": 1.2, "efficientnet": 1.2}
