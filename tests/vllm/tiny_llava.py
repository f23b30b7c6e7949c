"""A tiny Llava with random weights, a tokenizer of bytes and PIL's images: `python tiny_llava.py FOLDER`.

Runs in an environment that has transformers and torch, with the repository on the path.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

#: vLLM's attention on a CPU has no smaller heads.
HEAD = 32


def write(folder: Path) -> None:
    """Write the model's directory with a processor as vLLM loads it."""
    import transformers
    from safetensors.torch import load_file, save_file

    from tests.support.multimodal import END, IMAGE, a_llava

    text = transformers.LlamaConfig(
        hidden_size=2 * HEAD, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=HEAD, vocab_size=300, max_position_embeddings=1024, bos_token_id=None, eos_token_id=257,
        pad_token_id=257, initializer_range=0.2,
    )  # fmt: skip
    a_llava(folder, text_config=text)
    # The library saves other names than it did when the published checkpoints were made, which vLLM reads.
    weights = load_file(folder / "model.safetensors")
    tower = {name: name.replace("vision_tower.", "vision_tower.vision_model.") for name in weights}
    save_file({tower[name]: value for name, value in weights.items()}, folder / "model.safetensors")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    processor = {
        "processor_class": "LlavaProcessor", "patch_size": 8, "vision_feature_select_strategy": "default",
        "image_token": IMAGE, "num_additional_image_tokens": 1,
    }  # fmt: skip
    (folder / "processor_config.json").write_text(json.dumps(processor))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
