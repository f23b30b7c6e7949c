"""Synthetic sample scenes, tagged as synthetic.

`write_sample` generates a coast with a beach, a river, fields and forest, clouds with shadows, and the slanted edge of
a swath. The values are plausible top-of-atmosphere reflectances of a 30 m sensor, so that a network trained on real
scenes classifies water, land and cloud correctly.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.processors.geo.options import Band
from penstock.processors.geo.read.gdal import rasterio

Layer = npt.NDArray[np.float32]

_BANDS = ("blue", "green", "red", "nir", "swir16", "swir22")
_SCALE, _PIXEL_M, _ORIGIN_M = 1e-4, 30.0, (399_960.0, 5_000_040.0)
#: Top-of-atmosphere reflectances by band; `air` is the atmosphere alone.
_SPECTRA = {
    "air": (0.085, 0.052, 0.030, 0.013, 0.004, 0.002),
    "sea": (0.110, 0.078, 0.047, 0.024, 0.009, 0.006),
    "river": (0.112, 0.092, 0.066, 0.038, 0.013, 0.008),
    "sand": (0.180, 0.200, 0.235, 0.300, 0.370, 0.300),
    "soil": (0.128, 0.132, 0.150, 0.225, 0.290, 0.225),
    "crop": (0.100, 0.102, 0.068, 0.390, 0.195, 0.090),
    "wood": (0.092, 0.076, 0.050, 0.280, 0.120, 0.052),
    "cloud": (0.620, 0.610, 0.620, 0.690, 0.500, 0.390),
}


def write_sample(path: Path, *, size_px: int = 1024, seed: int = 20_200_127) -> None:
    """Write a six-band scene of `size_px` x `size_px` pixels of 30 m (EPSG:32633) as a GeoTIFF.

    uint16 with scale tags of 1e-4 and nodata 0; the same arguments give the same pixels. `size_px` is at least 64.
    """
    numbers = np.rint(_scene(size_px, np.random.default_rng(seed)) / _SCALE).clip(1, 65_535).astype(np.uint16)
    numbers[:, _outside(size_px)] = 0
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        dtype="uint16",
        count=len(_BANDS),
        height=size_px,
        width=size_px,
        nodata=0,
        crs="EPSG:32633",
        transform=rasterio.Affine(_PIXEL_M, 0, _ORIGIN_M[0], 0, -_PIXEL_M, _ORIGIN_M[1]),
        tiled=True,
        blockxsize=256,
        blockysize=256,
        compress="deflate",
        predictor=2,
    ) as dataset:
        dataset.descriptions = _BANDS
        dataset.scales = (_SCALE,) * len(_BANDS)
        dataset.update_tags(SYNTHETIC="yes", DESCRIPTION="Synthetic scene made by Penstock; not an observation.")
        dataset.write(numbers)


def write_noise(path: Path, bands: Sequence[Band], side_px: int, *, reflectance: bool = False) -> None:
    """Write a float32 noise scene for a warm-up, with the bands' names and the statistics of the training data.

    For a `reflectance` model the values are made positive: values far below 0 are rejected as undeclared nodata.
    """
    rng = np.random.default_rng(0)
    profile = {"driver": "GTiff", "dtype": "float32", "count": len(bands), "height": side_px, "width": side_px}
    place = {"crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, _ORIGIN_M[0], 0, -10, _ORIGIN_M[1])}
    with rasterio.open(path, "w", tiled=True, **profile, **place) as dataset:
        for number, band in enumerate(bands, start=1):
            dataset.set_band_description(number, band.name)
            noise = rng.normal(band.mean, band.std, (side_px, side_px)).astype(np.float32)
            dataset.write(np.abs(noise) if reflectance else noise, number)


def _scene(size: int, rng: np.random.Generator) -> Layer:
    """Return reflectances (6, size, size)."""
    down, across = np.mgrid[0:size, 0:size].astype(np.float32) / size
    ground = _ground(size, rng, down, across)
    cover = _clouds(size, rng)
    shift_down, shift_across = -round(0.045 * size), -round(0.065 * size)
    # The sun is in the south-east, so shadows fall to the north-west. Clouds outside the scene cast no shadows.
    shade = np.roll(cover, (shift_down, shift_across), axis=(0, 1))
    shade[shift_down:], shade[:, shift_across:] = 0, 0
    air = _spectrum("air")
    lit = air + (ground - air) * (1 - 0.85 * shade)
    texture = 1 + 0.06 * _noise(size, rng, 12)
    scene = lit * (1 - cover) + _spectrum("cloud") * texture * cover
    scene += rng.normal(0, 0.0015, scene.shape).astype(np.float32)
    return np.asarray(scene, dtype=np.float32)


def _ground(size: int, rng: np.random.Generator, down: Layer, across: Layer) -> Layer:
    shore = 0.30 + 0.10 * np.sin(3.1 * down + 0.4) + 0.035 * _noise(size, rng, 5) + 0.008 * _noise(size, rng, 40)
    inland = across - shore
    middle = 0.56 + 0.05 * np.sin(9 * across) + 0.10 * (across - 0.5) + 0.010 * _noise(size, rng, 8)
    width = 0.016 + 0.030 * np.exp(-np.maximum(inland, 0) / 0.08)
    ground = _land(size, rng, down, across)
    ground = _blend(ground, "sand", _soft((0.012 - inland) * size / 2))
    ground = _blend(ground, "river", _soft((width - np.abs(down - middle)) * size / 2))
    return _blend(ground, "sea", _soft(-inland * size / 2))


def _land(size: int, rng: np.random.Generator, down: Layer, across: Layer) -> Layer:
    """Return fields on a rotated grid, each with its own share of crop over soil, and forest between them."""
    along, aside = 0.94 * across + 0.34 * down, 0.94 * down - 0.34 * across + 0.5
    field = (np.floor(along * 26) * 61 + np.floor(aside * 38) * 17).astype(np.int64) % 1009
    crop = rng.uniform(0.05, 1, 1009).astype(np.float32)[field]
    ground = _blend(np.broadcast_to(_spectrum("soil"), (len(_BANDS), size, size)), "crop", crop)
    ground = _blend(ground, "wood", _soft((_noise(size, rng, 7) - 0.7) * 12))
    return np.asarray(ground * (1 + 0.05 * _noise(size, rng, 60)), dtype=np.float32)


def _clouds(size: int, rng: np.random.Generator) -> Layer:
    """Return the cloud cover of each pixel, 0 to 1."""
    down, across = np.mgrid[0:size, 0:size].astype(np.float32) / size
    shape = 0.030 * _noise(size, rng, 9) + 0.016 * _noise(size, rng, 28)
    cover = np.zeros((size, size), dtype=np.float32)
    for at_down, at_across, radius in ((0.27, 0.62, 0.105), (0.20, 0.76, 0.060), (0.80, 0.25, 0.080)):
        distance = np.hypot(down - at_down, (across - at_across) * 0.8)
        cover = np.maximum(cover, _soft((radius + shape - distance) * 90))
    return cover


def _outside(size: int) -> npt.NDArray[np.bool_]:
    """Return the mask of pixels outside the swath: a wedge at the right edge."""
    down, across = np.mgrid[0:size, 0:size] / size
    return np.asarray(across > 0.985 - 0.11 * down)


def _noise(size: int, rng: np.random.Generator, cells: int) -> Layer:
    """Return smooth noise with mean about 0, standard deviation about 1 and a scale of `size / cells` pixels."""
    grid = Image.fromarray(rng.normal(0, 1.4, (cells + 3, cells + 3)).astype(np.float32))
    return np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC, box=(1, 1, cells + 2, cells + 2)))


def _soft(value: npt.NDArray[np.floating]) -> Layer:
    """Return a smooth step (logistic function) from 0 to 1 around 0, about two units wide."""
    return np.asarray(1 / (1 + np.exp(-np.clip(2 * value, -30, 30))), dtype=np.float32)


def _blend(below: Layer, name: str, share: Layer) -> Layer:
    return np.asarray(below * (1 - share) + _spectrum(name) * share, dtype=np.float32)


def _spectrum(name: str) -> Layer:
    return np.array(_SPECTRA[name], dtype=np.float32)[:, None, None]
