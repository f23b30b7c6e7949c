"""Reading pictures: PNG, JPEG, WebP, TIFF, BMP and GIF files as people see them.

A file is opened only by the decoder that its first bytes name, and its size is checked before a pixel is decoded: a
file of 100 kB can declare 10 gigapixels. The rules:

* EXIF orientation is applied; of several frames or pages the first is taken.
* What is transparent becomes white, as on paper; palettes, grey and CMYK become RGB.
* 16 bits a channel become 8 by their full range (65535 is white), never by what the picture happens to contain.
* Colour profiles are ignored, as they are where such networks are trained.
"""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps
from PIL.TiffImagePlugin import TILELENGTH, TILEWIDTH, TiffImageFile

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits

Picture = npt.NDArray[np.uint8]  #: (height, width, 3), RGB

#: What a model without `limits.max_pixels` takes: about 90 megapixels, Pillow's own bound against bombs.
MAX_PIXELS = 1024**3 // 4 // 3

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"BM": "BMP",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
}
_TAKEN = "PNG, JPEG, WebP, TIFF, BMP or GIF"
#: Pillow's decoders raise all of these for files that are not what they begin like.
_BROKEN = (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, struct.error)
#: Its WebP and GIF readers know Pillow's own bound all the same.
_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
_ROWS = 256
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


def read_picture(path: Path, limits: Limits) -> Picture:
    """Return a picture file's pixels, uint8 (height, width, 3).

    Raises `MediaTooLarge` if its header declares more than `limits.max_pixels`, and `MediaUnreadable` if it is of
    another format, broken, cut off, or has pixels of 32 bits, which have no range of their own.
    """
    with _File(path) as file:
        image = _open(file, limits)
        _check_size(image, limits)
        try:
            return _to_rgb(image)
        except _BOMBS as error:
            raise _too_many(limits) from error
        except _BROKEN as error:
            raise MediaUnreadable("The picture cannot be decoded: it is damaged or incomplete.") from error


def measure(path: Path, limits: Limits) -> tuple[int, int]:
    """Return (height, width) as the header declares them, before any rotation; raise as `read_picture` does for it."""
    with _File(path) as file:
        image = _open(file, limits)
        _check_size(image, limits)
        return image.height, image.width


class _File(io.BufferedReader):
    """A file of which no more is read than there is: Python makes room first, and a chunk may promise 4 GB."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._size = os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Return so many bytes, or the rest."""
        left = max(0, self._size - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))


def _open(file: BinaryIO, limits: Limits) -> ImageFile.ImageFile:
    """Read the header. `Image.open` would do, but for its bound on pixels, which is one for the whole process."""
    name = _format(file.read(16))
    file.seek(0)
    Image.init()
    try:
        return Image.OPEN[name][0](file, "")
    except _BOMBS as error:
        raise _too_many(limits) from error
    except _BROKEN as error:
        said = (
            f"The file begins like {name} but its header cannot be read: it is damaged, incomplete or of a rare kind."
        )
        raise MediaUnreadable(said) from error


def _format(start: bytes) -> str:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WEBP"
    for signature, name in _SIGNATURES.items():
        if start.startswith(signature):
            return name
    raise MediaUnreadable(f"The file is no picture that is taken here: {_TAKEN}.")


def _check_size(image: Image.Image, limits: Limits) -> None:
    _check_sides("The picture has", image.width, image.height, limits)
    if isinstance(image, TiffImageFile):  # a tile is decoded whole, however little of it is in the picture
        width, height = (image.tag_v2.get(tag, 0) for tag in (TILEWIDTH, TILELENGTH))
        _check_sides("The picture's tiles have", width, height, limits)


def _check_sides(what: str, width: int, height: int, limits: Limits) -> None:
    pixels, most = width * height, limits.max_pixels or MAX_PIXELS
    if pixels > most:
        raise MediaTooLarge(f"{what} {width} x {height} = {pixels} pixels; at most {most} are taken.")


def _too_many(limits: Limits) -> MediaTooLarge:
    return MediaTooLarge(f"The picture declares more pixels than are taken: {limits.max_pixels or MAX_PIXELS}.")


def _to_rgb(image: Image.Image) -> Picture:
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("P", "PA") and image.palette is None:
        image = image.copy()  # which has one, all black
    if image.mode in _SIXTEEN_BITS:
        image = Image.fromarray(np.rint(np.asarray(image, dtype=np.float32) / 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise MediaUnreadable("The picture has 32 bits a pixel, which have no range of their own: give it 8 or 16.")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return _array(image if image.mode == "RGB" else image.convert("RGB"))


def _array(image: Image.Image) -> Picture:
    """Return an RGB image's pixels, a few rows at a time: Pillow would make two copies of all of them on the way."""
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    for top in range(0, image.height, _ROWS):
        bottom = min(top + _ROWS, image.height)
        pixels[top:bottom] = np.asarray(image.crop((0, top, image.width, bottom)))
    return pixels
