"""Hub directories of tiny image-text networks with random weights, complete with tokenizer and template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.support.hub import save

IMAGE, END = "<image>", "<end>"
#: LLaVA's: all pieces one by one.
TEMPLATE = (
    "{% for message in messages %}{{ message.role|upper }}: {% for part in message.content %}"
    "{% if part.type == 'image' %}<image>\n{% else %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
QWEN_TEMPLATE = TEMPLATE.replace("<image>\n", "<|vision_start|><|image_pad|><|vision_end|>")

_TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 1024, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": 257, "pad_token_id": 257,
}  # fmt: skip
_VISION = {
    "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": 8,
    "image_size": 32, "initializer_range": 0.2,
}  # fmt: skip


def write_json_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Write JSON files by their names."""
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data))


def write_tokenizer(folder: Path, special: list[str]) -> None:
    """Write a tokenizer of bytes, whose special tokens are numbered from 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_texts(folder: Path, special: list[str], template: str) -> None:
    """Write a tokenizer of bytes, whose special tokens are numbered from 256, and a chat template."""
    write_tokenizer(folder, special)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    (folder / "chat_template.jinja").write_text(template)


def write_pictures(folder: Path, kind: str, **fields: Any) -> None:
    """Write what is done to pictures."""
    write_json_files(folder, {"preprocessor_config.json": {"image_processor_type": kind, **fields}})


def clip_tower(**more: Any) -> transformers.CLIPVisionConfig:
    return transformers.CLIPVisionConfig(**{**_VISION, **more})


def siglip_tower(**more: Any) -> transformers.SiglipVisionConfig:
    return transformers.SiglipVisionConfig(**{**_VISION, **more})


def a_llava(folder: Path, **config: Any) -> Path:
    """Save a Llava with a CLIP tower: 16 tokens a picture."""
    torch.manual_seed(11)
    made = transformers.LlavaConfig(
        **{"vision_config": clip_tower(), "text_config": transformers.LlamaConfig(**_TEXT), "image_token_index": 256}
        | config
    )
    save(transformers.LlavaForConditionalGeneration(made), folder)
    write_texts(folder, [IMAGE, END], TEMPLATE)
    write_pictures(folder, "CLIPImageProcessor", size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return folder


def a_granite_vision(folder: Path, **config: Any) -> Path:
    """Save what Granite Vision is: LLaVA-NeXT with a SigLIP tower, four of its layers, and a Granite."""
    torch.manual_seed(12)
    text = transformers.GraniteConfig(**_TEXT, embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5)
    known = {
        "vision_config": siglip_tower(num_hidden_layers=4, image_size=36), "text_config": text,
        "image_token_index": 256, "vision_feature_layer": [-4, -3, -2, -1], "vision_feature_select_strategy": "full",
        "image_grid_pinpoints": [[36, 72], [72, 36], [72, 72], [108, 36], [36, 108]],
    }  # fmt: skip
    made = transformers.LlavaNextConfig(**known | config)
    save(transformers.LlavaNextForConditionalGeneration(made), folder)
    write_texts(folder, [IMAGE, END], TEMPLATE)
    side = {"height": 36, "width": 36}  # as Granite Vision's 384 px no multiple of the patches
    write_pictures(
        folder, "LlavaNextImageProcessor", size=side, crop_size=side, do_pad=True, resample=3,
        image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5], image_grid_pinpoints=made.image_grid_pinpoints,
    )  # fmt: skip
    return folder


def a_llava_next(folder: Path, **config: Any) -> Path:
    """Save a LLaVA-NeXT with a CLIP tower, as the first ones were."""
    torch.manual_seed(13)
    known = {
        "vision_config": clip_tower(), "text_config": transformers.MistralConfig(**_TEXT, sliding_window=None),
        "image_token_index": 256, "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]],
    }  # fmt: skip
    made = transformers.LlavaNextConfig(**known | config)
    save(transformers.LlavaNextForConditionalGeneration(made), folder)
    write_texts(folder, [IMAGE, END], TEMPLATE)
    write_pictures(
        folder, "LlavaNextImageProcessor", size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32},
        image_grid_pinpoints=made.image_grid_pinpoints,
    )  # fmt: skip
    return folder


def a_qwen2_vl(folder: Path, **config: Any) -> Path:
    """Save a Qwen2-VL whose pictures are of 8 px patches, 2 x 2 of which are a token."""
    torch.manual_seed(14)
    text: Mapping[str, Any] = _TEXT | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
    vision = {"depth": 2, "embed_dim": 24, "hidden_size": 32, "num_heads": 2, "patch_size": 8, "mlp_ratio": 2}
    known = {
        "vision_config": vision, "text_config": dict(text), "image_token_id": 256, "video_token_id": 258,
        "vision_start_token_id": 259, "vision_end_token_id": 260,
    }  # fmt: skip
    made = transformers.Qwen2VLConfig(**known | config)
    save(transformers.Qwen2VLForConditionalGeneration(made), folder)
    special = ["<|image_pad|>", END, "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    write_texts(folder, special, QWEN_TEMPLATE)
    write_pictures(folder, "Qwen2VLImageProcessor", patch_size=8, min_pixels=16 * 16 * 4, max_pixels=16 * 16 * 24)
    return folder


MADE = {"llava": a_llava, "llava_next": a_llava_next, "granite_vision": a_granite_vision, "qwen2_vl": a_qwen2_vl}
