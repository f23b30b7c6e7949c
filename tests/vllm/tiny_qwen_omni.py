"""A tiny Qwen2.5-Omni with random weights that takes images, videos and audio: `python tiny_qwen_omni.py FOLDER`.

Its thinker alone, which is what vLLM serves: it answers with texts. Runs in an environment that has transformers and
torch, with the repository on the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

#: vLLM's attention on a CPU has no smaller heads.
HEAD = 32
#: Special tokens by their names in the tokenizer, numbered from 256.
TOKENS = {
    "image_token": "<|IMAGE|>", "eos_token": "<end>", "video_token": "<|VIDEO|>", "audio_token": "<|AUDIO|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif part.type == 'video' %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% elif part.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
_TEXT = {
    "hidden_size": 2 * HEAD, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 4096, "initializer_range": 0.2,
    "eos_token_id": 257, "pad_token_id": 257,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
}  # fmt: skip
_VISION = {
    "depth": 2, "hidden_size": 2 * HEAD, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 2 * HEAD,
    "fullatt_block_indexes": [1], "initializer_range": 0.2,
}  # fmt: skip
_AUDIO = {
    "num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 96, "d_model": 2 * HEAD,
    "output_dim": 2 * HEAD, "initializer_range": 0.2,
}  # fmt: skip


def write(folder: Path) -> None:
    """Write the model's directory with its processors, as vLLM loads them."""
    import torch
    import transformers
    from safetensors.torch import save_file

    from tests.support.multimodal import write_json_files, write_texts

    torch.manual_seed(15)
    numbers = {name: 256 + number for number, name in enumerate(TOKENS)}
    thinker = transformers.Qwen2_5OmniThinkerConfig(
        text_config=_TEXT, vision_config=_VISION, audio_config=_AUDIO, image_token_index=numbers["image_token"],
        video_token_index=numbers["video_token"], audio_token_index=numbers["audio_token"],
        audio_start_token_id=numbers["audio_bos_token"], audio_end_token_id=numbers["audio_eos_token"],
        vision_start_token_id=numbers["vision_bos_token"], vision_end_token_id=numbers["vision_eos_token"],
        user_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    network = transformers.Qwen2_5OmniThinkerForConditionalGeneration(thinker)
    weights = {f"thinker.{name}": value.contiguous() for name, value in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    whole = {"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni", "enable_audio_output": False}
    sizes = {"min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 24}
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": TOKENS["eos_token"]}
    sounds = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16, "sampling_rate": 16000}
    write_texts(folder, list(TOKENS.values()), TEMPLATE)
    write_json_files(
        folder,
        {
            "config.json": {**whole, "thinker_config": thinker.to_dict()},
            "tokenizer_config.json": {**tokens, "eos_token": TOKENS["eos_token"], "extra_special_tokens": TOKENS},
            "processor_config.json": {"processor_class": "Qwen2_5OmniProcessor"},
            "preprocessor_config.json": {"image_processor_type": "Qwen2VLImageProcessor", **sizes, **sounds},
            "video_preprocessor_config.json": {"video_processor_type": "Qwen2VLVideoProcessor", **sizes},
        },
    )  # fmt: skip


if __name__ == "__main__":
    write(Path(sys.argv[1]))
