"""The networks of each kind of pipeline, as the step loop sees them: what they are told, noise in an image, pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.drawing.pipeline import Told
from penstock.workers.engine.diffusers.parts import Directory
from penstock.workers.engine.transformers.texts import checked_tokens

#: How wide a preview is, in pixels: what it is decoded from is shrunk before.
PREVIEW_PX = 128


class Networks(Protocol):
    """The networks of a pipeline. `N` images are a batch; those of `predict` may stand at different steps."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """All of them."""
        ...

    @property
    def channels(self) -> int:
        """How many numbers each place of a noisy image has."""
        ...

    def read(self, data: Mapping[str, Any], *, guided: bool) -> tuple[Any, ...]:
        """Return what a prompt tells, to be compared and hashed; raise what says how it does not fit."""
        ...

    def understand(self, told: tuple[Any, ...], device: torch.device) -> Tensor:
        """Return what `predict` is told of one image; a guided one's has two rows: without, with what was asked for."""
        ...

    def predict(self, images: Tensor, times: Tensor, told: Sequence[Tensor], guidance: Tensor | None) -> Tensor:
        """Return the noise in images (N, C, h, w) at times (N,), float32; `guidance` is (N, 1, 1, 1), or None."""
        ...

    def decode(self, images: Tensor) -> Tensor:
        """Return finished images as colours from -1 to 1, (N, 1 or 3, H, W)."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """A network that is told nothing and works on pixels."""

    unet: Any

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The only one."""
        return (self.unet,)

    @property
    def channels(self) -> int:
        """Of an image."""
        return int(self.unet.config.in_channels)

    def read(self, data: Mapping[str, Any], *, guided: bool) -> tuple[Any, ...]:  # noqa: ARG002
        """There is nothing to tell."""
        return ()

    def understand(self, told: tuple[Any, ...], device: torch.device) -> Tensor:  # noqa: ARG002
        """There is nothing to understand."""
        return torch.empty(0, device=device)

    def predict(self, images: Tensor, times: Tensor, told: Sequence[Tensor], guidance: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return the noise."""
        found: Tensor = self.unet(images, times, return_dict=False)[0]
        return found.float()

    def decode(self, images: Tensor) -> Tensor:
        """They are pixels already."""
        return images


@dataclass(frozen=True, slots=True)
class Texts:
    """Stable Diffusion: a text, its encoder, a U-Net on latents, and the VAE that makes pixels of them."""

    unet: Any
    vae: Any
    text_encoder: Any

    @property
    def modules(self) -> Sequence[nn.Module]:
        """All three."""
        return self.unet, self.vae, self.text_encoder

    @property
    def channels(self) -> int:
        """Of a latent."""
        return int(self.unet.config.in_channels)

    def read(self, data: Mapping[str, Any], *, guided: bool) -> tuple[Any, ...]:
        """Return the tokens of what is asked for, before them of what is not where it is guided away from that."""
        names = ("negative_ids", "input_ids") if guided else ("input_ids",)
        config = self.text_encoder.config
        places = config.max_position_embeddings
        read = [checked_tokens(data.get(name), config.vocab_size, places) for name in names]
        if len({len(ids) for ids in read}) > 1:
            raise ProcessorFailed("`input_ids` and `negative_ids` have one length")
        return tuple(tuple(ids.tolist()) for ids in read)

    def understand(self, told: tuple[Any, ...], device: torch.device) -> Tensor:
        """Encode each text by itself, as the library does."""
        return torch.cat([self.text_encoder(torch.tensor([ids], device=device))[0] for ids in told])

    def predict(self, images: Tensor, times: Tensor, told: Sequence[Tensor], guidance: Tensor | None) -> Tensor:
        """Return the noise; guided, the difference that the text makes counts `guidance` times."""
        if guidance is None:
            found: Tensor = self.unet(images, times, encoder_hidden_states=torch.stack([*told])[:, 0])[0]
            return found.float()
        texts = torch.stack([*told], dim=1).flatten(0, 1)
        twice = self.unet(_twice(images), _twice(times), encoder_hidden_states=texts)[0].float()
        without, asked = twice.chunk(2)
        guided: Tensor = without + guidance * (asked - without)
        return guided

    def decode(self, images: Tensor) -> Tensor:
        """Return the pixels of latents."""
        return _decode(self.vae, images)


@dataclass(frozen=True, slots=True)
class Labels:
    """DiT: a label, a transformer on latents, and the VAE that makes pixels of them."""

    transformer: Any
    vae: Any

    @property
    def modules(self) -> Sequence[nn.Module]:
        """Both."""
        return self.transformer, self.vae

    @property
    def channels(self) -> int:
        """Of a latent."""
        return int(self.transformer.config.in_channels)

    def read(self, data: Mapping[str, Any], *, guided: bool) -> tuple[Any, ...]:
        """Return the label, before it the one that stands for none where it is guided away from that."""
        label, count = data.get("label"), self._count
        if type(label) is not int:
            raise ProcessorFailed("the network takes `label`, a whole number")
        if not 0 <= label < count:
            raise InvalidInput(f"the network knows the labels 0 to {count - 1}, not {label}")
        return (count, label) if guided else (label,)

    def understand(self, told: tuple[Any, ...], device: torch.device) -> Tensor:
        """Labels are numbers already."""
        return torch.tensor(told, device=device)

    def predict(self, images: Tensor, times: Tensor, told: Sequence[Tensor], guidance: Tensor | None) -> Tensor:
        """Return the noise; guided, the difference that the label makes counts `guidance` times."""
        labels = torch.stack([*told], dim=1).flatten()
        if guidance is not None:
            images, times = _twice(images), _twice(times)
        # What comes after the noise's channels is its variance, which none of the schedulers asks for.
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
    """Load the networks of a directory, on the processor."""
    match directory.pipeline.kind.told:
        case Told.TEXT:
            return Texts(directory.network("unet"), directory.network("vae"), directory.network("text_encoder"))
        case Told.LABEL:
            return Labels(directory.network("transformer", "DiTTransformer2DModel"), directory.network("vae"))
        case Told.NOTHING:
            return Plain(directory.network("unet"))


def shrunk(images: Tensor, factor: int) -> Tensor:
    """Return images (N, C, h, w) small enough that what is decoded from them is no larger than a preview."""
    places = max(1, PREVIEW_PX // factor)
    stride = -(-max(images.shape[-2:]) // places)
    return torch.nn.functional.avg_pool2d(images, stride, ceil_mode=True) if stride > 1 else images


def _twice(batch: Tensor) -> Tensor:
    return torch.cat([batch, batch])


def _decode(vae: Any, images: Tensor) -> Tensor:
    found: Tensor = vae.decode(images / vae.config.scaling_factor, return_dict=False)[0]
    return found.float()
