"""Pictures that are odd and must be read right, and files that are no pictures or do harm where they are read."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.corpus.rasters import ABSURD, flipped
from tests.corpus.tiff import LONG, grey

Maker = Callable[[], bytes]
RED, GREEN, BLUE, GOLD = (200, 0, 0), (0, 160, 0), (0, 0, 220), (240, 200, 0)
_EXIF_ORIENTATION = 0x0112


def quarters(height: int = 64, width: int = 96) -> npt.NDArray[np.uint8]:
    """Return a picture that tells how it lies: red, green, blue and gold from the top left on, line by line."""
    pixels = np.empty((height, width, 3), np.uint8)
    top, left = slice(0, height // 2), slice(0, width // 2)
    pixels[:], pixels[top, left], pixels[top], pixels[height // 2 :, left] = GOLD, RED, GREEN, BLUE
    pixels[top, left] = RED
    return pixels


def saved(form: str, image: Image.Image | None = None, **options: Any) -> bytes:
    """Return a picture (the quarters) as a file."""
    file = io.BytesIO()
    (image or Image.fromarray(quarters())).save(file, format=form, **options)
    return file.getvalue()


def lossless(form: str) -> dict[str, Any]:
    """Return the options under which a format keeps colours well."""
    return {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(form, {})


def turned(form: str, orientation: int) -> bytes:
    """Return the quarters stored as a camera held so stores them: who heeds the tag sees them upright."""
    upright = quarters()
    stored = {
        2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.transpose(1, 0, 2),
        6: np.rot90(upright), 7: upright[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(upright, -1),
    }.get(orientation, upright)  # fmt: skip
    exif = Image.Exif()
    exif[_EXIF_ORIENTATION] = orientation
    return saved(form, Image.fromarray(np.ascontiguousarray(stored)), exif=exif, **lossless(form))


def moving(form: str) -> bytes:
    """Return the quarters, followed by frames that are black."""
    frames = [
        Image.fromarray(quarters()).quantize(4) if form == "GIF" else Image.fromarray(quarters()),
        *[Image.new("RGB", (96, 64))] * 3,
    ]
    return saved(form, frames[0], save_all=True, append_images=frames[1:], duration=50, **lossless(form))


def sixteen_bits() -> npt.NDArray[np.uint16]:
    """Return grey quarters of 16 bits, whose mean is far from any 8-bit one: 0, 1/3, 2/3 and all of 65535."""
    return np.kron(np.array([[0, 21_845], [43_690, 65_535]], np.uint16), np.ones((32, 48), np.uint16))


def see_through(mode: str) -> bytes:
    """Return a picture whose colours are black, and transparent but at the bottom right."""
    alpha = np.zeros((64, 96), np.uint8)
    alpha[32:, 48:] = 255
    if mode == "P":
        picture = Image.fromarray((alpha > 0).astype(np.uint8)).convert("P")
        picture.putpalette([0, 0, 0, 0, 0, 0])
        return saved("PNG", picture, transparency=0)
    colours = np.zeros((64, 96, 3 if mode == "RGBA" else 1), np.uint8)
    return saved("PNG", Image.fromarray(np.dstack([colours, alpha[..., None]])))


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of these chunks."""
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def header(width: int, height: int, bits: int = 8, colour: int = 2) -> tuple[bytes, bytes]:
    """Return a PNG's first chunk."""
    return b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)


@cache
def packed(size: int) -> bytes:
    """Return so many zeros, deflated."""
    packer = zlib.compressobj(1)
    zeros = bytes(2**20)
    return b"".join(packer.compress(zeros) for _ in range(size // len(zeros))) + packer.flush()


END = (b"IEND", b"")

#: Odd, and all of them the quarters.
QUARTERS: Mapping[str, Maker] = {
    **{
        f"plain.{form.lower()}": partial(saved, form, **lossless(form))
        for form in ("PNG", "JPEG", "WEBP", "TIFF", "BMP")
    },
    **{f"turned-{n}.jpeg": partial(turned, "JPEG", n) for n in range(1, 9)},
    **{f"turned-{n}.{form.lower()}": partial(turned, form, n) for n in (3, 6) for form in ("PNG", "WEBP")},
    "orientation-0.jpeg": partial(turned, "JPEG", 0),
    "orientation-99.jpeg": partial(turned, "JPEG", 99),
    "exif-of-rubbish.jpeg": lambda: saved("JPEG", exif=b"Exif\0\0" + b"\xff" * 64, **lossless("JPEG")),
    "exif-that-points-at-itself.jpeg": lambda: saved("JPEG", exif=_looping_exif(), **lossless("JPEG")),
    "moving.gif": partial(moving, "GIF"),
    "moving.webp": partial(moving, "WEBP"),
    "moving.png": partial(moving, "PNG"),
    "pages.tiff": lambda: moving("TIFF"),
    "palette.png": lambda: saved("PNG", Image.fromarray(quarters()).quantize(4)),
    "palette.tiff": lambda: saved("TIFF", Image.fromarray(quarters()).quantize(4)),
    "profile-of-rubbish.png": lambda: saved("PNG", icc_profile=b"\xff" * 200),
    "profile-of-rubbish.jpeg": lambda: saved("JPEG", icc_profile=b"\xff" * 200, **lossless("JPEG")),
    "cmyk.tiff": lambda: saved("TIFF", Image.fromarray(quarters()).convert("CMYK")),
    "cmyk.jpeg": lambda: saved("JPEG", Image.fromarray(quarters()).convert("CMYK"), quality=95),
    "ycbcr.tiff": lambda: saved("TIFF", Image.fromarray(quarters()).convert("YCbCr")),
    "interlaced.jpeg": lambda: saved("JPEG", progressive=True, **lossless("JPEG")),
    "opaque.png": lambda: saved("PNG", Image.fromarray(quarters()).convert("RGBA")),
    "tail-of-rubbish.png": lambda: saved("PNG") + b"<script>alert(1)</script>" * 100,
    "zip-behind.jpeg": lambda: saved("JPEG", **lossless("JPEG")) + b"PK\x03\x04" + bytes(100),
    "10000-text-chunks.png": lambda: png(*_with_chunks((b"tEXt", b"a\0b"), 10_000)),
}


def _with_chunks(chunk: tuple[bytes, bytes], times: int) -> list[tuple[bytes, bytes]]:
    rows = b"".join(b"\0" + row.tobytes() for row in quarters())
    return [header(96, 64), *[chunk] * times, (b"IDAT", zlib.compress(rows)), END]


def _looping_exif() -> bytes:
    entry = struct.pack("<HHII", 0x8769, 4, 1, 8)  # the directory inside is the one that it stands in
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 1) + entry + struct.pack("<I", 8)


#: Odd, and each of its own look.
ODD: Mapping[str, Maker] = {
    "16-bits.png": lambda: saved("PNG", Image.fromarray(sixteen_bits())),
    "16-bits.tiff": lambda: saved("TIFF", Image.fromarray(sixteen_bits())),
    "transparent-rgba.png": partial(see_through, "RGBA"),
    "transparent-la.png": partial(see_through, "LA"),
    "transparent-palette.png": partial(see_through, "P"),
    "one-bit.png": lambda: saved("PNG", Image.fromarray(sixteen_bits() > 40_000)),
    "one-pixel.png": lambda: saved("PNG", Image.new("RGB", (1, 1), GOLD)),
    "one-row.png": lambda: saved("PNG", Image.new("RGB", (5000, 1), GOLD)),
    "lab.tiff": lambda: saved("TIFF", Image.new("LAB", (16, 16), (255, 128, 128))),
}

#: Small files that become large, or say so.
BOMBS: Mapping[str, Maker] = {
    "10-gigapixels.png": lambda: png(header(100_000, 100_000), (b"IDAT", b""), END),
    "4-billion-wide.png": lambda: png(header(2**31 - 1, 2**31 - 1), (b"IDAT", b""), END),
    "67-mp-of-zeros.png": lambda: png(header(8192, 8191, 8, 0), (b"IDAT", packed(2**26)), END),
    "more-pixels-than-declared.png": lambda: png(header(96, 64), (b"IDAT", packed(2**26)), END),
    "text-of-64-mb.png": lambda: png(header(96, 64), (b"zTXt", b"a\0\0" + packed(2**26)), (b"IDAT", b""), END),
    "profile-of-64-mb.png": lambda: png(header(96, 64), (b"iCCP", b"a\0\0" + packed(2**26)), (b"IDAT", b""), END),
    "frame-beyond-the-picture.png": lambda: png(
        header(96, 64), (b"acTL", struct.pack(">II", 1, 0)),
        (b"fcTL", struct.pack(">IIIIIHHBB", 0, 2**31 - 1, 2**31 - 1, 2**30, 2**30, 1, 1, 0, 0)), (b"IDAT", b""), END,
    ),
    "4-gigapixels.tiff": lambda: grey(65_535, 65_535),
    "4-gigapixels.gif": lambda: b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + b"\0\0\0;",
    "frame-of-4-gigapixels.gif": lambda: (
        b"GIF89a\x01\0\x01\0\0\0\0," + struct.pack("<HHHH", 0, 0, 65_535, 65_535) + b"\0\x02\0;"
    ),
    "268-megapixels.webp": lambda: _webp(16_384, 16_384),
    "4-gigapixels.bmp": lambda: _bmp(65_535, 65_535),
    "upside-down.bmp": lambda: _bmp(96, -(2**31)),
    "4-gigapixels.jpeg": lambda: b"\xff\xd8\xff\xc0\0\x0b\x08\xff\xff\xff\xff\x01\x01\x11\0\xff\xd9",
    "60000-scans.jpeg": lambda: scans(60_000),
    "4400-pixels-that-are-16.jpeg": lambda: claiming(4400),
    "tile-of-4-billion.tiff": lambda: grey(
        64, 64, TILE_WIDTH=(LONG, [2**32 - 16]), TILE_HEIGHT=(LONG, [2**32 - 16]), TILE_OFFSETS=(LONG, [8]),
        TILE_COUNTS=(LONG, [8]), OFFSETS=None, COUNTS=None, ROWS_PER_STRIP=None,
    ),
}  # fmt: skip


def scans(count: int) -> bytes:
    """Return a progressive JPEG whose last scan is there so often: each takes as long as the first."""
    data = saved("JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


def claiming(side: int) -> bytes:
    """Return a JPEG of 16 x 16 pixels that says to be larger."""
    data = saved("JPEG", Image.new("RGB", (16, 16), GOLD))
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + side.to_bytes(2) * 2 + data[at + 4 :]


def _webp(width: int, height: int) -> bytes:
    size = struct.pack("<I", width - 1 | (height - 1) << 14)
    body = b"VP8L" + struct.pack("<I", 5) + b"\x2f" + size + b"\0"
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def _bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


#: Other kinds of picture files: those that other readers run as programs, and those of which there are too many.
FOREIGN: Mapping[str, Maker] = {
    "postscript.eps": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run showpage\n",
    "postscript.png": lambda: b"%!PS\n(id) (w) file pop\n",
    "binary-postscript.png": lambda: b"\xc5\xd0\xd3\xc6" + bytes(28) + b"%!PS\n",
    "drawing.svg": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "document.pdf": lambda: b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n",
    "icon.ico": lambda: saved("ICO"),
    "jpeg-2000.jp2": lambda: saved("JPEG2000"),
    "avif.avif": lambda: saved("AVIF"),
    "ppm.png": lambda: saved("PPM"),
    "targa.png": lambda: saved("TGA"),
    "photoshop.psd": lambda: b"8BPS\0\x01" + bytes(20),
    "windows.wmf": lambda: b"\xd7\xcd\xc6\x9a" + bytes(40),
    "fli.fli": lambda: bytes(4) + b"\x11\xaf" + bytes(122),
    "program.png": lambda: b"\x7fELF" + bytes(60),
    "script.png": lambda: b"#!/bin/sh\nid > /tmp/owned\n",
    "pickle.png": lambda: b"\x80\x04\x95" + bytes(8) + b"\x8c\x05posix\x8c\x06system\x93.",
    "html.png": lambda: b"<!doctype html><img src=x onerror=alert(1)>",
    "zero-bytes.png": lambda: b"",
    "one-byte.png": lambda: b"\x89",
    "signature.png": lambda: b"\x89PNG\r\n\x1a\n",
    "signature.jpeg": lambda: b"\xff\xd8\xff",
    "signature.gif": lambda: b"GIF89a",
    "signature.webp": lambda: b"RIFF\0\0\0\0WEBP",
    "signature.bmp": lambda: b"BM",
    "no-palette.png": lambda: png(header(96, 64, 8, 3), (b"IDAT", zlib.compress(bytes(64 * 97))), END),
    "no-pixels.png": lambda: png(header(96, 64), END),
    "zero-wide.png": lambda: png(header(0, 64), (b"IDAT", zlib.compress(b"")), END),
    "wrong-checksum.png": lambda: saved("PNG").replace(b"IHDR", b"IHDr", 1),
    "chunk-of-4-gb.png": lambda: png(header(96, 64)) + b"\xff\xff\xff\xffIDAT" + bytes(100),
    "32-bits.tiff": lambda: saved("TIFF", Image.fromarray(np.ones((64, 96), np.float32))),
    "32-bit-integers.tiff": lambda: saved("TIFF", Image.fromarray(np.ones((64, 96), np.int32))),
    "orientation-of-words.tiff": lambda: grey(64, 96, ORIENTATION=(2, b"upside down\0")),
}


@cache
def sound(form: str) -> bytes:
    """Return a picture of noise, whose damage is then seen."""
    noise = np.random.default_rng(2).integers(0, 256, (64, 96, 3), np.uint8)
    options = {"compression": "tiff_lzw"} if form == "TIFF" else {}
    return saved(form, Image.fromarray(noise), **options)


def cut(form: str, share: float) -> bytes:
    """Return a sound picture's first bytes."""
    return sound(form)[: int(len(sound(form)) * share)]


def flip(form: str, seed: str) -> bytes:
    """Return a sound picture with bits turned over."""
    return flipped(sound(form), seed)


FORMS, CUTS, SEEDS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"), (0.02, 0.2, 0.5, 0.9), range(8)
CUT: Mapping[str, Maker] = {f"cut-at-{share:.0%}.{f.lower()}": partial(cut, f, share) for f in FORMS for share in CUTS}
FLIPPED: Mapping[str, Maker] = {
    f"flipped-{seed}.{f.lower()}": partial(flip, f, f"{f} {seed}") for f in FORMS for seed in SEEDS
}
#: The absurd rasters are TIFF files too, and Pillow is another reader.
RASTERS: Mapping[str, Maker] = {f"raster-{name}": make for name, make in ABSURD.items()}
