"""Similarity of images and texts, by networks that embed both: CLIP, SigLIP.

Images and texts are separate prompts: each is embedded once, and the texts of one job share batches with those of
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ModelUnavailable
from penstock.processors.base import Array, Prompt, Value
from penstock.workers.engine.base import Runner
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.images import checked_pixels, only_size_of
from penstock.workers.engine.transformers.inputs import IDS
from penstock.workers.engine.transformers.passes import named, pass_runner
from penstock.workers.engine.transformers.texts import checked_tokens


def load_zero_shot_classifier(directory: HubDirectory) -> Runner:
    """Load a network that embeds images and texts for comparison.

    Prompts have `pixels`, float32 (channels, H, W), or `input_ids`, int64 (T,), special tokens and padding included.
    Outputs have `embedding`, float32 (D,) of length 1. Outputs of texts also have `scale` and `bias`: the logit of an
    image and a text is the product of their embeddings times `scale` plus `bias`.
    """
    network = directory.load("AutoModel")
    if not hasattr(network, "logit_scale"):
        raise ModelUnavailable(f"{type(network).__name__} is not the whole model: it embeds images or texts alone")
    text, vision = network.config.text_config, network.config.vision_config
    channels, only_size = getattr(vision, "num_channels", 3), only_size_of(network, vision)
    vocabulary, max_tokens = text.vocab_size, getattr(text, "max_position_embeddings", None)

    def read(prompt: Prompt) -> tuple[dict[str, Array], None]:
        if IDS in prompt.data:
            return {IDS: checked_tokens(prompt.data[IDS], vocabulary, max_tokens)[None]}, None
        return {"pixel_values": checked_pixels(prompt.data.get("pixels"), channels, only_size)[None]}, None

    return pass_runner(directory, network, read, _embeddings, channels_last=True)


def _embeddings(
    network: Any,
    inputs: Mapping[str, Tensor],
    asked: Sequence[None],  # noqa: ARG001
) -> Sequence[Mapping[str, Value]]:
    """Run the image encoder or the text encoder."""
    of_text = IDS in inputs
    embedded = pooled((network.get_text_features if of_text else network.get_image_features)(**inputs))
    bias = getattr(network, "logit_bias", None)
    scale = {"scale": float(network.logit_scale.exp()), "bias": 0.0 if bias is None else float(bias)}
    unit = named(embedding=embedded / embedded.norm(dim=-1, keepdim=True))
    return [{**one, **scale} for one in unit] if of_text else unit


def pooled(features: Any) -> Tensor:
    """Return the vectors (N, D) of the library's features, in float32."""
    return (features if isinstance(features, Tensor) else torch.as_tensor(features.pooler_output)).float()
