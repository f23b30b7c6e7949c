"""Model types of images and text: what the tiny directory of each type has beside its small configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Ids of special tokens follow those of the bytes; the end token is the first.
FIRST = 256


@dataclass(frozen=True)
class Kind:
    """A model type: what its directory has beside the small configuration."""

    #: Special tokens in order; the end token comes first of all.
    tokens: tuple[str, ...] = ()
    #: Names of tokens as the type's own tokenizer has them.
    named: Mapping[str, str] = field(default_factory=dict)
    #: Text of an image in the chat template; None: no template.
    image: str | None = "<image>"
    #: Changes of the configuration: texts that are special tokens become their ids.
    config: Mapping[str, Any] = field(default_factory=dict)
    #: `preprocessor_config.json` and `processor_config.json`.
    images: Mapping[str, Any] = field(default_factory=dict)
    processor: Mapping[str, Any] = field(default_factory=dict)
    #: The most images that one message may have, and if it may have none.
    most: int = 2
    text_only: bool = True
    #: True: without a template the library wants `<image>` before the text.
    before: bool = False
    #: A package beside transformers that the type's processor needs.
    package: str = ""


_QWEN_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
_QWEN_IDS = {
    "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
}  # fmt: skip
_QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
_QWEN_SIZES = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 8, "merge_size": 2, "temporal_patch_size": 2,
    "min_pixels": 16 * 16, "max_pixels": 16 * 16 * 12,
}  # fmt: skip

_IMAGE = ("<image>",)
_IMAGE_INDEX = {"image_token_index": "<image>"}
_GLM_TOKENS = (
    "<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
)  # fmt: skip
_GLM_IDS = {
    "image_token_id": "<|image|>", "video_token_id": "<|video|>", "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>", "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}  # fmt: skip
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
_SQUARE = {"height": 32, "width": 32}
_CLIP = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": _SQUARE}
_SIGLIP = {"image_processor_type": "SiglipImageProcessor", "size": _SQUARE}
_BLIP = {"image_processor_type": "BlipImageProcessor", "size": _SQUARE}
_LLAVA = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
_IDEFICS_TOKENS = (
    "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)),
)  # fmt: skip
_PINPOINTS = [[32, 64], [64, 32], [64, 64]]


def _a_qwen(processor: str, **config: Any) -> Kind:
    vision = {"out_hidden_size": 32, **config.pop("vision_config", {})}
    text = {"rope_parameters": _MROPE, **config.pop("text_config", {})}
    return Kind(
        tokens=_QWEN_TOKENS, image=_QWEN_IMAGE,
        config={**_QWEN_IDS, "vision_config": vision, "text_config": text, **config},
        images=_QWEN_SIZES, processor={"processor_class": processor},
    )  # fmt: skip


def _a_glm(processor: str, images: str, **config: Any) -> Kind:
    rope = config.pop("rope", _MROPE)
    vision = {"out_hidden_size": 32, **config.pop("vision_config", {})}
    return Kind(
        tokens=_GLM_TOKENS, image="<|begin_of_image|><|image|><|end_of_image|>",
        config={**_GLM_IDS, "vision_config": vision, "text_config": {"rope_parameters": rope}, **config},
        images={
            "image_processor_type": images, "patch_size": 8, "merge_size": 2, "temporal_patch_size": 2,
            "size": {"shortest_edge": 16 * 16 * 2, "longest_edge": 16 * 16 * 24},
        },
        processor={"processor_class": processor},
    )  # fmt: skip


def _an_internvl(processor: str, image: str = "<IMG_CONTEXT>", **config: Any) -> Kind:
    return Kind(
        tokens=("<IMG_CONTEXT>", "<img>", "</img>", "<video>", "<image>"),
        named={
            "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        image=image,
        config={"image_token_id": "<IMG_CONTEXT>", "image_seq_length": 4, **config},
        images={
            "image_processor_type": "GotOcr2ImageProcessor", "size": _SQUARE, "crop_to_patches": True,
            "min_patches": 1, "max_patches": 4,
        },
        processor={"processor_class": processor, "image_seq_length": 4},
    )  # fmt: skip


KINDS: Mapping[str, Kind] = {
    "aria": Kind(
        tokens=_IMAGE,
        named={"image_token": "<image>"},
        config={
            **_IMAGE_INDEX,
            "projector_patch_to_query_dict": {"100": 4}, "text_config": {"moe_num_shared_experts": 1},
            "vision_config": {"image_size": 980, "patch_size": 98},
        },
        images={"image_processor_type": "AriaImageProcessor", "max_image_size": 490, "min_image_size": 32},
        processor={"processor_class": "AriaProcessor", "size_conversion": {"490": 4, "980": 4}},
    ),
    "aya_vision": Kind(
        tokens=(
            "<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE",
            "TILE_GLOBAL", "TILE_1", "TILE_2", "TILE_3", "TILE_4",
        ),
        config={"image_token_index": "<|IMG_PATCH|>", "downsample_factor": 2, "text_config": {"logit_scale": 1.0}},
        images={
            "image_processor_type": "GotOcr2ImageProcessor", "size": _SQUARE, "crop_to_patches": True,
            "min_patches": 1, "max_patches": 4,
        },
        processor={
            "processor_class": "AyaVisionProcessor", "patch_size": 8, "img_size": 32, "downsample_factor": 2,
        },
    ),
    "blip": Kind(
        tokens=("[CLS]", "[SEP]"),
        image=None, images=_BLIP, processor={"processor_class": "BlipProcessor"}, most=1, text_only=False,
        config={"text_config": {
            "bos_token_id": "[CLS]", "sep_token_id": "[SEP]", "eos_token_id": "[SEP]", "encoder_hidden_size": 32,
            "initializer_range": 1.0,
        }},
    ),
    "blip-2": Kind(
        tokens=_IMAGE, image=None, images=_BLIP, most=1, text_only=False,
        processor={"processor_class": "Blip2Processor", "num_query_tokens": 4},
        config={**_IMAGE_INDEX, "num_query_tokens": 4, "qformer_config": {"encoder_hidden_size": 32}, "text_config": {
            "ffn_dim": 48, "word_embed_proj_dim": 32, "tie_word_embeddings": False,
        }},
    ),
    "chameleon": Kind(
        tokens=("<image>", "<racm3:break>", "<eoss>"), named={
            "image_token": "<image>", "boi_token": "<racm3:break>", "eoi_token": "<eoss>",
        },
        config={
            "vocabulary_map": {
                "<image>": FIRST + 1, **{f"IMGIMG{letter}Z": 300 + number for number, letter in enumerate("ABCDEFGH")},
            },
            "vq_config": {
                "base_channels": 32, "channel_multiplier": [1, 1, 1, 1, 1], "num_embeddings": 8, "embed_dim": 8,
                "latent_channels": 8, "resolution": 32,
            },
        },
        images={
            "image_processor_type": "ChameleonImageProcessor", "size": {"shortest_edge": 32}, "crop_size": _SQUARE,
        },
        image=None, before=True,
        processor={"processor_class": "ChameleonProcessor", "image_seq_length": 4},
    ),
    "florence2": Kind(
        tokens=_IMAGE, named={"image_token": "<image>"}, image=None, images={**_CLIP, "image_seq_length": 2}, most=1,
        processor={"processor_class": "Florence2Processor"},
        config={
            "image_token_id": "<image>", "text_config": {"decoder_start_token_id": FIRST},
            "vision_config": {
                "patch_size": [7, 3, 3, 3], "embed_dim": [16, 16, 32, 32], "num_heads": [2, 2, 4, 4],
                "num_groups": [2, 2, 4, 4], "depths": [1, 1, 1, 1], "projection_dim": 32,
            },
        },
    ),
    "gemma3": Kind(
        tokens=("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        named={
            "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>",
        },
        image="<start_of_image>",
        config={
            "boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>",
            "image_token_index": "<image_soft_token>", "mm_tokens_per_image": 4, "tie_word_embeddings": False,
            "text_config": {"tie_word_embeddings": False},
        },
        images={"image_processor_type": "Gemma3ImageProcessor", "size": _SQUARE},
        processor={"processor_class": "Gemma3Processor", "image_seq_length": 4},
    ),
    "git": Kind(
        tokens=("[CLS]", "[SEP]"), image=None, images=_CLIP, processor={"processor_class": "GitProcessor"}, most=1,
    ),
    "glm4v": _a_glm("Glm4vProcessor", "Glm4vImageProcessor"),
    "glm46v": _a_glm("Glm46VProcessor", "Glm46VImageProcessor"),
    "glm4v_moe": _a_glm("Glm4vProcessor", "Glm4vImageProcessor", rope={**_MROPE, "mrope_section": [0, 1, 1]}),
    "granite4_vision": Kind(
        tokens=_IMAGE, config={
            **_IMAGE_INDEX, "image_grid_pinpoints": _PINPOINTS, "downsample_rate": "1/2",
            "deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [0, 0, 1, 1],
            "vision_config": {"hidden_size": 64}, "image_seq_length": 16,
        },
        images={
            "image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 32}, "crop_size": _SQUARE,
            "image_grid_pinpoints": _PINPOINTS,
        },
        processor={"processor_class": "Granite4VisionProcessor", **_LLAVA, "downsample_rate": "1/2"},
    ),
    "idefics2": Kind(
        tokens=("<image>", "<fake_token_around_image>", "<end_of_utterance>"),
        config={"image_token_id": "<image>", "perceiver_config": {
            "resampler_n_latents": 4, "resampler_n_heads": 4, "resampler_depth": 1, "resampler_head_dim": 8,
            "num_key_value_heads": 2,
        }},
        images={
            "image_processor_type": "Idefics2ImageProcessor", "size": {"shortest_edge": 16, "longest_edge": 32},
            "do_image_splitting": False,
        },
        processor={"processor_class": "Idefics2Processor", "image_seq_len": 4},
    ),
    "idefics3": Kind(
        tokens=_IDEFICS_TOKENS,
        config={"image_token_id": "<image>", "scale_factor": 2},
        images={
            "image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 64},
            "max_image_size": {"longest_edge": 32},
        },
        processor={"processor_class": "Idefics3Processor", "image_seq_len": 4},
    ),
    "instructblip": Kind(
        tokens=_IMAGE, image=None, images=_BLIP, most=1, text_only=False,
        processor={"processor_class": "InstructBlipProcessor", "num_query_tokens": 4},
        config={**_IMAGE_INDEX, "num_query_tokens": 4, "qformer_config": {"encoder_hidden_size": 32}, "text_config": {
            "ffn_dim": 48, "word_embed_proj_dim": 32, "tie_word_embeddings": False,
        }},
    ),
    "internvl": _an_internvl("InternVLProcessor"),
    "llava": Kind(
        tokens=_IMAGE, config=_IMAGE_INDEX, images=_CLIP, processor={"processor_class": "LlavaProcessor", **_LLAVA},
    ),
    "llava_next": Kind(
        tokens=_IMAGE, config={**_IMAGE_INDEX, "image_grid_pinpoints": _PINPOINTS},
        images={
            "image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 32}, "crop_size": _SQUARE,
            "image_grid_pinpoints": _PINPOINTS,
        },
        processor={"processor_class": "LlavaNextProcessor", **_LLAVA},
    ),
    "llava_next_video": Kind(
        tokens=("<image>", "<video>"),
        config={**_IMAGE_INDEX, "video_token_index": "<video>", "image_grid_pinpoints": _PINPOINTS},
        images={
            "image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 32}, "crop_size": _SQUARE,
            "image_grid_pinpoints": _PINPOINTS,
        },
        processor={"processor_class": "LlavaNextVideoProcessor", **_LLAVA},
    ),
    "llava_onevision": Kind(
        tokens=("<image>", "<video>"),
        config={
            **_IMAGE_INDEX, "video_token_index": "<video>", "image_grid_pinpoints": _PINPOINTS,
            "vision_config": {"vision_use_head": False},
        },
        images={
            "image_processor_type": "LlavaOnevisionImageProcessor", "size": _SQUARE,
            "image_grid_pinpoints": _PINPOINTS,
        },
        processor={
            "processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 16,
            "vision_feature_select_strategy": "full",
        },
    ),
    "mllama": Kind(
        tokens=("<|image|>", "<|begin_of_text|>"), image="<|image|>", most=2,
        images={
            "image_processor_type": "MllamaImageProcessor", "size": _SQUARE, "max_image_tiles": 2,
        },
        processor={"processor_class": "MllamaProcessor"},
        config={
            "image_token_index": "<|image|>",
            "vision_config": {
                "intermediate_layers_indices": [0], "vision_output_dim": 64, "max_num_tiles": 2,
                "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]], "num_global_layers": 1, "attention_heads": 4,
            },
            "text_config": {"cross_attention_layers": [1]},
        },
    ),
    "ovis2": Kind(
        tokens=("<image>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>", "<IMG_ATOM>"),
        config={
            "image_token_id": "<IMG_ATOM>", "visual_indicator_token_ids": [FIRST + 2 + number for number in range(5)],
        },
        images={"image_processor_type": "Ovis2ImageProcessor", "size": _SQUARE},
        processor={"processor_class": "Ovis2Processor", "image_seq_length": 16},
    ),
    "paligemma": Kind(
        tokens=_IMAGE, named={"image_token": "<image>"}, image=None, images={**_SIGLIP, "image_seq_length": 16},
        processor={"processor_class": "PaliGemmaProcessor"},
        config={**_IMAGE_INDEX, "projection_dim": 32, "vision_config": {"projection_dim": 32}}, text_only=False,
    ),
    "pix2struct": Kind(
        image=None, most=1, text_only=False,
        images={"image_processor_type": "Pix2StructImageProcessor", "max_patches": 16, "is_vqa": False},
        processor={"processor_class": "Pix2StructProcessor"},
        config={"decoder_start_token_id": FIRST, "text_config": {"decoder_start_token_id": FIRST}},
    ),
    "qianfan_ocr": _an_internvl("QianfanOCRProcessor", image="<image>"),
    "qwen2_vl": _a_qwen("Qwen2VLProcessor"),
    "qwen2_5_vl": _a_qwen(
        "Qwen2_5_VLProcessor", vision_config={"window_size": 32, "fullatt_block_indexes": [1]}
    ),
    "qwen3_5": _a_qwen(
        "Qwen3VLProcessor", vision_config={"num_position_embeddings": 64},
        text_config={"layer_types": ["linear_attention", "full_attention"]},
    ),
    "qwen3_5_moe": _a_qwen(
        "Qwen3VLProcessor", vision_config={"num_position_embeddings": 64},
        text_config={"layer_types": ["linear_attention", "full_attention"]},
    ),
    "qwen3_vl": _a_qwen(
        "Qwen3VLProcessor", vision_config={"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    ),
    "qwen3_vl_moe": _a_qwen(
        "Qwen3VLProcessor", vision_config={"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    ),
    "smolvlm": Kind(
        tokens=_IDEFICS_TOKENS,
        config={"image_token_id": "<image>", "scale_factor": 2},
        images={
            "image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 64},
            "max_image_size": {"longest_edge": 32},
        },
        processor={"processor_class": "SmolVLMProcessor", "image_seq_len": 4}, package="num2words",
    ),
    "vipllava": Kind(
        tokens=_IMAGE, config={**_IMAGE_INDEX, "vision_feature_layer": [-1, -2]}, images=_CLIP,
        processor={"processor_class": "LlavaProcessor", **_LLAVA},
    ),
    "deepseek_vl": Kind(
        tokens=_IMAGE, named={"image_token": "<image>"}, config={"image_token_id": "<image>"},
        images={"image_processor_type": "DeepseekVLImageProcessor", "size": _SQUARE, "min_size": 8},
        processor={"processor_class": "DeepseekVLProcessor", "num_image_tokens": 16},
    ),
    "ernie4_5_vl_moe": Kind(
        tokens=("<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>", "<|VIDEO|>", "<|VS|>", "<|VE|>"),
        named={
            "image_token": "<|IMAGE_PLACEHOLDER|>", "image_start_token": "<|IMAGE_START|>",
            "image_end_token": "<|IMAGE_END|>", "video_token": "<|VIDEO|>", "video_start_token": "<|VS|>",
            "video_end_token": "<|VE|>",
        },
        image="<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
        config={
            "image_token_id": "<|IMAGE_PLACEHOLDER|>", "image_start_token_id": "<|IMAGE_START|>",
            "image_end_token_id": "<|IMAGE_END|>", "video_token_id": "<|VIDEO|>", "video_start_token_id": "<|VS|>",
            "video_end_token_id": "<|VE|>",
            "text_config": {"rope_parameters": {**_MROPE, "mrope_section": [1, 1, 2]}, "moe_k": 2},
        },
        images={
            "image_processor_type": "Ernie4_5_VLMoeImageProcessor", "patch_size": 8, "merge_size": 2,
            "size": {"shortest_edge": 16 * 16 * 2, "longest_edge": 16 * 16 * 24},
        },
        processor={"processor_class": "Ernie4_5_VLMoeProcessor"},
    ),
    "exaone4_5": _a_qwen(
        "Exaone4_5_Processor",
        vision_config={"window_size": 32, "fullatt_block_indexes": [1], "num_key_value_heads": 2},
    ),
    "hyperclovax_vision_v2": _a_qwen(
        "HyperCLOVAXVisionV2Processor", vision_config={"window_size": 32, "fullatt_block_indexes": [1]},
        text_config={"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    "idefics": Kind(
        tokens=("<image>", "<fake_token_around_image>"), image=None, images={
            "image_processor_type": "IdeficsImageProcessor", "image_size": 32,
        },
        processor={"processor_class": "IdeficsProcessor", "image_size": 32},
        config={"additional_vocab_size": 0, "use_resampler": False, "cross_layer_interval": 1},
    ),
    "janus": Kind(
        tokens=("<image_placeholder>", "<begin_of_image>", "<end_of_image>"),
        named={
            "image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>",
        },
        image="<image_placeholder>",
        config={
            "image_token_id": "<image_placeholder>", "vision_config": {"projection_dim": 32, "num_image_tokens": 16},
            "vq_config": {
                "base_channels": 32, "channel_multiplier": [1, 1], "num_embeddings": 32, "projection_dim": 32,
                "image_token_embed_dim": 32, "num_patches": 4,
            },
        },
        images={"image_processor_type": "JanusImageProcessor", "size": _SQUARE, "min_size": 8},
        processor={"processor_class": "JanusProcessor", "num_image_tokens": 16},
    ),
    "lfm3_vl": _a_qwen("Lfm3VlProcessor", text_config={"layer_types": ["conv", "full_attention"]}),
    "paddleocr_vl": Kind(
        tokens=("<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>", "<|VIDEO|>"),
        named={"image_token": "<|IMAGE_PLACEHOLDER|>"},
        image="<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
        config={
            "image_token_id": "<|IMAGE_PLACEHOLDER|>", "vision_start_token_id": "<|IMAGE_START|>",
            "vision_end_token_id": "<|IMAGE_END|>", "video_token_id": "<|VIDEO|>",
            "text_config": {"rope_parameters": _MROPE},
        },
        images={
            "image_processor_type": "PaddleOCRVLImageProcessor", "patch_size": 8, "merge_size": 2,
            "temporal_patch_size": 1, "size": {"shortest_edge": 16 * 16 * 2, "longest_edge": 16 * 16 * 24},
        },
        processor={"processor_class": "PaddleOCRVLProcessor"},
    ),
    "video_llama_3": Kind(
        tokens=_QWEN_TOKENS, image="<|image_pad|>",
        config={"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
        images={
            "image_processor_type": "VideoLlama3ImageProcessor", "patch_size": 8, "merge_size": 1,
            "size": {"shortest_edge": 16 * 16, "longest_edge": 16 * 16 * 12},
        },
        processor={"processor_class": "VideoLlama3Processor"},
    ),
    "glm_ocr": _a_glm("Glm46VProcessor", "Glm46VImageProcessor"),
    "glmga": _a_glm("Glm46VProcessor", "GlmgaImageProcessor"),
    "lighton_ocr": Kind(
        tokens=("<|image_pad|>", "<|vision_pad|>", "<|vision_end|>"),
        named={
            "image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>", "image_end_token": "<|vision_end|>",
        },
        image="<|image_pad|>", config={"image_token_id": "<|image_pad|>"},
        images={
            "image_processor_type": "PixtralImageProcessor", "patch_size": {"height": 16, "width": 16},
            "size": {"longest_edge": 32},
        },
        processor={"processor_class": "LightOnOcrProcessor", "patch_size": 8, "spatial_merge_size": 2},
    ),
}  # fmt: skip
