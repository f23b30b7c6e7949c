"""Vectors of texts and images in one space: those of the library's own features, batched and alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import BPE, WordLevel

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Limits
from penstock.processors.base import Prompt
from penstock.processors.registry import Registry
from penstock.processors.testing import check_processor
from penstock.workers.engine.runners import Runners
from tests.support.hub import a_bert, a_model, load, save
from tests.support.model_directories import each
from tests.support.vectors import photos, vectors

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "cat", "dog", "on", "the", "sofa"]
TEXTS = ["a cat", "the dog on the sofa", "a cat </s> on", "dog " * 40]
_SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_TEXT = {**_SMALL, "vocab_size": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_VISION = {**_SMALL, "image_size": 32, "patch_size": 8}
_LONG = {**_TEXT, "max_position_embeddings": 16}
_CLIP_IMAGES = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}

#: By model type: the configuration, the class of the image processor, and its fields.
KINDS: Mapping[str, tuple[Callable[[], Any], str, Mapping[str, Any]]] = {
    "clip": (
        lambda: transformers.CLIPConfig(text_config=_LONG, vision_config=_VISION, projection_dim=8),
        "CLIPImageProcessor", _CLIP_IMAGES,
    ),
    "metaclip_2": (
        lambda: transformers.MetaClip2Config(text_config=_LONG, vision_config=_VISION, projection_dim=8),
        "CLIPImageProcessor", _CLIP_IMAGES,
    ),
    "clipseg": (
        lambda: transformers.CLIPSegConfig(text_config=_LONG, vision_config=_VISION, projection_dim=8),
        "ViTImageProcessor", {"size": {"height": 32, "width": 32}},
    ),
    "chinese_clip": (
        lambda: transformers.ChineseCLIPConfig(text_config=_LONG, vision_config=_VISION, projection_dim=8),
        "ChineseCLIPImageProcessor", {"size": {"height": 32, "width": 32}, "crop_size": {"height": 32, "width": 32}},
    ),
    "altclip": (
        lambda: transformers.AltCLIPConfig(
            text_config={**_LONG, "project_dim": 16, "max_position_embeddings": 40}, vision_config=_VISION,
            projection_dim=8,
        ),
        "CLIPImageProcessor", _CLIP_IMAGES,
    ),
    "siglip": (
        lambda: transformers.SiglipConfig(text_config={**_LONG, "projection_size": 16}, vision_config=_VISION),
        "SiglipImageProcessor", {"size": {"height": 32, "width": 32}},
    ),
    "siglip2": (
        lambda: transformers.Siglip2Config(
            text_config={**_LONG, "projection_size": 16}, vision_config={**_SMALL, "patch_size": 8, "num_patches": 16}
        ),
        "Siglip2ImageProcessor", {"patch_size": 8, "max_num_patches": 16},
    ),
}  # fmt: skip
PADDED = ("siglip", "siglip2")


def a_directory(kind: str, folder: Path) -> Path:
    """Save a tiny random model of both towers with its processor."""
    torch.manual_seed(5)
    config, images, fields = KINDS[kind]
    save(transformers.AutoModel.from_config(config()), folder)
    # SigLIP 2 has a class of its own, which splits nothing before the vocabulary.
    words = [*WORDS[:4], *"\u2581acdefghnost"] if kind == "siglip2" else WORDS
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(BPE(numbers, [], unk_token="<unk>") if kind == "siglip2" else WordLevel(numbers, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=None, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 16, **tokens}
    names = ["input_ids"] if kind in PADDED else ["input_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps({**said, "model_input_names": names}))
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": images, **fields}))
    return folder


@torch.inference_mode()
def features(folder: Path, texts: Sequence[str], paths: Mapping[str, Path]) -> npt.NDArray[np.float32]:
    """Return what the library computes, one by one, as its documentation shows it."""
    network: Any = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    images: Any = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    padding = "max_length" if network.config.model_type in PADDED else False
    found = []
    for text in texts:
        said = text.replace("</s>", "< /s>")
        inputs = tokenizer(said, padding=padding, truncation=True, max_length=16, return_tensors="pt")
        found.append(network.get_text_features(**inputs).pooler_output[0])
    shown = (images(Image.open(path), return_tensors="pt") for path in paths.values())
    found.extend(network.get_image_features(**inputs).pooler_output[0] for inputs in shown)
    return torch.stack(found).numpy()


@pytest.mark.breadth(but=("siglip2",))
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_the_library_s_features_batched_and_alone(tmp_path: Path, kind: str) -> None:
    folder, paths = a_directory(kind, tmp_path / "m"), photos(tmp_path)
    expected = features(folder, TEXTS, paths)
    assert float(np.ptp(expected, axis=0).max()) > 0.01  # items make a difference
    plain = a_model(folder, processor="text-image-embedding", max_batch=8, options={"normalize": False})
    together, data = vectors(plain, paths, texts=TEXTS, images=list(paths))
    np.testing.assert_allclose(together, expected, rtol=1e-3, atol=1e-5)
    cut = [1, 3] if kind == "siglip2" else [3]  # SigLIP 2's tokens are letters here
    counts = {name: data[name] for name in ("count", "texts", "images", "dimensions", "truncated")}
    assert counts == {
        "count": 7,
        "texts": 4,
        "images": 3,
        "dimensions": expected.shape[1],
        "truncated": cut,
    }
    for index, text in enumerate(TEXTS):
        np.testing.assert_allclose(vectors(plain, {}, texts=text)[0][0], expected[index], rtol=1e-3, atol=1e-5)
    for index, reference in enumerate(paths, len(TEXTS)):
        np.testing.assert_allclose(vectors(plain, paths, images=reference)[0][0], expected[index], rtol=1e-3, atol=1e-5)
    unit, _ = vectors(a_model(folder, processor="text-image-embedding", max_batch=8), paths, texts=TEXTS)
    lengths = np.linalg.norm(expected[:4], axis=1, keepdims=True)
    np.testing.assert_allclose(unit, expected[:4] / lengths, rtol=1e-3, atol=1e-5)


def test_the_processor_keeps_its_contract(tmp_path: Path) -> None:
    model = a_model(a_directory("clip", tmp_path / "m"), processor="text-image-embedding", limits=Limits(max_items=9))
    paths = photos(tmp_path)
    network = each(
        lambda data: {"embedding": np.stack([next(v for n, v in data.items() if n != "kind").mean()] * 2).astype("f4")}
    )
    request = {"texts": TEXTS, "images": list(paths)}
    processor = Registry.imported().processor_for(model)
    check_processor(processor, request, paths, engine=network, other={"texts": "a"}, limits=model.limits)
    with pytest.raises(InvalidInput, match="10 items were given; this model accepts at most 9"):
        vectors(model, paths, texts=["a"] * 9, images="media://wide")


def test_models_of_one_tower_or_without_a_processor_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="the task 'text-image-embedding' does not fit model_type 'bert'"):
        Runners.installed().check(a_model(a_bert(tmp_path / "bert"), processor="text-image-embedding"))
    lone = a_directory("clip", tmp_path / "lone")
    (lone / "preprocessor_config.json").unlink()
    with pytest.raises(ModelUnavailable, match="its files do not make the processor of the model_type 'clip'"):
        Registry.imported().processor_for(a_model(lone, processor="text-image-embedding"))
    tower = a_directory("clip", tmp_path / "tower")
    config = transformers.CLIPTextConfig(**_LONG, projection_dim=8)
    save(transformers.CLIPTextModelWithProjection(config), tower)
    with pytest.raises(ModelUnavailable, match="does not fit model_type 'clip_text_model'"):
        Runners.installed().check(a_model(tower, processor="text-image-embedding"))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"kind": "sound", "inputs.x": np.zeros((1, 2), np.float32)}, ProcessorFailed),
        ({"kind": "text"}, ProcessorFailed),
        ({"kind": "text", "inputs.input_ids": np.array([[1, 99]])}, InvalidInput),
    ],
)
def test_prompts_that_do_not_fit_are_refused(tmp_path: Path, data: dict[str, Any], error: type[Exception]) -> None:
    runner = load(a_directory("clip", tmp_path), processor="text-image-embedding")
    with closing(runner), pytest.raises(error):
        runner.admit(Prompt(data))
