"""Tiny networks of photographs with random weights, saved with what prepares their pictures as people publish them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image, ImageOps
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.conditional_detr.image_processing_pil_conditional_detr import ConditionalDetrImageProcessorPil
from transformers.models.deformable_detr.image_processing_pil_deformable_detr import DeformableDetrImageProcessorPil
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil
from transformers.models.glpn.image_processing_pil_glpn import GLPNImageProcessorPil
from transformers.models.mask2former.image_processing_pil_mask2former import Mask2FormerImageProcessorPil
from transformers.models.maskformer.image_processing_pil_maskformer import MaskFormerImageProcessorPil
from transformers.models.rt_detr.image_processing_pil_rt_detr import RTDetrImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil

from tests.support.hub import save

LABELS = {0: "cat", 1: "dog", 2: "tree", 3: "sky"}
WORDS = ("cat", "dog", "tree", "sky", "photo", "of", "a", "an", "old", "grey")

_SHORT = {"shortest_edge": 96, "longest_edge": 128}
_TINY = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
_STAGES = ["stage1", "stage2", "stage3", "stage4"]
_QUERIES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "num_labels": 4, "id2label": LABELS}
_HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}


def a_picture(path: Path, *, rotated: bool = False, size: tuple[int, int] = (180, 120)) -> Path:
    """Write a picture of shapes and noise; `rotated` says by EXIF that people see it upright."""
    width, height = size
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 / width, y * 255 / height, (x // 20 + y // 20) % 2 * 200], axis=2)
    pixels[height // 4 : height // 2, width // 3 : width // 2] = (250, 20, 90)
    image = Image.fromarray(np.clip(pixels + rng.normal(0, 12, pixels.shape), 0, 255).astype(np.uint8))
    exif = Image.Exif()
    if rotated:
        exif[0x0112] = 6
    image.save(path, format="PNG", exif=exif)
    return path


def as_seen(path: Path) -> Image.Image:
    """Return a picture as people see it."""
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


def a_depth_anything(folder: Path, **config: Any) -> Path:
    """Save a Depth Anything for pictures of about 56 px."""
    backbone = transformers.Dinov2Config(
        **{**_TINY, "image_size": 56, "patch_size": 14, "out_features": _STAGES, "reshape_hidden_states": False}
    )
    small = {"reassemble_hidden_size": 16, "neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8, "head_hidden_size": 8}
    made = transformers.DepthAnythingConfig(backbone_config=backbone, patch_size=14, **small, **config)
    size = {"size": {"height": 56, "width": 56}, "keep_aspect_ratio": True, "ensure_multiple_of": 14}
    return _save(transformers.DepthAnythingForDepthEstimation(made), folder, DPTImageProcessorPil(**size))


def a_dpt(folder: Path) -> Path:
    """Save a DPT for pictures of 64 x 64 px."""
    small = {"neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8, "backbone_out_indices": [0, 1, 2, 3]}
    made = transformers.DPTConfig(**{**_TINY, "image_size": 64, "patch_size": 8, "is_hybrid": False, **small})
    size = {"size": {"height": 64, "width": 64}}
    return _save(transformers.DPTForDepthEstimation(made), folder, DPTImageProcessorPil(**size))


def a_glpn(folder: Path) -> Path:
    """Save a GLPN of up to ten metres."""
    small = {"hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2]}
    made = transformers.GLPNConfig(**small, decoder_hidden_size=8, max_depth=10)
    return _save(transformers.GLPNForDepthEstimation(made), folder, GLPNImageProcessorPil())


def a_detr(folder: Path) -> Path:
    """Save a DETR for pictures whose shorter edge is 96 px."""
    made = transformers.DetrConfig(**_detr(16), **_resnet())
    return _save(transformers.DetrForObjectDetection(made), folder, DetrImageProcessorPil(size=_SHORT))


def a_panoptic_detr(folder: Path) -> Path:
    """Save a DETR with masks."""
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
    made = transformers.DetrConfig(**{**_detr(16), "d_model": 64, **heads}, **_resnet(*_STAGES))
    return _save(transformers.DetrForSegmentation(made), folder, DetrImageProcessorPil(size=_SHORT), std=0.2)


def a_deformable_detr(folder: Path) -> Path:
    """Save a Deformable DETR, whose boxes have several classes."""
    small = {"num_feature_levels": 2, "encoder_n_points": 2, "decoder_n_points": 2}
    made = transformers.DeformableDetrConfig(
        **{**_detr(40), "d_model": 32, "decoder_layers": 2}, **small, **_resnet("stage3", "stage4")
    )
    network = transformers.DeformableDetrForObjectDetection(made)
    return _save(network, folder, DeformableDetrImageProcessorPil(size=_SHORT))


def a_conditional_detr(folder: Path) -> Path:
    """Save a Conditional DETR for pictures whose shorter edge is 96 px."""
    made = transformers.ConditionalDetrConfig(**_detr(16), **_resnet())
    network = transformers.ConditionalDetrForObjectDetection(made)
    return _save(network, folder, ConditionalDetrImageProcessorPil(size=_SHORT))


def a_dab_detr(folder: Path) -> Path:
    """Save a DAB-DETR, which has the image processor of Conditional DETR."""
    layers = {"encoder_layers": 1, "decoder_layers": 1, "hidden_size": 16, "num_queries": 16, "id2label": LABELS}
    made = transformers.DabDetrConfig(**layers, **_HEADS, **_resnet())
    return _save(transformers.DabDetrForObjectDetection(made), folder, ConditionalDetrImageProcessorPil(size=_SHORT))


def a_table_transformer(folder: Path) -> Path:
    """Save a Table Transformer, which has the image processor of DETR."""
    made = transformers.TableTransformerConfig(**_detr(16), **_resnet())
    return _save(transformers.TableTransformerForObjectDetection(made), folder, DetrImageProcessorPil(size=_SHORT))


def an_rt_detr(folder: Path) -> Path:
    """Save an RT-DETR for pictures of 64 x 64 px."""
    network = transformers.RTDetrForObjectDetection(transformers.RTDetrConfig(**_rt_detr()))
    return _save(network, folder, RTDetrImageProcessorPil(size={"height": 64, "width": 64}))


def an_rt_detr_v2(folder: Path) -> Path:
    """Save an RT-DETR v2, which has the image processor of RT-DETR."""
    network = transformers.RTDetrV2ForObjectDetection(transformers.RTDetrV2Config(**_rt_detr()))
    return _save(network, folder, RTDetrImageProcessorPil(size={"height": 64, "width": 64}))


def a_d_fine(folder: Path) -> Path:
    """Save a D-FINE, which has the image processor of RT-DETR."""
    network = transformers.DFineForObjectDetection(transformers.DFineConfig(**_rt_detr(), decoder_n_points=[2] * 3))
    return _save(network, folder, RTDetrImageProcessorPil(size={"height": 64, "width": 64}))


def a_yolos(folder: Path) -> Path:
    """Save a YOLOS for pictures whose shorter edge is 96 px."""
    made = transformers.YolosConfig(
        **{**_TINY, "image_size": [96, 128], "patch_size": 16, "num_detection_tokens": 8, "id2label": LABELS}
    )
    return _save(transformers.YolosForObjectDetection(made), folder, YolosImageProcessorPil(size=_SHORT))


def a_mask2former(folder: Path) -> Path:
    """Save a Mask2Former for pictures whose shorter edge is 96 px."""
    small = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "dim_feedforward": 16}
    made = transformers.Mask2FormerConfig(
        backbone_config=_swin(), encoder_layers=1, decoder_layers=2, encoder_feedforward_dim=16,
        num_attention_heads=2, num_queries=10, id2label=LABELS, **small,
    )  # fmt: skip
    network = transformers.Mask2FormerForUniversalSegmentation(made)
    return _save(network, folder, Mask2FormerImageProcessorPil(size=_SHORT))


def a_maskformer(folder: Path) -> Path:
    """Save a MaskFormer for pictures whose shorter edge is 96 px."""
    made = transformers.MaskFormerConfig(
        backbone_config=_swin(), decoder_config=transformers.DetrConfig(**_detr(8), **_resnet()),
        fpn_feature_size=32, mask_feature_size=32, id2label=LABELS,
    )  # fmt: skip
    network = transformers.MaskFormerForInstanceSegmentation(made)
    return _save(network, folder, MaskFormerImageProcessorPil(size=_SHORT))


def a_clip(folder: Path, name: str = "CLIP") -> Path:
    """Save a CLIP, or another network of its form, for pictures of 32 x 32 px."""
    words(folder, pad="[end]")
    made = getattr(transformers, f"{name}Config")(
        text_config={
            **_TINY,
            "vocab_size": len(WORDS) + 3,
            "max_position_embeddings": 12,
            "eos_token_id": len(WORDS) + 2,
        },
        vision_config={**_TINY, "image_size": 32, "patch_size": 8},
        projection_dim=8,
    )
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return _save(getattr(transformers, f"{name}Model")(made), folder, CLIPImageProcessorPil(**size))


def a_metaclip_2(folder: Path) -> Path:
    """Save a MetaCLIP 2 for pictures of 32 x 32 px."""
    return a_clip(folder, "MetaClip2")


def a_siglip(folder: Path) -> Path:
    """Save a SigLIP for pictures of 32 x 32 px."""
    words(folder, pad="[pad]")
    made = transformers.SiglipConfig(
        text_config={**_TINY, "vocab_size": len(WORDS) + 3, "max_position_embeddings": 64},
        vision_config={**_TINY, "image_size": 32, "patch_size": 8},
    )
    size = {"size": {"height": 32, "width": 32}}
    return _save(transformers.SiglipModel(made), folder, SiglipImageProcessorPil(**size))


def words(folder: Path, *, pad: str) -> None:
    """Write a tokenizer of whole words; every text ends with [end], which comes last as in CLIP's."""
    vocabulary = {word: number for number, word in enumerate(("[pad]", "[?]", *WORDS, "[end]"))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[?]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [end]", pair=None, special_tokens=[("[end]", vocabulary["[end]"])]
    )
    named = {"unk_token": "[?]", "eos_token": "[end]", "pad_token": pad, "model_input_names": ["input_ids"]}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


def _save(network: Any, folder: Path, processor: Any, *, std: float = 0.3) -> Path:
    """Save a network with far weights, and what prepares its pictures."""
    processor.save_pretrained(folder)
    return save_spread(network, folder, std=std)


def save_spread(network: Any, folder: Path, *, std: float) -> Path:
    """Save a network whose weights are so far from each other that its answers are, too."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, std, generator=generator)
            elif parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return save(network, folder)


def _detr(queries: int) -> dict[str, Any]:
    return {**_QUERIES, **_HEADS, "num_queries": queries, "id2label": LABELS}


def _rt_detr() -> dict[str, Any]:
    stages = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "layer_type": "basic"}
    backbone = transformers.RTDetrResNetConfig(**stages, out_features=["stage2", "stage3", "stage4"])
    channels = {"encoder_hidden_dim": 16, "encoder_in_channels": [8, 16, 16], "decoder_in_channels": [16] * 3}
    queries = {"num_queries": 12, "num_denoising": 0, "decoder_layers": 2}
    return {**_QUERIES, **_HEADS, **channels, **queries, "backbone_config": backbone}


def _resnet(*stages: str) -> dict[str, Any]:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, layer_type="basic",
        out_features=list(stages or ("stage4",)),
    )  # fmt: skip
    return {"backbone_config": backbone, "use_timm_backbone": False, "use_pretrained_backbone": False}


def _swin() -> Any:
    return transformers.SwinConfig(
        image_size=64, embed_dim=8, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=4, out_features=_STAGES
    )
