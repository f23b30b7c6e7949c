"""Tiny configurations of the language types that transformers knows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import transformers

#: Names of settings, as patterns -> small values. The first that matches counts; only whole numbers are changed.
_SMALL: tuple[tuple[str, int], ...] = (
    (r"(pad|eos|bos|cls|sep|mask|decoder_start|unk)_token_id", -1),
    (r"vocab_size|n_vocab|padded_vocab_size", 128),
    (r".*(num_key_value_heads|num_kv_heads|kv_heads|multi_query_group_num|n_kv_heads|num_v_heads|num_k_heads)", 2),
    (r".*(num_attention_heads|num_heads|n_head|n_heads|attention_heads)", 4),
    (r".*head_dim|d_kv|.*key_value_proj_dim", 8),
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
            "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots3_note", "dots3_note_text",
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


def small(kind: str) -> Any:
    """Return a tiny configuration of a model type."""
    usual = transformers.AutoConfig.for_model(kind)
    return type(usual)(**_merged(_shrunk(usual), OWN.get(kind, {})))


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


_NO_TINY = "nobody has made a tiny network of it"
_IN_IMAGES = "its text decoder alone has another `model_type`; the whole is in the table of images and text"
#: Types that no test runs, with the reason.
UNTRIED: Mapping[str, str] = {
    **dict.fromkeys(
        ("blt", "cohere_compass_text", "dbrx", "deepseek_v2", "dots3_note", "encoder-decoder", "gemma3n_text", "gemma4",
         "gemma4_assistant", "gemma4_text", "gemma4_unified_assistant", "longcat_flash", "qwen4_exp", "qwen4_exp_text",
         "reformer", "xlstm", "zamba"),
        _NO_TINY,
    ),
    **dict.fromkeys(("emu3", "mllama"), _IN_IMAGES),
    "gemma3n": "its vision tower needs timm",
    "whisper": "speech recognition serves it",
}  # fmt: skip
#: Types that `models check` refuses, with the words of the refusal.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("audioflamingo3", "glmasr", "granite_speech", "granite_speech_plus", "musicflamingo", "nemo_speechlm",
         "qwen2_audio", "qwen3_asr", "vibevoice_asr", "voxtral", "voxtral_realtime"),
        "does not make texts",
    ),
    **dict.fromkeys(("musicgen", "musicgen_melody"), "something other than texts"),
    "xmod": "needs a language beside the text",
}  # fmt: skip


def types() -> list[str]:
    """Return the types that transformers makes texts with."""
    from transformers.models.auto import modeling_auto as auto

    return sorted({*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES})


def tried() -> list[str]:
    """Return the types whose answers the tests compare with the library's."""
    return [kind for kind in types() if kind not in UNTRIED and kind not in REFUSED]


def table() -> str:
    """Return the table of `docs/reference/what-runs.md`."""
    rows = ["| `model_type` | runs |", "| --- | --- |"]
    for kind in types():
        told = f"refused: {REFUSED[kind]}" if kind in REFUSED else f"not tested: {UNTRIED.get(kind)}"
        rows.append(f"| `{kind}` | {'yes' if kind in tried() else told} |")
    return "\n".join(rows)
