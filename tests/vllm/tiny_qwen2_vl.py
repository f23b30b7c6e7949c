"""A tiny Qwen2-VL with random weights, a tokenizer of bytes, images and videos.

`python tiny_qwen2_vl.py FOLDER [IMAGE ...]` writes the model, and the embeddings of images beside these. Runs in an
environment that has transformers and torch, with the repository on the path.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

#: vLLM's attention on a CPU has no smaller heads.
HEAD = 32
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)


def write(folder: Path, images: Sequence[Path]) -> None:
    """Write the model's directory with processors as vLLM loads them, and `IMAGE.safetensors` for images."""
    from tests.support.multimodal import END, a_qwen2_vl, write_json_files

    text = {
        "hidden_size": 2 * HEAD, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 4096, "initializer_range": 0.2,
        "bos_token_id": None, "eos_token_id": 257, "pad_token_id": 257,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
    }  # fmt: skip
    vision = {
        "depth": 2, "embed_dim": 2 * HEAD, "hidden_size": 2 * HEAD, "num_heads": 2, "patch_size": 8, "mlp_ratio": 2,
        "initializer_range": 0.2,
    }  # fmt: skip
    a_qwen2_vl(folder, text_config=text, vision_config=vision)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    sizes = {"patch_size": 8, "min_pixels": 16 * 16 * 4, "max_pixels": 16 * 16 * 24}
    write_json_files(
        folder,
        {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END,
            },
            "processor_config.json": {"processor_class": "Qwen2VLProcessor"},
            "video_preprocessor_config.json": {"video_processor_type": "Qwen2VLVideoProcessor", **sizes},
        },
    )  # fmt: skip

    if images:
        embed(folder, images)


def embed(folder: Path, images: Sequence[Path]) -> None:
    """Write the embeddings of images, as the library computes them."""
    import torch
    import transformers
    from PIL import Image
    from safetensors.torch import save_file

    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    network = transformers.Qwen2VLForConditionalGeneration.from_pretrained(folder)
    for path in images:
        made = processor(Image.open(path).convert("RGB"), return_tensors="pt")
        with torch.no_grad():
            found = network.model.get_image_features(made["pixel_values"], made["image_grid_thw"]).pooler_output
        arrays = {"image_embeds": torch.cat(tuple(found)), "image_grid_thw": made["image_grid_thw"]}
        save_file(arrays, path.with_suffix(".safetensors"))


if __name__ == "__main__":
    write(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]])
