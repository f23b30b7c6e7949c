"""The runner `onnx` behind the shipped processors gives what the same networks give elsewhere."""

from __future__ import annotations

import io
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from penstock.catalogue.records import read_catalogue
from penstock.models import Model
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.registry import Registry
from penstock.processors.testing import Finished, FolderSink, LocalFiles, check_processor
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import localise
from tests.support.hub import a_segformer, a_vit
from tests.support.onnx_files import a_model

pytestmark = pytest.mark.breadth

DATA = Path(__file__).parents[3] / "shared" / "data"
SCENE = DATA / "geo" / "l8_betsiboka_20200127_6b.tif"
PHOTO = DATA / "photo" / "rocket.jpg"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data beside the checkout")


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def run(
    engine: BatchingEngine, model: Model, request: Mapping[str, Any], files: Mapping[str, Path], **more: Any
) -> Finished:
    return check_processor(
        Registry.imported().processor_for(model),
        request,
        files,
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        limits=model.limits,
        **more,
    )


def exported(source: Path, network: Any, image: tuple[int, ...], file: str = "model.onnx") -> Path:
    """Export a network's logits beside its configuration, with a dynamic batch."""

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, pixels: torch.Tensor) -> Any:
            return self.network(pixel_values=pixels).logits

    axes = {"pixels": {0: "n"}, "logits": {0: "n"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Logits().eval(), (torch.zeros(2, *image),), str(source / file), dynamo=False, input_names=["pixels"],
            output_names=["logits"], dynamic_axes=axes,
        )  # fmt: skip
    (source / "model.safetensors").unlink()
    return source


def raster(folder: Path, content: bytes) -> Any:
    (folder / "raster.tif").write_bytes(content)
    with rasterio.open(folder / "raster.tif") as dataset:
        return dataset.read()


@needs_data
@pytest.mark.slow
def test_csmasks_own_file_maps_a_scene_as_our_torch_network_does(engine: BatchingEngine, tmp_path: Path) -> None:
    torchs = localise(read_catalogue()["csmask"], cache=tmp_path)
    # The published file takes tiles of 256 px and nothing else.
    hann = {name: part for name, part in torchs.options.items() if name not in ("halo_px", "halo_exact", "network")}
    hann |= {"overlap": "hann", "tile_px": 256}
    options = hann | {"network": "csmask-unet"}
    ports = {
        "inputs": {"pixels": {"name": "input_1", "layout": "NHWC"}},
        "outputs": {"probability": {"name": "conv2d_19", "layout": "NHWC"}},
    }
    request = {"scene": "media://scene", "outputs": ["probability_float32", "classes"]}
    made = []
    for changed in ({"options": options}, {"name": "own", "runner": "onnx", "options": hann | {"onnx": ports}}):
        model = torchs.model_copy(update={**changed, "device": "cpu", "max_batch": 1})
        processor = Registry.imported().processor_for(model)
        made.append(finished(engine, model, processor, request, {"media://scene": SCENE}, tmp_path))
    ours, onnxs = (raster(tmp_path, artifacts["probability_float32.tif"]) for artifacts in made)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(onnxs))
    assert np.nanmax(np.abs(ours - onnxs)) < 1e-5
    classes = [raster(tmp_path, artifacts["classes.tif"]) for artifacts in made]
    assert (classes[0] == classes[1]).mean() > 0.9999
    assert len(np.unique(classes[0])) > 1


def finished(
    engine: BatchingEngine, model: Model, processor: Any, request: Any, files: Mapping[str, Path], folder: Path
) -> dict[str, bytes]:
    """Run a job once."""
    prepared = processor.pre_process(processor.request.model_validate(request), LocalFiles(files))
    sink = FolderSink(folder)
    outputs = engine.run(model, prepared.prompts, check=lambda: None)
    processor.post_process(outputs, prepared.context, sink)
    return {name: content for name, (_, content) in sink.artifacts.items()}


@needs_data
@torch.inference_mode()
def test_an_exported_classifier_names_what_transformers_names(engine: BatchingEngine, tmp_path: Path) -> None:
    first = a_vit(tmp_path / "vit", id2label={0: "cat", 1: "coffee", 2: "rocket", 3: "page"})
    recipe = '{"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}'
    (first / "preprocessor_config.json").write_text(recipe)
    second = Path(shutil.copytree(first, tmp_path / "exported"))
    exported(second, transformers.ViTForImageClassification.from_pretrained(second), (3, 32, 32))
    request, files = {"images": ["media://photo"]}, {"media://photo": PHOTO}
    results = []
    for runner, source in (("transformers", first), ("onnx", second)):
        model = a_model(source, name=runner, runner=runner, processor="image-classification", max_batch=1)
        [image] = (run(engine, model, request, files).result.data or {})["images"]
        results.append(image["labels"])
    assert [label["label"] for label in results[0]] == [label["label"] for label in results[1]]
    scores = [[label["score"] for label in labels] for labels in results]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@needs_data
@torch.inference_mode()
def test_an_exported_segmenter_gives_the_same_mask(engine: BatchingEngine, tmp_path: Path) -> None:
    first = a_segformer(tmp_path / "segformer")
    recipe = '{"image_processor_type": "SegformerImageProcessor", "size": {"height": 64, "width": 64}}'
    (first / "preprocessor_config.json").write_text(recipe)
    second = Path(shutil.copytree(first, tmp_path / "exported"))
    exported(second, transformers.SegformerForSemanticSegmentation.from_pretrained(second), (3, 64, 64))
    request, files = {"image": "media://photo"}, {"media://photo": PHOTO}
    table = {"outputs": {"classes": {"name": "logits", "resize": True, "reduce": "argmax"}}}
    masks = []
    for runner, source, options in (("transformers", first, {}), ("onnx", second, {"onnx": table})):
        model = a_model(source, name=runner, runner=runner, processor="image-segmentation", options=options)
        done = run(engine, model, request, files)
        masks.append(np.asarray(Image.open(io.BytesIO(done.artifacts["mask.png"][1]))))
    assert masks[0].shape == (427, 640)
    assert len(np.unique(masks[0])) > 1
    assert (masks[0] == masks[1]).mean() > 0.9999
