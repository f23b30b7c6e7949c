"""Rasters that are wrong, absurd or odd. Every maker returns a file's bytes, the same every time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.read.gdal import rasterio, without_georeference
from tests.corpus import tiff
from tests.corpus.tiff import ASCII, BYTE, DOUBLE, LONG, SHORT, grey
from tests.support.geo.scenes import NORTH_UP, pattern

Maker = Callable[[], bytes]


def raster(numbers: npt.NDArray[Any], driver: str = "GTiff", **profile: Any) -> bytes:
    """Return (bands, rows, columns) as a file in UTM, or as the profile says."""
    count, height, width = numbers.shape
    place = {"crs": "EPSG:32633", "transform": NORTH_UP}
    shape = {"count": count, "height": height, "width": width, "dtype": numbers.dtype}
    return _written(lambda file: file.write(numbers), driver=driver, **{**shape, **place, **profile})


def declared(height: int, width: int, count: int = 1, **profile: Any) -> bytes:
    """Return a file that declares so many pixels and holds none."""
    shape = {"count": count, "height": height, "width": width, "dtype": "uint8", "compress": "deflate"}
    place = {"crs": "EPSG:32633", "transform": NORTH_UP, "SPARSE_OK": True, "tiled": True}
    return _written(lambda _: None, **{**shape, **place, **profile})


def _written(write: Callable[[Any], None], driver: str = "GTiff", **profile: Any) -> bytes:
    with rasterio.MemoryFile() as memory, without_georeference():
        with memory.open(driver=driver, **profile) as file:
            write(file)
        return bytes(memory.read())


def tagged(space: str, **tags: str) -> bytes:
    """Return a sound scene with tags in one of GDAL's own spaces."""

    def write(file: Any) -> None:
        file.write(pattern(64, 64))
        file.update_tags(ns=space, **tags)

    shape = {"count": 1, "height": 64, "width": 64, "dtype": "uint8"}
    return _written(write, crs="EPSG:32633", transform=NORTH_UP, **shape)


def placed(matrix: list[float]) -> bytes:
    """Return a picture whose geotransform is this 4 x 4 matrix."""
    return grey(16, 16, MATRIX=(DOUBLE, matrix))


def _matrix(a: float, b: float, c: float, d: float, e: float, f: float) -> list[float]:
    return [a, b, 0, c, d, e, 0, f, 0, 0, 0, 0, 0, 0, 0, 1]


NAN, INF = math.nan, math.inf

ABSURD: Mapping[str, Maker] = {
    "149-gib.tif": lambda: declared(400_000, 400_000, blockxsize=512, blockysize=512),
    "6-bands-of-149-gib.tif": lambda: declared(
        400_000, 400_000, 6, interleave="pixel", BIGTIFF="YES", blockxsize=512, blockysize=512
    ),
    "one-row-of-2-billion.tif": lambda: grey(1, 2**31 - 1),
    "one-column-of-2-billion.tif": lambda: grey(2**31 - 1, 1),
    "65000-bands-by-pixel.tif": lambda: declared(16, 16, 65_000, interleave="pixel"),
    "65000-bands-by-band.tif": lambda: declared(16, 16, 65_000, interleave="band", tiled=False),
    "blocks-of-400-mb.tif": lambda: declared(20_000, 20_000, blockxsize=20_000, blockysize=20_000),
    "block-larger-than-the-scene.tif": lambda: declared(16, 16, blockxsize=32_768, blockysize=32_768),
    "blocks-of-1-row-of-30000.tif": lambda: declared(100, 30_000, tiled=False, blockysize=1),
    "tile-of-0.tif": lambda: grey(
        16, 16, TILE_WIDTH=(LONG, [0]), TILE_HEIGHT=(LONG, [0]), TILE_OFFSETS=(LONG, [8]), TILE_COUNTS=(LONG, [8])
    ),
    "tile-of-4-billion.tif": lambda: grey(
        16,
        16,
        TILE_WIDTH=(LONG, [2**32 - 16]),
        TILE_HEIGHT=(LONG, [2**32 - 16]),
        TILE_OFFSETS=(LONG, [8]),
        TILE_COUNTS=(LONG, [8]),
        OFFSETS=None,
        COUNTS=None,
        ROWS_PER_STRIP=None,
    ),
    "strip-of-0-rows.tif": lambda: grey(16, 16, ROWS_PER_STRIP=(LONG, [0])),
    "no-rows.tif": lambda: grey(0, 16),
    "no-columns.tif": lambda: grey(16, 0),
    "no-width.tif": lambda: grey(16, 16, WIDTH=None),
    "no-offsets.tif": lambda: grey(16, 16, OFFSETS=None),
    "offsets-behind-the-end.tif": lambda: grey(16, 16, OFFSETS=(LONG, [2**31])),
    "offsets-at-the-header.tif": lambda: grey(16, 16, OFFSETS=(LONG, [0]), COUNTS=(LONG, [256])),
    "a-count-of-4-billion.tif": lambda: grey(16, 16, OFFSETS=(LONG, [8], 2**32 - 1)),
    "samples-of-0-bits.tif": lambda: grey(16, 16, BITS=(SHORT, [0])),
    "samples-of-1-bit.tif": lambda: grey(16, 16, BITS=(SHORT, [1])),
    "samples-of-65535-bits.tif": lambda: grey(16, 16, BITS=(SHORT, [65_535])),
    "no-samples.tif": lambda: grey(16, 16, SAMPLES=(SHORT, [0])),
    "65535-samples.tif": lambda: grey(16, 16, SAMPLES=(SHORT, [65_535])),
    "unknown-compression.tif": lambda: grey(16, 16, COMPRESSION=(SHORT, [54_321])),
    "jpeg-without-jpeg.tif": lambda: grey(16, 16, COMPRESSION=(SHORT, [7])),
    "deflate-without-deflate.tif": lambda: grey(16, 16, COMPRESSION=(SHORT, [8])),
    "lzma-without-lzma.tif": lambda: grey(16, 16, COMPRESSION=(SHORT, [34_925])),
    "unknown-format.tif": lambda: grey(16, 16, FORMAT=(SHORT, [77])),
    "floats-of-8-bits.tif": lambda: grey(16, 16, FORMAT=(SHORT, [3])),
    "directory-that-follows-itself.tif": lambda: tiff.tiff({tiff.WIDTH: (LONG, [1])}, following=8),
    "directory-of-nothing.tif": lambda: tiff.tiff({}),
    "directory-behind-the-end.tif": lambda: b"II*\0\xff\xff\xff\x7f",
    "eight-bytes.tif": lambda: b"II*\0\x08\0\0\0",
    "four-bytes.tif": lambda: b"II*\0",
    "one-byte.tif": lambda: b"I",
    "zero-bytes.tif": lambda: b"",
    "bigtiff-of-nothing.tif": lambda: b"II+\0\x08\0\0\0" + b"\xff" * 8,
    "transform-nan.tif": lambda: placed(_matrix(NAN, 0, 0, 0, NAN, 0)),
    "transform-inf.tif": lambda: placed(_matrix(INF, 0, 0, 0, -1, 0)),
    "transform-zero.tif": lambda: placed(_matrix(0, 0, 0, 0, 0, 0)),
    "transform-flat.tif": lambda: placed(_matrix(1, 1, 0, 1, 1, 0)),
    "transform-huge.tif": lambda: placed(_matrix(1e308, 0, 1e308, 0, -1e308, 1e308)),
    "transform-tiny.tif": lambda: placed(_matrix(1e-320, 0, 0, 0, -1e-320, 0)),
    "pixel-size-nan.tif": lambda: grey(16, 16, SCALE=(DOUBLE, [NAN] * 3), TIEPOINT=(DOUBLE, [0.0] * 6)),
    "nodata-of-words.tif": lambda: grey(16, 16, NODATA=(ASCII, b"drop table\0")),
    "nodata-out-of-range.tif": lambda: grey(16, 16, NODATA=(ASCII, b"1e400\0")),
    "metadata-that-is-no-xml.tif": lambda: grey(16, 16, METADATA=(ASCII, b"<GDALMetadata><Item name=" + b"\0")),
    "metadata-of-entities.tif": lambda: grey(16, 16, METADATA=(ASCII, _billion_laughs() + b"\0")),
    "metadata-10000-deep.tif": lambda: grey(16, 16, METADATA=(ASCII, b"<a>" * 10_000 + b"</a>" * 10_000 + b"\0")),
    "metadata-of-60-mb.tif": lambda: grey(16, 16, METADATA=(ASCII, _long(60_000_000) + b"\0")),
    "10000-directories.tif": lambda: tiff.chain(10_000),
    "metadata-of-60-mb.jp2": lambda: with_box(sound("jp2-in-boxes"), _long(60_000_000)),
    "scale-nan.tif": lambda: grey(16, 16, METADATA=(ASCII, _scale("nan"))),
    "scale-0.tif": lambda: grey(16, 16, METADATA=(ASCII, _scale("0"))),
    "complex-numbers.tif": lambda: raster(pattern(16, 16).astype(np.complex64)),
    "64-bit-integers.tif": lambda: raster(pattern(16, 16).astype(np.int64)),
    "bands-of-two-types.tif": lambda: grey(16, 16, SAMPLES=(SHORT, [2]), BITS=(SHORT, [8, 16])),
    "all-nan.tif": lambda: raster(np.full((1, 16, 16), NAN, np.float32)),
    "all-infinite.tif": lambda: raster(np.full((1, 16, 16), INF, np.float32)),
    "all-1e38.tif": lambda: raster(np.full((1, 16, 16), 3e38, np.float32)),
    "band-names-of-control-characters.tif": lambda: grey(16, 16, METADATA=(ASCII, _named("a\u202eb\x07\x1b[31m"))),
    "100-mp-in-150-kb.tif": lambda: raster(np.ones((1, 10_000, 10_000), np.uint8), compress="deflate", tiled=True),
    "9-mp-in-15-kb.tif": lambda: raster(np.ones((1, 3000, 3000), np.uint8), compress="deflate", tiled=True),
    "palette-of-bytes.tif": lambda: grey(16, 16, PHOTOMETRIC=(SHORT, [3]), PALETTE=(BYTE, [0] * 10)),
}


def _billion_laughs() -> bytes:
    steps = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    return f'<!DOCTYPE GDALMetadata [<!ENTITY a0 "ha">{steps}]><GDALMetadata>&a9;</GDALMetadata>'.encode()


def _long(size: int) -> bytes:
    return b'<GDALMetadata><Item name="A">' + b"x" * size + b"</Item></GDALMetadata>"


def _items(count: int) -> bytes:
    """Return metadata of so many items; GDAL compares the name of each with those before it."""
    items = (f'<Item name="A{number:07}">{"x" * 30}</Item>' for number in range(count))
    return f"<GDALMetadata>{''.join(items)}</GDALMetadata>".encode()


def with_box(whole: bytes, text: bytes) -> bytes:
    """Return a JPEG 2000 file with a box of XML before its pixels."""
    at = whole.index(b"jp2c") - 4
    return whole[:at] + (len(text) + 8).to_bytes(4) + b"xml " + text + whole[at:]


def _scale(value: str) -> bytes:
    scale = f'<Item name="SCALE" sample="0" role="scale">{value}</Item>'
    offset = '<Item name="OFFSET" sample="0" role="offset">1</Item>'
    return f"<GDALMetadata>{scale}{offset}</GDALMetadata>\0".encode()


def _named(name: str) -> bytes:
    return f'<GDALMetadata><Item name="D" sample="0" role="description">{name}</Item></GDALMetadata>\0'.encode()


@cache
def sound(kind: str) -> bytes:
    """Return a sound file of 96 x 96 px of noise, whose damage is then seen: the kinds of `SOUND`."""
    noise = np.random.default_rng(1).integers(1, 250, (1, 96, 96), np.uint8)
    tiles = {"tiled": True, "blockxsize": 32, "blockysize": 32}
    profiles: dict[str, dict[str, Any]] = {
        "deflate": {"compress": "deflate", **tiles},
        "lzw": {"compress": "lzw"},
        "jpeg": {"compress": "jpeg", **tiles},
        "zstd": {"compress": "zstd", **tiles},
        "lerc": {"compress": "lerc", **tiles},
        "packbits": {"compress": "packbits"},
        "webp": {"compress": "webp", **tiles},
        "big": {"BIGTIFF": "YES", **tiles},
        "jp2": {"driver": "JP2OpenJPEG", "QUALITY": 100, "REVERSIBLE": "YES"},
        "jp2-in-boxes": {"driver": "JP2OpenJPEG", "CODEC": "JP2"},
    }
    if kind == "webp":
        noise = np.repeat(noise, 3, axis=0)
    return raster(noise, **profiles[kind])


SOUND = ("deflate", "lzw", "jpeg", "zstd", "lerc", "packbits", "webp", "big", "jp2")


def cut(kind: str, share: float) -> bytes:
    """Return a sound file's first bytes."""
    whole = sound(kind)
    return whole[: int(len(whole) * share)]


def flipped(whole: bytes, seed: str) -> bytes:
    """Return bytes of which a few bits are wrong: one in three among the first 512, where headers lie."""
    draw, data = random.Random(seed), bytearray(whole)
    for _ in range(draw.choice((1, 3, 12))):
        data[draw.randrange(min(len(data), 512) if draw.random() < 1 / 3 else len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def flip(kind: str, seed: str) -> bytes:
    """Return a sound file with bits turned over."""
    return flipped(sound(kind), seed)


CUTS = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
SEEDS = range(8)
#: A scene that GDAL opens for minutes, and whose memory is at its peak after seconds.
SLOW: Maker = lambda: grey(16, 16, METADATA=(ASCII, _items(400_000) + b"\0"))  # noqa: E731
#: Sound files that were cut off.
CUT: Mapping[str, Maker] = {f"{kind}-cut-at-{share:.0%}": partial(cut, kind, share) for kind in SOUND for share in CUTS}
#: And such of which bits were turned over.
FLIPPED: Mapping[str, Maker] = {
    f"{kind}-flipped-{seed}": partial(flip, kind, f"{kind} {seed}") for kind in SOUND for seed in SEEDS
}
