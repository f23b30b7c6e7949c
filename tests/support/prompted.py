"""Tiny networks that find objects by words and make masks by points, saved as people publish them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel

from tests.support.model_directories import write_json
from tests.support.vision import save_spread

WORDS = ("cat", "dog", "tree", "sky", "photo", "of", "a", "an", "old", "grey")
_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def _tokens(folder: Path, every: tuple[str, ...], first: str, last: str, limit: int, **config: Any) -> None:
    """Write a tokenizer of words between two special tokens."""
    vocabulary = {word: number for number, word in enumerate(every)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="?"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])]
    )
    tokenizer.add_special_tokens([first, last])
    tokenizer.save(str(folder / "tokenizer.json"))
    known = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": limit, **config}
    write_json(folder, "tokenizer_config.json", known)


def _owl(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        torch.manual_seed(7)  # the class embedding is a vector of random numbers
        text = {
            **_TINY, "vocab_size": 14, "max_position_embeddings": 8, "bos_token_id": 12, "eos_token_id": 13,
            "pad_token_id": 0,
        }  # fmt: skip
        vision = {**_TINY, "image_size": 64, "patch_size": 16}
        config = getattr(transformers, f"{name}Config")(
            text_config=text, vision_config=vision, projection_dim=16, initializer_factor=4.0
        )
        folder = save_spread(getattr(transformers, f"{name}ForObjectDetection")(config), folder, std=0.3)
        write_json(
            folder, "preprocessor_config.json",
            {"image_processor_type": f"{name}ImageProcessor", "size": {"height": 64, "width": 64}},
        )  # fmt: skip
        # The first token is not 0, which marks a query that is none, and the end has the highest id.
        _tokens(folder, ("!", "?", *WORDS, "<s>", "</s>"), "<s>", "</s>", 8, pad_token="!")
        return folder

    return write


def _grounding(name: str, std: float) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        torch.manual_seed(7)
        swin = transformers.SwinConfig(
            image_size=64, embed_dim=8, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=4,
            out_features=["stage2", "stage3", "stage4"],
        )  # fmt: skip
        bert = transformers.BertConfig(**_TINY, vocab_size=16, max_position_embeddings=32)
        config = getattr(transformers, f"{name}Config")(
            backbone_config=swin, text_config=bert, d_model=32, encoder_layers=1, encoder_ffn_dim=16,
            encoder_attention_heads=4, decoder_layers=2, decoder_ffn_dim=16, decoder_attention_heads=4, num_queries=20,
            max_text_len=24, encoder_n_points=2, decoder_n_points=2, num_feature_levels=4,
        )  # fmt: skip
        folder = save_spread(getattr(transformers, f"{name}ForObjectDetection")(config), folder, std=std)
        write_json(
            folder, "preprocessor_config.json",
            {
                "image_processor_type": "GroundingDinoImageProcessor",
                "size": {"shortest_edge": 96, "longest_edge": 128},
            },
        )  # fmt: skip
        _tokens(folder, ("[PAD]", "?", ".", *WORDS, "[CLS]", "[SEP]"), "[CLS]", "[SEP]", 32, pad_token="[PAD]")
        return folder

    return write


def _sam(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        torch.manual_seed(7)  # places of pixels are buffers of random numbers
        vision = {
            "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 32, "image_size": 64,
            "patch_size": 8, "output_channels": 16, "window_size": 4, "num_pos_feats": 8, "global_attn_indexes": [1],
        }  # fmt: skip
        prompt = {
            "hidden_size": 16,
            "image_embedding_size": 8,
            "image_size": 64,
            "patch_size": 8,
            "mask_input_channels": 4,
        }
        decoder = {
            "hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16, "vit_dim": 16,
        }  # fmt: skip
        if name == "Sam":
            decoder.pop("vit_dim")
        config = getattr(transformers, f"{name}Config")(
            vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=decoder
        )
        folder = save_spread(getattr(transformers, f"{name}Model")(config), folder, std=0.3)
        write_json(
            folder, "preprocessor_config.json",
            {
                "image_processor_type": "SamImageProcessor", "size": {"longest_edge": 64},
                "pad_size": {"height": 64, "width": 64}, "mask_size": {"longest_edge": 16},
                "mask_pad_size": {"height": 16, "width": 16},
            },
        )  # fmt: skip
        write_json(folder, "processor_config.json", {"processor_class": f"{name}Processor"})
        return folder

    return write


#: Writers of directories by model type.
DETECTORS: Mapping[str, Callable[[Path], Path]] = {
    "grounding-dino": _grounding("GroundingDino", 0.2),
    "mm-grounding-dino": _grounding("MMGroundingDino", 0.3),
    "owlv2": _owl("Owlv2"),
    "owlvit": _owl("OwlViT"),
}
MASKERS: Mapping[str, Callable[[Path], Path]] = {"sam": _sam("Sam"), "sam_hq": _sam("SamHQ")}
