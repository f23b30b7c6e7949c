"""The shipped processors with real networks give what transformers itself makes of the same files."""

from __future__ import annotations

import io
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from penstock.models import Model
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.sample import write_sample
from penstock.processors.registry import GROUP, Registry
from penstock.processors.testing import Finished, check_processor, check_request_module
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.hub import STORIES, a_model, a_segformer, a_vit, a_vit_backbone, minilm, needs_stories

PHOTOS = Path(__file__).parents[3] / "shared" / "data" / "photo"
needs_photos = pytest.mark.skipif(not PHOTOS.is_dir(), reason="needs ../shared/data/photo beside the checkout")
FILES = {f"media://{path.stem}": path for path in PHOTOS.glob("*")}

Check = Callable[..., Finished]


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


@pytest.fixture
def check(engine: BatchingEngine) -> Check:
    """Return the conformance test on the real engine. One prompt a batch: neighbours change the last bits."""

    def check(model: Model, request: Mapping[str, Any], other: Mapping[str, Any], **options: Any) -> Finished:
        processor = Registry.imported().processor_for(model)
        files = options.pop("files", FILES)
        return check_processor(
            processor,
            request,
            files,
            engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
            other=other,
            limits=model.limits,
            **options,
        )

    return check


def picture(name: str) -> Image.Image:
    return Image.open(PHOTOS / name).convert("RGB")


def test_every_installed_processor_has_a_light_request() -> None:
    registry = Registry.imported()
    assert registry.problems == {}
    ours = {point.name for point in entry_points(group=GROUP) if point.value.startswith("penstock.")}
    assert ours == {
        "audio-classification",
        "depth-estimation",
        "function",
        "image-classification",
        "image-embedding",
        "image-generation",
        "image-segmentation",
        "image-text-to-text",
        "instance-segmentation",
        "layout-detection",
        "mask-generation",
        "object-detection",
        "openai-chat",
        "openai-completion",
        "openai-embedding",
        "optical-character-recognition",
        "raster-detection",
        "raster-embedding",
        "raster-mask-generation",
        "raster-regression",
        "raster-segmentation",
        "raster-zero-shot-detection",
        "speech-recognition",
        "tabular",
        "tensor",
        "text-classification",
        "text-embedding",
        "text-generation",
        "text-image-embedding",
        "text-ranking",
        "video-classification",
        "video-segmentation",
        "vllm-plugin",
        "zero-shot-classification",
        "zero-shot-object-detection",
    }
    # Each check starts an interpreter, and processors share modules.
    modules = {registry.processors[name].request.__module__: name for name in ours}
    for name in modules.values():
        check_request_module(registry.processors[name])


@needs_photos
@torch.inference_mode()
def test_image_classification(check: Check, tmp_path: Path) -> None:
    source = a_vit(tmp_path, id2label={0: "cat", 1: "coffee", 2: "rocket", 3: "page"})
    theirs = ViTImageProcessorPil(size={"height": 32, "width": 32})
    theirs.save_pretrained(source)
    model = a_model(source, processor="image-classification", max_batch=1)
    request = {"images": ["media://chelsea", "media://rocket", "media://gray16"], "top_k": 2}
    done = check(model, request, {"images": "media://coffee"})
    classify = transformers.pipeline("image-classification", model=str(source), image_processor=theirs)
    assert done.result.data is not None
    for found, name in zip(done.result.data["images"], ("chelsea.png", "rocket.jpg"), strict=False):
        expected = classify(picture(name), top_k=2)
        assert [label["label"] for label in found["labels"]] == [label["label"] for label in expected]
        scores = [label["score"] for label in expected]
        assert [label["score"] for label in found["labels"]] == pytest.approx(scores, abs=1e-5)


@needs_photos
@torch.inference_mode()
def test_image_segmentation(check: Check, tmp_path: Path) -> None:
    source = a_segformer(tmp_path)
    theirs = SegformerImageProcessorPil(size={"height": 64, "width": 64})
    theirs.save_pretrained(source)
    model = a_model(source, processor="image-segmentation", max_batch=1)
    done = check(model, {"image": "media://rocket"}, {"image": "media://transparent_rgba"})
    network = transformers.SegformerForSemanticSegmentation.from_pretrained(source).eval()
    answer = network(**theirs(picture("rocket.jpg"), return_tensors="pt"))
    [expected] = theirs.post_process_semantic_segmentation(answer, target_sizes=[(427, 640)])
    mask = np.asarray(Image.open(io.BytesIO(done.artifacts["mask.png"][1])))
    assert (mask == expected.numpy()).mean() > 0.9999, "upsampled on the device, in another order of sums"
    assert done.result.data is not None
    shares = {found["id"]: found["pixels"] for found in done.result.data["classes"]}
    assert shares == {int(i): int(n) for i, n in zip(*np.unique(mask, return_counts=True), strict=True)}
    assert len(shares) > 1


@needs_photos
@torch.inference_mode()
def test_image_embedding(check: Check, tmp_path: Path) -> None:
    source = a_vit_backbone(tmp_path)
    theirs = ViTImageProcessorPil(size={"height": 32, "width": 32})
    theirs.save_pretrained(source)
    model = a_model(source, processor="image-embedding", max_batch=1)
    done = check(model, {"images": ["media://chelsea", "media://coffee"]}, {"images": "media://page"})
    network = transformers.ViTModel.from_pretrained(source).eval()
    pixels = theirs([picture("chelsea.png"), picture("coffee.png")], return_tensors="pt")
    expected = torch.nn.functional.normalize(network(**pixels).pooler_output, dim=1)
    assert done.result.data is not None
    np.testing.assert_allclose(done.result.data["embeddings"], expected.numpy(), atol=1e-5)


@torch.inference_mode()
def test_text_embedding_with_minilms_real_weights(check: Check) -> None:
    model = a_model(minilm(), processor="text-embedding", max_batch=1)
    texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Tyres are cheap.", "word " * 300]
    done = check(model, {"texts": texts, "outputs": ["json", "safetensors"]}, {"texts": "Hi"}, files={})
    data = done.result.data or {}
    found = np.array(data["embeddings"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    hidden = transformers.AutoModel.from_pretrained(minilm()).eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    pooled = torch.nn.functional.normalize((hidden * mask).sum(dim=1) / mask.sum(dim=1), dim=1)
    np.testing.assert_allclose(found, pooled.numpy(), atol=1e-5)
    assert found[0] @ found[1] > 0.7 > 0.2 > found[0] @ found[2], "cats are near kittens and far from tyres"
    assert (data["truncated"], data["usage"]["prompt_tokens"]) == ([3], int(inputs["attention_mask"].sum()))


@needs_stories
@pytest.mark.parametrize("options", [{}, {"batching": "continuous", "cache_tokens": 1024}], ids=["", "removed options"])
def test_text_generation_with_a_trained_model(check: Check, options: dict[str, Any]) -> None:
    model = a_model(STORIES, processor="text-generation", options=options)
    request = {"prompt": "Once upon a time", "max_new_tokens": 40}
    done = check(model, request, {"prompt": "The cat", "temperature": 0.8, "max_new_tokens": 12}, files={})
    tell = transformers.pipeline("text-generation", model=str(STORIES))
    settings = transformers.GenerationConfig(
        max_new_tokens=40, do_sample=False, bos_token_id=1, eos_token_id=2, pad_token_id=2
    )
    [expected] = tell("Once upon a time", return_full_text=False, generation_config=settings)
    assert done.result.text == expected["generated_text"]
    assert done.result.text.startswith(", there was a little girl named Lily.")


#: A `models.toml` record of a SegFormer with six channels.
RECORD = """
[models.land-cover]
title = "Five classes of land cover from six bands (SegFormer)"
runner = "transformers"
processor = "raster-segmentation"
source = "segformer-6b"
revision = "1"
limits = { max_pixels = 100_000_000, max_tiles = 1000 }

[models.land-cover.options]
# SegFormer's attention sees a whole tile: a halo hides the seams, but tiles never equal the whole scene bit for bit.
halo_px = 64
stride_px = 32
tile_px = 128
default_radiometry = [{ dtypes = ["uint16"], scale = 1e-4, nodata = 0 }]
bands = [
    { name = "blue", mean = 0.12, std = 0.05 },
    { name = "green", mean = 0.12, std = 0.05 },
    { name = "red", mean = 0.12, std = 0.05 },
    { name = "nir", mean = 0.25, std = 0.10 },
    { name = "swir16", mean = 0.20, std = 0.10 },
    { name = "swir22", mean = 0.15, std = 0.10 },
]
classes = [
    { id = 0, name = "water", colour = "#2166ac" },
    { id = 1, name = "wood", colour = "#1b7837" },
    { id = 2, name = "crop", colour = "#a6d96a" },
    { id = 3, name = "soil", colour = "#bf812d" },
    { id = 4, name = "built", colour = "#d7301f" },
]
"""


@torch.inference_mode()
def test_a_segformer_with_six_channels_segments_scenes(check: Check, tmp_path: Path) -> None:
    source = a_segformer(tmp_path / "segformer-6b", num_channels=6)
    record = tomllib.loads(RECORD)["models"]["land-cover"]
    model = Model(name="land-cover", **{**record, "source": str(source), "device": "cpu"})
    scene = tmp_path / "scene.tif"
    write_sample(scene, size_px=400)
    files = {"media://scene": scene}
    request = {"scene": "media://scene"}
    wanted = {**request, "outputs": ["probability"]}
    done = check(model, wanted, {**request, "outputs": ["stats"]}, files=files, count_is_a_bound=True)
    steps = read_raster(tmp_path, done.artifacts["probability.tif"][1])
    numbers = read_raster(tmp_path, scene.read_bytes())
    np.testing.assert_array_equal(steps[0] == 255, (numbers == 0).any(axis=0))
    bands = record["options"]["bands"]
    mean, std = (np.array([band[name] for band in bands])[:, None, None] for name in ("mean", "std"))
    # The first of nine tiles, 64 of halo at two sides included; no nodata is near it.
    side, core = 224, 160
    pixels = ((numbers * 1e-4 - mean) / std)[:, :side, :side].astype(np.float32)
    network = transformers.SegformerForSemanticSegmentation.from_pretrained(source).eval()
    scores = network(pixel_values=torch.from_numpy(pixels)[None]).logits
    expected = torch.nn.functional.interpolate(scores, size=(side, side), mode="bilinear").softmax(dim=1)[0].numpy()
    assert np.ptp(expected[:, :core, :core], axis=(1, 2)).max() > 0.1, "the network tells places apart"
    np.testing.assert_allclose(steps[:, :core, :core] / 254, expected[:, :core, :core], atol=0.51 / 254)


def read_raster(folder: Path, content: bytes) -> Any:
    (folder / "raster.tif").write_bytes(content)
    with rasterio.open(folder / "raster.tif") as dataset:
        return dataset.read()
