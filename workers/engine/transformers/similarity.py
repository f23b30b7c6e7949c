"""Similarity of images and texts, by networks that embed both: CLIP, SigLIP.

Images and texts are separate prompts: each is embedded once, and the texts of one job share batches with those of
another.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ModelUnavailable
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.images import checked_pixels, only_size_of
from penstock.workers.engine.transformers.texts import checked_tokens


@dataclass(frozen=True, slots=True)
class SentInput:
    """An image or a text on its way to the device."""

    sent: Sent
    is_text: bool


@dataclass(frozen=True, slots=True)
class SimilarityRunner(NetworkRunner):
    """A network that embeds images and texts for comparison.

    Prompts have `pixels`, float32 (channels, H, W), or `input_ids`, int64 (T,), special tokens and padding included.
    Outputs have `embedding`, float32 (D,) of length 1. Outputs of texts also have `scale` and `bias`: the logit of an
    image and a text is the product of their embeddings times `scale` plus `bias`.
    """

    channels: int
    only_size: tuple[int, int] | None
    vocabulary: int
    max_tokens: int | None

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the image's shape or the text's length: equal ones share a batch, without padding."""
        if "input_ids" in prompt.data:
            return "text", len(prompt.data["input_ids"])
        return "image", prompt.data["pixels"].shape

    def admit(self, prompt: Prompt) -> SentInput:
        """Return the image or the tokens on their way to the device."""
        if "input_ids" in prompt.data:
            ids = checked_tokens(prompt.data["input_ids"], self.vocabulary, self.max_tokens)
            return SentInput(self.device.send(ids), is_text=True)
        pixels = checked_pixels(prompt.data.get("pixels"), self.channels, self.only_size)
        return SentInput(self.device.send(pixels[None], channels_last=True), is_text=False)

    def step(self, states: Sequence[SentInput]) -> Sequence[Done]:
        """Run the image encoder or the text encoder once."""
        with self.device.running():
            received = [self.device.receive(state.sent) for state in states]
            if states[0].is_text:
                embedded = pooled(self.network.get_text_features(input_ids=torch.stack(received)))
                also = self._scale()
            else:
                embedded, also = pooled(self.network.get_image_features(pixel_values=torch.cat(received))), {}
            unit = embedded / embedded.norm(dim=-1, keepdim=True)
            return [Done(Output({"embedding": array, **also})) for array in arrays_of(unit)]

    def _scale(self) -> dict[str, float]:
        bias = getattr(self.network, "logit_bias", None)
        return {"scale": float(self.network.logit_scale.exp()), "bias": 0.0 if bias is None else float(bias)}


def load_zero_shot_classifier(directory: HubDirectory) -> Runner:
    """Load a network that embeds images and texts."""
    model = directory.model
    device = TorchDevice.of(model)
    network = directory.load("AutoModel")
    if not hasattr(network, "logit_scale"):
        raise ModelUnavailable(f"{type(network).__name__} is not the whole model: it embeds images or texts alone")
    device.place(network, channels_last=True)
    text, vision = network.config.text_config, network.config.vision_config
    return SimilarityRunner(
        network,
        device,
        max_batch=model.max_batch,
        memory_bytes=weights_bytes(network),
        channels=getattr(vision, "num_channels", 3),
        only_size=only_size_of(network, vision),
        vocabulary=text.vocab_size,
        max_tokens=getattr(text, "max_position_embeddings", None),
    )


def pooled(features: Any) -> Tensor:
    """Return the vectors (N, D) of the library's features, in float32."""
    return (features if isinstance(features, Tensor) else torch.as_tensor(features.pooler_output)).float()
