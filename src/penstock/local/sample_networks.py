"""Networks of sample models in the formats of the libraries transformers and diffusers, with random weights.

Each function writes a directory as the library saves it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
#: Sizes with attention heads of 32 numbers, the narrowest that vLLM computes.
_WIDE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
_SIDE = {"height": 32, "width": 32}
_LABELS = {0: "one", 1: "two", 2: "three", 3: "four"}
_NORMAL = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
#: Seconds that the Whisper hears at a time, and its special tokens after the 256 bytes. Tokens of times follow them.
_WINDOW_S = 2
_WHISPER = (
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
    "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip


def library(name: str) -> Any:
    """Return a library that is imported here only; without the bars that it draws while it saves."""
    found: Any = import_module(name)
    if name != "torch":
        found.utils.logging.disable_progress_bar()
    return found


def _json(folder: Path, name: str, data: Mapping[str, Any]) -> None:
    (folder / name).write_text(json.dumps(data))


def _pictures(folder: Path, kind: str = "ViTImageProcessor", **fields: Any) -> None:
    _json(folder, "preprocessor_config.json", {"image_processor_type": kind, "size": _SIDE, **_NORMAL, **fields})


def _tokenizer(folder: Path, *special: str, words: Sequence[str] = (), max_tokens: int | None = None) -> None:
    """Write a tokenizer of bytes with special tokens from 256 on, then further tokens; the first one ends a text."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens(list(words))
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = {"eos_token": special[0], "pad_token": special[0], "tokenizer_class": "PreTrainedTokenizerFast"}
    limit = {} if max_tokens is None else {"model_max_length": max_tokens}
    _json(folder, "tokenizer_config.json", {**ends, **limit})


def text_generation(folder: Path) -> None:
    """Write a Llama that vLLM loads too: its heads are as wide as vLLM's attention needs them."""
    transformers = library("transformers")

    config = transformers.LlamaConfig(
        **_WIDE, head_dim=32, vocab_size=257, eos_token_id=256, bos_token_id=None, max_position_embeddings=256,
        initializer_range=0.5,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    _tokenizer(folder, "<end>")
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")


def text_embedding(folder: Path) -> None:
    """Write a BERT that vLLM loads too."""
    transformers = library("transformers")

    config = transformers.BertConfig(**_WIDE, vocab_size=257, max_position_embeddings=256, initializer_range=0.5)
    transformers.BertModel(config).save_pretrained(folder)
    _tokenizer(folder, "<end>")


def text_classification(labels: Mapping[int, str]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        transformers = library("transformers")

        config = transformers.BertConfig(
            **_WIDE, vocab_size=257, max_position_embeddings=256, initializer_range=0.5, pad_token_id=256,
            id2label=dict(labels),
        )  # fmt: skip
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
        _tokenizer(folder, "<end>")

    return write


def speech_recognition(folder: Path) -> None:
    """Write a Whisper that hears `_WINDOW_S` at a time."""
    transformers = library("transformers")

    ids = {name: 256 + number for number, name in enumerate(_WHISPER)}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    steps = 50 * _WINDOW_S
    layers = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = transformers.WhisperConfig(
        **layers, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=80, init_std=0.6,
        vocab_size=256 + len(ids) + steps + 1, max_source_positions=steps, max_target_positions=24, pad_token_id=end,
        bos_token_id=end, eos_token_id=end, decoder_start_token_id=start, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    network = transformers.WhisperForConditionalGeneration(config)
    network.generation_config = transformers.GenerationConfig(
        no_timestamps_token_id=ids["<|notimestamps|>"], is_multilingual=True, max_length=24,
        lang_to_id={name: ids[name] for name in ("<|en|>", "<|de|>")}, max_initial_timestamp_index=50,
        task_to_id={name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")}, decoder_start_token_id=start,
        eos_token_id=end, pad_token_id=end, begin_suppress_tokens=[32, end], alignment_heads=[[1, 0], [0, 1]],
    )  # fmt: skip
    network.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(chunk_length=_WINDOW_S).save_pretrained(folder)
    _tokenizer(folder, *_WHISPER, words=[f"<|{step * 0.02:.2f}|>" for step in range(steps + 1)])


def vit(network: str, channels: int = 3) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        transformers = library("transformers")

        config = transformers.ViTConfig(
            **_TINY, image_size=32, patch_size=8, num_channels=channels, id2label=_LABELS, initializer_range=0.5
        )
        getattr(transformers, network)(config).save_pretrained(folder)
        _pictures(folder)

    return write


def segformer(channels: int, labels: Mapping[int, str] = _LABELS) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        transformers = library("transformers")

        config = transformers.SegformerConfig(
            hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=16,
            num_channels=channels, id2label=dict(labels), initializer_range=0.5,
        )  # fmt: skip
        transformers.SegformerForSemanticSegmentation(config).save_pretrained(folder)
        _pictures(folder, "SegformerImageProcessor", size={"height": 64, "width": 64})

    return write


def object_detection(channels: int, height: int, width: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        transformers = library("transformers")

        config = transformers.YolosConfig(
            **_TINY, image_size=[height, width], patch_size=16, num_channels=channels, num_detection_tokens=8,
            id2label=_LABELS, initializer_range=0.3,
        )  # fmt: skip
        transformers.YolosForObjectDetection(config).save_pretrained(folder)
        _pictures(folder, "YolosImageProcessor", size={"shortest_edge": height, "longest_edge": width})

    return write


def instance_segmentation(folder: Path) -> None:
    transformers = library("transformers")

    swin = transformers.SwinConfig(
        image_size=64, embed_dim=8, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.Mask2FormerConfig(
        backbone_config=swin, encoder_layers=1, decoder_layers=2, encoder_feedforward_dim=16, num_attention_heads=2,
        num_queries=10, id2label=_LABELS, feature_size=32, mask_feature_size=32, hidden_dim=32, dim_feedforward=16,
    )  # fmt: skip
    transformers.Mask2FormerForUniversalSegmentation(config).save_pretrained(folder)
    _pictures(folder, "Mask2FormerImageProcessor", size={"shortest_edge": 96, "longest_edge": 128})


def depth_estimation(folder: Path) -> None:
    transformers = library("transformers")

    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = transformers.Dinov2Config(
        **{**_TINY, "num_hidden_layers": 4}, image_size=56, patch_size=14, out_features=stages,
        reshape_hidden_states=False,
    )  # fmt: skip
    config = transformers.DepthAnythingConfig(
        backbone_config=backbone, patch_size=14, reassemble_hidden_size=16, neck_hidden_sizes=[8] * 4,
        fusion_hidden_size=8, head_hidden_size=8,
    )  # fmt: skip
    transformers.DepthAnythingForDepthEstimation(config).save_pretrained(folder)
    size = {"height": 56, "width": 56}
    _pictures(folder, "DPTImageProcessor", size=size, keep_aspect_ratio=True, ensure_multiple_of=14)


def audio_classification(folder: Path) -> None:
    transformers = library("transformers")

    config = transformers.Wav2Vec2Config(
        **_TINY, conv_dim=(8,) * 7, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, id2label=_LABELS,
        classifier_proj_size=8, vocab_size=10,
    )  # fmt: skip
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    transformers.Wav2Vec2ForSequenceClassification(config).save_pretrained(folder)


def image_text_to_text(folder: Path) -> None:
    transformers = library("transformers")

    vision = {**_TINY, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8}
    text = {**_TINY, "vocab_size": 300, "max_position_embeddings": 1024, "eos_token_id": 256, "bos_token_id": None}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision), text_config=transformers.LlamaConfig(**text),
        image_token_index=257,
    )  # fmt: skip
    transformers.LlavaForConditionalGeneration(config).save_pretrained(folder)
    _tokenizer(folder, "<end>", "<image>")
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{% for part in message.content %}{% if part.type == 'image' %}<image>\n"
        "{% else %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor %}"
    )
    _pictures(folder, "CLIPImageProcessor", size={"shortest_edge": 32}, crop_size=_SIDE)


def image_generation(folder: Path) -> None:
    """Write a Stable Diffusion of 64 x 64 px, which draws what a prompt says and changes images."""
    diffusers, transformers = library("diffusers"), library("transformers")
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    end, places = len(tokens) - 1, 32
    text = transformers.CLIPTextConfig(
        **_TINY, vocab_size=len(tokens), max_position_embeddings=places, projection_dim=16, bos_token_id=end - 1,
        eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    vocabulary = {token: number for number, token in enumerate(tokens)}
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4, cross_attention_dim=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    )  # fmt: skip
    sides = (4, 8, 8, 8)
    vae = diffusers.AutoencoderKL(
        block_out_channels=sides, down_block_types=("DownEncoderBlock2D",) * len(sides), latent_channels=4,
        up_block_types=("UpDecoderBlock2D",) * len(sides), norm_num_groups=4,
    )  # fmt: skip
    diffusers.StableDiffusionPipeline(
        vae, transformers.CLIPTextModel(text),
        transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=places), unet,
        diffusers.DDIMScheduler(steps_offset=1, clip_sample=False), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)  # fmt: skip


def zero_shot(folder: Path) -> None:
    transformers = library("transformers")
    text = {**_TINY, "vocab_size": 257, "max_position_embeddings": 77, "eos_token_id": 256, "bos_token_id": None}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**_TINY, "image_size": 32, "patch_size": 8}, projection_dim=8
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    _tokenizer(folder, "<end>")
    _pictures(folder, "CLIPImageProcessor", size={"shortest_edge": 32}, crop_size=_SIDE)


def word_detection(folder: Path) -> None:
    """Write an OWL-ViT; its first token is not 0, which would mark a query that is none."""
    transformers = library("transformers")
    ends = {"bos_token_id": None, "eos_token_id": 256, "pad_token_id": 0}
    text = {**_TINY, **ends, "vocab_size": 258, "max_position_embeddings": 32}
    config = transformers.OwlViTConfig(
        text_config=text, vision_config={**_TINY, "image_size": 64, "patch_size": 16}, projection_dim=16
    )
    transformers.OwlViTForObjectDetection(config).save_pretrained(folder)
    _tokenizer(folder, "<end>", max_tokens=32)
    _pictures(folder, "OwlViTImageProcessor", size={"height": 64, "width": 64})


def mask_generation(folder: Path) -> None:
    """Write a SAM that sees images of 64 x 64 px."""
    transformers = library("transformers")
    vision = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 32, "image_size": 64,
        "patch_size": 8, "output_channels": 16, "window_size": 4, "num_pos_feats": 8, "global_attn_indexes": [1],
        "initializer_range": 0.3,
    }  # fmt: skip
    prompt = {"hidden_size": 16, "image_embedding_size": 8, "image_size": 64, "patch_size": 8, "mask_input_channels": 4}
    decoder = {"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16}
    config = transformers.SamConfig(
        vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=decoder, initializer_range=0.3
    )
    transformers.SamModel(config).save_pretrained(folder)
    pads = {"pad_size": {"height": 64, "width": 64}, "mask_pad_size": {"height": 16, "width": 16}}
    _pictures(folder, "SamImageProcessor", size={"longest_edge": 64}, mask_size={"longest_edge": 16}, **pads)
