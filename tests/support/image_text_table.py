"""Every model type of images and text that transformers knows: how it runs, and what the tests show."""

from __future__ import annotations

from collections.abc import Mapping

#: Types whose images, or whose processor as a whole, only torchvision prepares.
NEEDS_TORCHVISION = (
    "cohere2_vision", "gemma4_unified", "inkling2", "inkling_mm_model", "kimi_k25", "lfm2_vl", "llama4", "minicpm_ocr",
    "minimax_m3_vl", "mistral3", "mistral_large4", "molmo2", "muse_glimmer", "muse_spark", "nemotron_h_omni",
    "perception_lm", "pi0", "pp_formulanet", "step3p7", "unlimited_ocr",
)  # fmt: skip

_NO_TINY = "nobody has made a tiny network of it"
_NO_PROCESSOR = "transformers knows no processor for it, so its directory must name one"
#: Types that no test runs, with the reason.
UNTRIED: Mapping[str, str] = {
    "cohere_compass": _NO_TINY,
    "cosmos3_edge": "its processor makes no `mm_token_type_ids`, which its network needs",
    "cosmos3_omni": _NO_PROCESSOR,
    "deepseek_ocr2": _NO_TINY,
    "deepseek_vl_hybrid": _NO_TINY,
    "diffusion_gemma": "it makes blocks of tokens by diffusion, and not one token after the other",
    "dots3_note": _NO_TINY,
    "emu3": _NO_TINY,
    "evolla": "it takes proteins, and no images",
    "fast_vlm": "its vision tower needs timm",
    "fuyu": "its processor raises an error without torchvision (transposing with numpy's arguments a tensor of torch)",
    "gemma3n": "its vision tower needs timm",
    "gemma4": _NO_TINY,
    "glm5_next": _NO_TINY,
    "got_ocr2": "an image has 256 tokens whatever its size, which a tiny network does not make",
    "granite_docling": _NO_TINY,
    "hunyuan_vl": _NO_TINY,
    "instructblipvideo": "it takes videos, and no images",
    "kosmos-2": _NO_TINY,
    "kosmos-2.5": _NO_PROCESSOR,
    "minicpmv4_6": _NO_TINY,
    "minicpmv4_7": _NO_TINY,
    "mistral4": "transformers has no processor for it",
    "pp_chart2table": _NO_TINY,
    "qwen2_5_omni_thinker": _NO_PROCESSOR,
    "qwen3_omni_moe_thinker": _NO_PROCESSOR,
    "qwen4_exp": _NO_TINY,
    "shieldgemma2": _NO_TINY,
    "t5gemma2": _NO_TINY,
    "udop": "it reads words and boxes of an OCR engine beside the image",
    "video_llava": _NO_TINY,
    "vision-encoder-decoder": "transformers has no processor for it",
}
