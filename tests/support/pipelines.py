"""Pipelines of diffusers for tests, of the families that the library's own calls serve: tiny, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tests.support.diffusion import clip_text_encoder, clip_tokenizer, loud, saved, vae_of

#: Tokens of the tokenizers here: those of all bytes, and these.
_SPECIAL = ("<pad>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>")


def sdxl(folder: Path) -> Path:
    """Save a Stable Diffusion XL of 64 x 64 px."""
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32, attention_head_dim=(2, 4), use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=8, transformer_layers_per_block=(1, 1), projection_class_embeddings_input_dim=64,
    )  # fmt: skip
    first, second = clip_text_encoder(), clip_text_encoder("CLIPTextModelWithProjection")
    return saved(
        diffusers.StableDiffusionXLPipeline(
            vae_of((4, 8, 8, 8)), first, second, clip_tokenizer(), clip_tokenizer(), _loud(unet), _euler()
        ),
        folder,
    )


def lcm(folder: Path) -> Path:
    """Save a latent consistency model of 64 x 64 px."""
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16, attention_head_dim=4, time_cond_proj_dim=8,
    )  # fmt: skip
    scheduler = diffusers.LCMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    return saved(
        diffusers.LatentConsistencyModelPipeline(
            vae_of((4, 8, 8, 8)), clip_text_encoder(), clip_tokenizer(), _loud(unet), scheduler, None, None,
            requires_safety_checker=False,
        ),
        folder,
    )  # fmt: skip


def sd3(folder: Path) -> Path:
    """Save a Stable Diffusion 3 of 64 x 64 px."""
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=16, num_layers=1, attention_head_dim=8, num_attention_heads=4,
        caption_projection_dim=32, joint_attention_dim=32, pooled_projection_dim=32, out_channels=16,
    )  # fmt: skip
    texts = [clip_text_encoder("CLIPTextModelWithProjection") for _ in range(2)]
    return saved(
        diffusers.StableDiffusion3Pipeline(
            transformer=_loud(transformer), scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
            vae=_shifted(16),
            text_encoder=texts[0], tokenizer=clip_tokenizer(), text_encoder_2=texts[1], tokenizer_2=clip_tokenizer(),
            text_encoder_3=_t5(), tokenizer_3=byte_tokenizer(),
        ),
        folder,
    )  # fmt: skip


def flux(folder: Path) -> Path:
    """Save a Flux."""
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=16, axes_dims_rope=[4, 4, 8], guidance_embeds=True,
    )  # fmt: skip
    return saved(
        diffusers.FluxPipeline(
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
            vae=_shifted(4),
            text_encoder=clip_text_encoder(), tokenizer=clip_tokenizer(),
            text_encoder_2=_t5(), tokenizer_2=byte_tokenizer(),
            transformer=_loud(transformer),
        ),
        folder,
    )  # fmt: skip


def kontext(folder: Path) -> Path:
    """Save a Flux that changes images by instructions."""
    pipeline = diffusers.FluxPipeline.from_pretrained(flux(folder / "flux"))
    return saved(diffusers.FluxKontextPipeline(**pipeline.components), folder / "kontext")


def chroma(folder: Path) -> Path:
    """Save a Chroma."""
    transformer = diffusers.ChromaTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=(4, 4, 8), approximator_num_channels=8, approximator_hidden_dim=32,
        approximator_layers=1,
    )  # fmt: skip
    return saved(
        diffusers.ChromaPipeline(
            diffusers.FlowMatchEulerDiscreteScheduler(), _shifted(4), _t5(), byte_tokenizer(), _loud(transformer)
        ),
        folder,
    )


def auraflow(folder: Path) -> Path:
    """Save an AuraFlow of 64 x 64 px."""
    transformer = diffusers.AuraFlowTransformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8,
        num_attention_heads=4, caption_projection_dim=32, joint_attention_dim=32, out_channels=4,
        pos_embed_max_size=256,
    )  # fmt: skip
    return saved(
        diffusers.AuraFlowPipeline(
            byte_tokenizer(), _t5("UMT5"), vae_of((4, 8, 8, 8)), _loud(transformer),
            diffusers.FlowMatchEulerDiscreteScheduler(),
        ),
        folder,
    )  # fmt: skip


def pixart_sigma(folder: Path) -> Path:
    """Save a PixArt Sigma of 256 x 256 px."""
    return pixart(folder, "PixArtSigmaPipeline")


def pixart(folder: Path, name: str = "PixArtAlphaPipeline") -> Path:
    """Save a PixArt of 256 x 256 px, which calls back by the older argument."""
    transformer = diffusers.PixArtTransformer2DModel(
        sample_size=32, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=3, caption_channels=32,
        in_channels=4, cross_attention_dim=24, out_channels=8, attention_bias=True, activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000, norm_type="ada_norm_single", norm_elementwise_affine=False, norm_eps=1e-6,
        use_additional_conditions=False,
    )  # fmt: skip
    return saved(
        getattr(diffusers, name)(
            byte_tokenizer(), _t5(), vae_of((4, 8, 8, 8)), _loud(transformer), diffusers.DDIMScheduler()
        ),
        folder,
    )


def sana(folder: Path) -> Path:
    """Save a Sana."""
    transformer = diffusers.SanaTransformer2DModel(
        patch_size=1, in_channels=4, out_channels=4, num_layers=1, num_attention_heads=2, attention_head_dim=4,
        num_cross_attention_heads=2, cross_attention_head_dim=4, cross_attention_dim=8, caption_channels=8,
        sample_size=16,
    )  # fmt: skip
    vae = diffusers.AutoencoderDC(
        in_channels=3, latent_channels=4, attention_head_dim=2, encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8), encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1), decoder_layers_per_block=[1, 1], downsample_block_type="conv",
        upsample_block_type="interpolate", decoder_norm_types="rms_norm", decoder_act_fns="silu",
        scaling_factor=0.41407,
    )  # fmt: skip
    config = transformers.Gemma2Config(
        head_dim=4, hidden_size=8, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1,
        num_key_value_heads=2, vocab_size=300, pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    return saved(
        diffusers.SanaPipeline(
            byte_tokenizer(), transformers.Gemma2Model(config), _loud(vae), _loud(transformer),
            diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        ),
        folder,
    )  # fmt: skip


def qwen_image(folder: Path) -> Path:
    """Save a Qwen-Image."""
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=3,
        joint_attention_dim=16, guidance_embeds=False, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    vae = diffusers.AutoencoderKLQwenImage(
        base_dim=24, z_dim=4, dim_mult=[1, 2, 4], num_res_blocks=1, temperal_downsample=[False, True],
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    text = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 300, "rope_parameters": {
            "mrope_section": [1, 1, 2], "rope_type": "default", "type": "default", "rope_theta": 1000000.0,
        },
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16,
    }  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    return saved(
        diffusers.QwenImagePipeline(
            diffusers.FlowMatchEulerDiscreteScheduler(), _loud(vae),
            transformers.Qwen2_5_VLForConditionalGeneration(config), byte_tokenizer(), _loud(transformer),
        ),
        folder,
    )  # fmt: skip


#: Families -> what saves a tiny pipeline of each.
FAMILIES: Mapping[str, Callable[[Path], Path]] = {
    "auraflow": auraflow,
    "chroma": chroma,
    "flux": flux,
    "flux-kontext": kontext,
    "lcm": lcm,
    "pixart-alpha": pixart,
    "pixart-sigma": pixart_sigma,
    "qwenimage": qwen_image,
    "sana": sana,
    "stable-diffusion-3": sd3,
    "stable-diffusion-xl": sdxl,
}


def made(family: str, folder: Path) -> Path:
    """Save a family's pipeline; the same weights every time."""
    torch.manual_seed(11)
    return FAMILIES[family](folder)


def _loud(network: Any) -> Any:
    loud(network)
    return network


def _shifted(latents: int) -> Any:
    """Return a VAE as later pipelines have it."""
    config = {"shift_factor": 0.06, "scaling_factor": 1.5, "use_quant_conv": False, "use_post_quant_conv": False}
    return vae_of((4, 8, 8, 8), latents, **config)


def _euler() -> Any:
    return diffusers.EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, steps_offset=1, beta_schedule="scaled_linear", timestep_spacing="leading"
    )


def _t5(kind: str = "T5") -> Any:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=300, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0,
    )  # fmt: skip
    return getattr(transformers, f"{kind}EncoderModel")(config)


def byte_tokenizer() -> Any:
    """Return a tokenizer of bytes, with the end that T5 expects."""
    vocabulary = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(vocabulary)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=64,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )  # fmt: skip
