"""Diffusion pipelines for tests: tiny networks with random weights in directories as `save_pretrained` writes them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from tokenizers import pre_tokenizers

from penstock.models import Model
from penstock.workers.engine.base import Runner
from penstock.workers.engine.runners import Runners

diffusers.utils.logging.set_verbosity_error()
diffusers.utils.logging.disable_progress_bar()

#: Tokens that a text is padded to.
PLACES = 16
#: Pairs of letters that are one token; with the letters themselves they are the whole vocabulary.
_MERGES = ("c a", "ca t</w>", "h a", "ha t</w>", "a n", "an d</w>")


def a_painter(folder: Path, scheduler: str = "DDIMScheduler", **config: Any) -> Path:
    """Save a Stable Diffusion whose images are 64 x 64 px, and whose latents are an eighth of that."""
    torch.manual_seed(5)
    text_encoder = clip_text_encoder()
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16, attention_head_dim=4,
    )  # fmt: skip
    loud(unet)
    pipeline = diffusers.StableDiffusionPipeline(
        vae_of((4, 8, 8, 8)), text_encoder, clip_tokenizer(), unet, _scheduler(scheduler, **config),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    return saved(pipeline, folder)


def a_dreamer(folder: Path, scheduler: str = "DDPMScheduler", pipeline: str = "DDPMPipeline", **config: Any) -> Path:
    """Save a diffusion model of 16 x 16 px that is told nothing."""
    torch.manual_seed(6)
    unet = diffusers.UNet2DModel(
        sample_size=16, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    )  # fmt: skip
    loud(unet)
    return saved(getattr(diffusers, pipeline)(unet, _scheduler(scheduler, **config)), folder)


def a_labeller(folder: Path, scheduler: str = "DDIMScheduler", **config: Any) -> Path:
    """Save a DiT of 32 x 32 px that is told one of 1000 labels, of which three have names."""
    torch.manual_seed(7)
    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=16,
        patch_size=2, norm_num_groups=4, num_embeds_ada_norm=1000,
    )  # fmt: skip
    loud(transformer)
    names = {0: "tench, Tinca tinca", 1: "goldfish", 2: "white shark"}
    labels = {str(number): names.get(number, f"thing {number}") for number in range(1000)}
    saved(diffusers.DiTPipeline(transformer, vae_of((8, 8)), _scheduler(scheduler, **config)), folder)
    index = folder / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "id2label": labels}))
    return folder


def a_model(source: Path, **fields: Any) -> Model:
    """Return a painter's record."""
    common = {"title": "P", "processor": "image-generation", "revision": "1", "device": "cpu", "max_batch": 4}
    return Model(name="painter", runner="diffusers", source=str(source), **{**common, **fields})


def load(source: Path, **fields: Any) -> Runner:
    """Load a painter."""
    return Runners.installed().load(a_model(source, **fields))


def loud(network: Any) -> None:
    """Make a network's answers differ: fresh ones end in zeros, or in numbers that drown in what they are added to."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)


def with_old_vocabulary(folder: Path) -> Path:
    """Write a pipeline's tokenizer as it was before `tokenizer.json`: the vocabulary and the merges by themselves."""
    tokenizer = folder / "tokenizer"
    (tokenizer / "tokenizer.json").unlink()
    _write_vocabulary(tokenizer)
    return folder


def clip_text_encoder(name: str = "CLIPTextModel") -> Any:
    """Return a tiny text encoder of CLIP."""
    torch.manual_seed(8)
    config = transformers.CLIPTextConfig(
        vocab_size=len(_vocabulary()), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=PLACES, projection_dim=16, bos_token_id=len(_vocabulary()) - 2,
        eos_token_id=len(_vocabulary()) - 1, pad_token_id=len(_vocabulary()) - 1, initializer_range=0.5,
    )  # fmt: skip
    return getattr(transformers, name)(config)


def vae_of(channels: tuple[int, ...], latents: int = 4, **config: Any) -> Any:
    """Return a tiny VAE that halves an image after each block of channels but the last."""
    vae = diffusers.AutoencoderKL(
        block_out_channels=channels, down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels), latent_channels=latents, norm_num_groups=4, **config,
    )  # fmt: skip
    loud(vae)
    return vae


def _scheduler(name: str, **config: Any) -> Any:
    known = inspect.signature(getattr(diffusers, name)).parameters
    # As published pipelines have them: the library warns of what Stable Diffusions were before.
    usual = {"steps_offset": 1, "clip_sample": False, "skip_prk_steps": True}
    return getattr(diffusers, name)(**{**{key: usual[key] for key in usual if key in known}, **config})


def _vocabulary() -> dict[str, int]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ends = [f"{letter}</w>" for letter in letters]
    merged = ["".join(merge.split(" ")) for merge in _MERGES]
    every = [*letters, *ends, *merged, "<|startoftext|>", "<|endoftext|>"]
    return {token: number for number, token in enumerate(every)}


def _write_vocabulary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(_vocabulary()))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *_MERGES]) + "\n")


def clip_tokenizer() -> Any:
    """Return the tokenizer of the text encoder."""
    merges = [tuple(merge.split(" ")) for merge in _MERGES]
    return transformers.CLIPTokenizer(vocab=_vocabulary(), merges=merges, model_max_length=PLACES)


def saved(pipeline: Any, folder: Path) -> Path:
    """Save a pipeline; return its directory."""
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(folder, safe_serialization=True)
    return folder
