"""Sample models: tiny networks with random weights, so that every kind can be tried without a download.

Their answers mean nothing. Each is a directory as the libraries save it, of at most a few megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from types import MappingProxyType
from typing import Any

from penstock.errors import ConfigError
from penstock.models import is_name

_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_SIDE = {"height": 32, "width": 32}
_LABELS = {0: "one", 1: "two", 2: "three", 3: "four"}
_NORMAL = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@dataclass(frozen=True, slots=True)
class SampleKind:
    """A kind of sample model."""

    #: Writes the model's files into a folder.
    write: Callable[[Path], None]
    runner: str
    processor: str
    #: Arguments of `penstock run` that try the model.
    arguments: str
    #: The table `options` of its record, in TOML.
    options: str = ""
    #: The model's file where its source is no folder.
    file: str = ""


def write_sample(kind: str, folder: Path) -> str:
    """Write a sample model into a new folder, whose name is the model's, and return its record in TOML.

    Raises `ConfigError` for a name that no model may have. Leaves no folder behind where it fails.
    """
    made = KINDS[kind]
    if not is_name(folder.name):
        raise ConfigError(
            f"{folder.name!r} cannot be the name of a model, which has lower-case letters, digits, '.', '_' and '-' "
            "(64 at most): choose another folder"
        )
    if made.runner != "onnx":
        _library("torch").manual_seed(1)
    folder.mkdir(parents=True)
    try:
        made.write(folder)
    except BaseException:
        rmtree(folder)
        raise
    name = json.dumps(folder.name)
    options = f"\n\n[models.{name}.options]\n{made.options}" if made.options else ""
    source = json.dumps(str(folder / made.file))
    return (
        f'[models.{name}]\ntitle = "A random {kind} model: its answers mean nothing"\nrunner = "{made.runner}"\n'
        f'processor = "{made.processor}"\nsource = {source}\nrevision = "random"{options}\n'
    )


def _library(name: str) -> Any:
    """Return a library that is imported here only; without the bars that it draws while it saves."""
    found: Any = import_module(name)
    if name != "torch":
        found.utils.logging.disable_progress_bar()
    return found


def _json(folder: Path, name: str, data: Mapping[str, Any]) -> None:
    (folder / name).write_text(json.dumps(data))


def _pictures(folder: Path, kind: str = "ViTImageProcessor", **fields: Any) -> None:
    _json(folder, "preprocessor_config.json", {"image_processor_type": kind, "size": _SIDE, **_NORMAL, **fields})


def _tokenizer(folder: Path, *special: str) -> None:
    """Write a tokenizer of bytes with special tokens from 256 on; the first one ends a text."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    _json(folder, "tokenizer_config.json", {"eos_token": special[0], "pad_token": special[0]})


def _text_generation(folder: Path) -> None:
    transformers = _library("transformers")

    config = transformers.LlamaConfig(
        **_TINY, vocab_size=257, eos_token_id=256, bos_token_id=None, max_position_embeddings=256, initializer_range=0.5
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    _tokenizer(folder, "<end>")


def _text_embedding(folder: Path) -> None:
    transformers = _library("transformers")

    config = transformers.BertConfig(**_TINY, vocab_size=257, max_position_embeddings=256, initializer_range=0.5)
    transformers.BertModel(config).save_pretrained(folder)
    _tokenizer(folder, "<end>")


def _vit(network: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        transformers = _library("transformers")

        config = transformers.ViTConfig(**_TINY, image_size=32, patch_size=8, id2label=_LABELS, initializer_range=0.5)
        getattr(transformers, network)(config).save_pretrained(folder)
        _pictures(folder)

    return write


def _segformer(channels: int, labels: Mapping[int, str]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        transformers = _library("transformers")

        config = transformers.SegformerConfig(
            hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=16,
            num_channels=channels, id2label=dict(labels), initializer_range=0.5,
        )  # fmt: skip
        transformers.SegformerForSemanticSegmentation(config).save_pretrained(folder)
        _pictures(folder, "SegformerImageProcessor", size={"height": 64, "width": 64})

    return write


def _object_detection(folder: Path) -> None:
    transformers = _library("transformers")

    config = transformers.YolosConfig(
        **_TINY, image_size=[96, 128], patch_size=16, num_detection_tokens=8, id2label=_LABELS, initializer_range=0.3
    )
    transformers.YolosForObjectDetection(config).save_pretrained(folder)
    _pictures(folder, "YolosImageProcessor", size={"shortest_edge": 96, "longest_edge": 128})


def _instance_segmentation(folder: Path) -> None:
    transformers = _library("transformers")

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


def _depth_estimation(folder: Path) -> None:
    transformers = _library("transformers")

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


def _audio_classification(folder: Path) -> None:
    transformers = _library("transformers")

    config = transformers.Wav2Vec2Config(
        **_TINY, conv_dim=(8,) * 7, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, id2label=_LABELS,
        classifier_proj_size=8, vocab_size=10,
    )  # fmt: skip
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    transformers.Wav2Vec2ForSequenceClassification(config).save_pretrained(folder)


def _image_text_to_text(folder: Path) -> None:
    transformers = _library("transformers")

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


def _image_generation(folder: Path) -> None:
    diffusers = _library("diffusers")

    unet = diffusers.UNet2DModel(
        sample_size=16, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4, attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler()).save_pretrained(folder)


def _zero_shot(folder: Path) -> None:
    transformers = _library("transformers")
    text = {**_TINY, "vocab_size": 257, "max_position_embeddings": 77, "eos_token_id": 256, "bos_token_id": None}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**_TINY, "image_size": 32, "patch_size": 8}, projection_dim=8
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    _tokenizer(folder, "<end>")
    _pictures(folder, "CLIPImageProcessor", size={"shortest_edge": 32}, crop_size=_SIDE)


def _table(folder: Path) -> None:
    onnx, numpy = import_module("onnx"), import_module("numpy")
    weights = {"w": numpy.random.default_rng(1).normal(size=(2, 1)), "b": numpy.zeros(1)}
    made = onnx.helper
    graph = made.make_graph(
        [made.make_node("Gemm", ["features", "w", "b"], ["variable"])], "table",
        [made.make_tensor_value_info("features", onnx.TensorProto.FLOAT, ["rows", 2])],
        [made.make_tensor_value_info("variable", onnx.TensorProto.FLOAT, ["rows", 1])],
        initializer=[onnx.numpy_helper.from_array(w.astype("float32"), name) for name, w in weights.items()],
    )  # fmt: skip
    versions = [made.make_opsetid("", 17)]
    onnx.save(made.make_model(graph, opset_imports=versions, ir_version=10), str(folder / "model.onnx"))


#: Columns of the table, and the prediction.
_COLUMNS = """onnx = { rows = true }
columns = [{ name = "rain" }, { name = "sun" }]
predictions = [{ output = "variable", columns = ["harvest"] }]
"""
#: Bands of the scenes that `penstock sample` writes, without means of a training: the network had none.
_BANDS = """bands = [
    { name = "blue", mean = 0.1, std = 0.1 },
    { name = "green", mean = 0.1, std = 0.1 },
    { name = "red", mean = 0.1, std = 0.1 },
    { name = "nir", mean = 0.1, std = 0.1 },
    { name = "swir16", mean = 0.1, std = 0.1 },
    { name = "swir22", mean = 0.1, std = 0.1 },
]
default_radiometry = [{ dtypes = ["uint16"], scale = 1e-4, nodata = 0.0 }]
classes = [{ id = 0, name = "one", colour = "#8c9a4b" }, { id = 1, name = "two", colour = "#2166ac" }]
tile_px = 64
overlap = "hann"
"""
KINDS: Mapping[str, SampleKind] = MappingProxyType(
    {
        "audio-classification": SampleKind(_audio_classification, "transformers", "audio-classification", "speech.wav"),
        "depth-estimation": SampleKind(_depth_estimation, "transformers", "depth-estimation", "photo.jpg"),
        "image-classification": SampleKind(
            _vit("ViTForImageClassification"), "transformers", "image-classification", "photo.jpg"
        ),
        "image-embedding": SampleKind(_vit("ViTModel"), "transformers", "image-embedding", "photo.jpg"),
        "image-generation": SampleKind(_image_generation, "diffusers", "image-generation", "--param steps=4"),
        "image-segmentation": SampleKind(_segformer(3, _LABELS), "transformers", "image-segmentation", "photo.jpg"),
        "image-text-to-text": SampleKind(
            _image_text_to_text, "transformers", "image-text-to-text", "photo.jpg --param prompt='What is this?'"
        ),
        "instance-segmentation": SampleKind(
            _instance_segmentation, "transformers", "instance-segmentation", "photo.jpg"
        ),
        "object-detection": SampleKind(_object_detection, "transformers", "object-detection", "photo.jpg"),
        "raster-segmentation": SampleKind(
            _segformer(6, {0: "one", 1: "two"}), "transformers", "raster-segmentation", "scene.tif", _BANDS
        ),
        "tabular": SampleKind(_table, "onnx", "tabular", "plots.csv", _COLUMNS, "model.onnx"),
        "text-embedding": SampleKind(_text_embedding, "transformers", "text-embedding", '"A cat sits on the mat."'),
        "text-generation": SampleKind(_text_generation, "transformers", "text-generation", '"Once upon a time"'),
        "video-classification": SampleKind(
            _vit("ViTForImageClassification"), "transformers", "video-classification", "clip.mp4"
        ),
        "video-segmentation": SampleKind(_segformer(3, _LABELS), "transformers", "video-segmentation", "clip.mp4"),
        "zero-shot-classification": SampleKind(
            _zero_shot, "transformers", "zero-shot-classification", "photo.jpg --param labels=cat,dog"
        ),
    }
)
