"""The networks of each kind of pipeline: encoding of the condition, prediction of noise, decoding to pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.image_generation.pipeline import Conditioning
from penstock.workers.engine.diffusers.parts import Directory
from penstock.workers.engine.transformers.texts import checked_tokens

#: Largest side of a preview in pixels: latents are shrunk before they are decoded.
PREVIEW_PX = 128


class Networks(Protocol):
    """The networks of a pipeline. The `N` images of a batch may be at different steps."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The networks."""
        ...

    @property
    def channels(self) -> int:
        """The number of channels of a noisy image."""
        ...

    def read(self, data: Mapping[str, Any], *, guided: bool) -> tuple[Any, ...]:
        """Return a prompt's condition as hashable values; raise an error for one that does not fit."""
        ...

    def encode(self, condition: tuple[Any, ...], device: torch.device) -> Tensor:
        """Return the encoded condition of an image; with guidance two rows: without, then with the condition."""
        ...

    def predict(self, images: Tensor, times: Tensor, encoded: Sequence[Tensor], guidance: Tensor | None) -> Tensor:
        """Return the noise in images (N, C, h, w) at times (N,), float32; `guidance` is (N, 1, 1, 1) or None."""
        ...

    def decode(self, images: Tensor) -> Tensor:
        """Return the pixels of finished images, from -1 to 1, (N, 1 or 3, H, W)."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """An unconditional network on pixels."""

    unet: Any

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The U-Net."""
        return (self.unet,)

    @property
    def channels(self) -> int:
        """The number of channels of an image."""
        return int(self.unet.config.in_channels)

    def read(self, data: Mapping[str, Any], *, guided: bool) -> tuple[Any, ...]:  # noqa: ARG002
        """Return no condition."""
        return ()

    def encode(self, condition: tuple[Any, ...], device: torch.device) -> Tensor:  # noqa: ARG002
        """Return an empty tensor."""
        return torch.empty(0, device=device)

    def predict(self, images: Tensor, times: Tensor, encoded: Sequence[Tensor], guidance: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return the noise."""
        found: Tensor = self.unet(images, times, return_dict=False)[0]
        return found.float()

    def decode(self, images: Tensor) -> Tensor:
        """Return the images, which are pixels already."""
        return images


@dataclass(frozen=True, slots=True)
class Texts:
    """Stable Diffusion: a text encoder, a U-Net on latents, and a VAE that decodes latents."""

    unet: Any
    vae: Any
    text_encoder: Any

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The U-Net, the VAE and the text encoder."""
        return self.unet, self.vae, self.text_encoder

    @property
    def channels(self) -> int:
        """The number of channels of a latent."""
        return int(self.unet.config.in_channels)

    def read(self, data: Mapping[str, Any], *, guided: bool) -> tuple[Any, ...]:
        """Return the prompt's tokens; with guidance the tokens of the negative prompt come first."""
        names = ("negative_ids", "input_ids") if guided else ("input_ids",)
        config = self.text_encoder.config
        places = config.max_position_embeddings
        read = [checked_tokens(data.get(name), config.vocab_size, places) for name in names]
        if len({len(ids) for ids in read}) > 1:
            raise ProcessorFailed("`input_ids` and `negative_ids` must have the same length")
        return tuple(tuple(ids.tolist()) for ids in read)

    def encode(self, condition: tuple[Any, ...], device: torch.device) -> Tensor:
        """Encode each text alone, as the library does."""
        return torch.cat([self.text_encoder(torch.tensor([ids], device=device))[0] for ids in condition])

    def predict(self, images: Tensor, times: Tensor, encoded: Sequence[Tensor], guidance: Tensor | None) -> Tensor:
        """Return the noise; with guidance the difference made by the text counts `guidance` times."""
        if guidance is None:
            found: Tensor = self.unet(images, times, encoder_hidden_states=torch.stack([*encoded])[:, 0])[0]
            return found.float()
        texts = torch.stack([*encoded], dim=1).flatten(0, 1)
        twice = self.unet(_twice(images), _twice(times), encoder_hidden_states=texts)[0].float()
        without, asked = twice.chunk(2)
        guided: Tensor = without + guidance * (asked - without)
        return guided

    def decode(self, images: Tensor) -> Tensor:
        """Return the pixels of latents."""
        return _decode(self.vae, images)


@dataclass(frozen=True, slots=True)
class Labels:
    """DiT: a transformer on latents with a label, and a VAE that decodes latents."""

    transformer: Any
    vae: Any

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The transformer and the VAE."""
        return self.transformer, self.vae

    @property
    def channels(self) -> int:
        """The number of channels of a latent."""
        return int(self.transformer.config.in_channels)

    def read(self, data: Mapping[str, Any], *, guided: bool) -> tuple[Any, ...]:
        """Return the label; with guidance the label for none comes first."""
        label, count = data.get("label"), self._count
        if type(label) is not int:
            raise ProcessorFailed("the network takes `label`, a whole number")
        if not 0 <= label < count:
            raise InvalidInput(f"the network knows the labels 0 to {count - 1}, not {label}")
        return (count, label) if guided else (label,)

    def encode(self, condition: tuple[Any, ...], device: torch.device) -> Tensor:
        """Return the labels as a tensor."""
        return torch.tensor(condition, device=device)

    def predict(self, images: Tensor, times: Tensor, encoded: Sequence[Tensor], guidance: Tensor | None) -> Tensor:
        """Return the noise; with guidance the difference made by the label counts `guidance` times."""
        labels = torch.stack([*encoded], dim=1).flatten()
        if guidance is not None:
            images, times = _twice(images), _twice(times)
        # The channels after the noise are its variance, which no scheduler here uses.
        found = self.transformer(images, timestep=times, class_labels=labels)[0][:, : self.channels].float()
        if guidance is None:
            noise: Tensor = found
            return noise
        without, asked = found.chunk(2)
        guided: Tensor = without + guidance * (asked - without)
        return guided

    def decode(self, images: Tensor) -> Tensor:
        """Return the pixels of latents."""
        return _decode(self.vae, images)

    @property
    def _count(self) -> int:
        return int(self.transformer.config.num_embeds_ada_norm)


def load_networks(directory: Directory) -> Networks:
    """Load the networks of a directory, on the CPU."""
    match directory.pipeline.kind.conditioning:
        case Conditioning.TEXT:
            return Texts(directory.network("unet"), directory.network("vae"), directory.network("text_encoder"))
        case Conditioning.LABEL:
            return Labels(directory.network("transformer", "DiTTransformer2DModel"), directory.network("vae"))
        case Conditioning.NOTHING:
            return Plain(directory.network("unet"))


def shrunk(images: Tensor, factor: int) -> Tensor:
    """Return images (N, C, h, w) shrunk so that the decoded image is no larger than a preview."""
    places = max(1, PREVIEW_PX // factor)
    stride = -(-max(images.shape[-2:]) // places)
    return torch.nn.functional.avg_pool2d(images, stride, ceil_mode=True) if stride > 1 else images


def _twice(batch: Tensor) -> Tensor:
    return torch.cat([batch, batch])


def _decode(vae: Any, images: Tensor) -> Tensor:
    found: Tensor = vae.decode(images / vae.config.scaling_factor, return_dict=False)[0]
    return found.float()
