"""The csmask network: rebuilt rightly, and its receptive radius measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import rasterio
import torch

from penstock.workers.engine.csmask import load_csmask

SCENE = Path(__file__).parents[3] / "shared/data/geo/l8_betsiboka_20200127_6b.tif"
MEAN = np.array([0.19312, 0.18659, 0.18899, 0.30362, 0.23085, 0.16216], np.float32)[:, None, None]
STD = np.array([0.16431, 0.16762, 0.18230, 0.17409, 0.16020, 0.14164], np.float32)[:, None, None]
TILE_PX = 128

Pixels = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def weights() -> Path:
    spec = find_spec("ukis_csmask")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("model_6b.onnx")


@pytest.fixture(scope="module")
def network(weights: Path) -> torch.nn.Module:
    return load_csmask(weights.read_bytes()).module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def scene() -> Pixels:
    if not SCENE.exists():
        pytest.skip(f"the real scene is not here: {SCENE.name}")
    with rasterio.open(SCENE) as source:
        reflectance = source.read().astype(np.float32) / 65535
    pixels: Pixels = (reflectance - MEAN) / STD
    return pixels


def forward(network: torch.nn.Module, pixels: Pixels) -> Pixels:
    with torch.inference_mode():
        batch = torch.from_numpy(np.ascontiguousarray(pixels))[None]
        probability: Pixels = network(batch.contiguous(memory_format=torch.channels_last))[0].numpy()
    return probability


def in_tiles(network: torch.nn.Module, pixels: Pixels, halo: int) -> Pixels:
    _, height, width = pixels.shape
    result = np.empty((5, height, width), np.float32)
    for row in range(0, height, TILE_PX):
        for column in range(0, width, TILE_PX):
            top, left = max(0, row - halo), max(0, column - halo)
            window = pixels[:, top : row + TILE_PX + halo, left : column + TILE_PX + halo]
            tile = forward(network, window)[:, row - top :, column - left :]
            result[:, row : row + TILE_PX, column : column + TILE_PX] = tile[:, :TILE_PX, :TILE_PX]
    return result


def test_it_agrees_with_onnxruntime_on_the_published_file(network: torch.nn.Module, weights: Path) -> None:
    session = onnxruntime.InferenceSession(str(weights), providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).normal(size=(6, 256, 256)).astype(np.float32)
    (published,) = session.run(None, {"input_1": pixels.transpose(1, 2, 0)[None]})
    np.testing.assert_allclose(forward(network, pixels), published[0].transpose(2, 0, 1), atol=1e-5)


def test_it_finds_the_classes_of_the_real_scene(network: torch.nn.Module, scene: Pixels) -> None:
    with rasterio.open(SCENE) as source:
        valid = source.dataset_mask() > 0
    classes = forward(network, scene).argmax(axis=0)[valid]
    water, snow, land = (100 * np.mean(classes == label) for label in (1, 2, 3))
    assert (water, snow, land) == pytest.approx((18, 29, 53), abs=1)


@pytest.mark.slow
def test_a_halo_of_96_px_is_exact_and_80_is_not(network: torch.nn.Module, scene: Pixels) -> None:
    whole = forward(network, scene)
    assert np.array_equal(in_tiles(network, scene, halo=96), whole)
    assert np.abs(in_tiles(network, scene, halo=80) - whole).max() > 1e-3
