"""Image reader: PNG, JPEG, WebP, TIFF, BMP and GIF files as RGB pixels; AVIF and HEIC where a decoder is installed.

The first bytes of a file choose its decoder, and the declared size is checked before any pixel is decoded: a file of
100 kB can declare 10 gigapixels. Rules:

* EXIF orientation is applied. Only the first frame or page is read.
* Transparent pixels become white. Palettes, grey and CMYK become RGB.
* 16 bits per channel become 8 by their full range (65535 is white), not by the range of the image's own values. An
  image whose values end at 12 bits is noted as dark in the job's result.
* A JPEG has at most 100 scans, and data for its declared size.
* Colour profiles are ignored, as in the training of most networks.
"""

from __future__ import annotations

import io
import mmap
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import jpeg_factory
from PIL.MpoImagePlugin import MpoImageFile  # noqa: F401  (`jpeg_factory` imports it)
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TILELENGTH, TILEWIDTH, TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.decoding import decoding
from penstock.processors.notes import note
from penstock.processors.vision import heif
from penstock.processors.vision.scans import check_scans

ImageArray = npt.NDArray[np.uint8]  #: (height, width, 3), RGB

#: Maximum pixels for models without `limits.max_pixels`: about 90 megapixels, Pillow's bound against bombs.
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
#: The reader of each format. Pillow's own table (`Image.init`) imports 40 modules, in each new process.
_READERS: dict[str, Callable[[BinaryIO, str], ImageFile.ImageFile]] = {
    "PNG": PngImageFile,
    "JPEG": jpeg_factory,
    "WEBP": WebPImageFile,
    "TIFF": TiffImageFile,
    "BMP": BmpImageFile,
    "GIF": GifImageFile,
    "AVIF": heif.open_avif,
    "HEIC": heif.open_heic,
}
_FORMATS = "PNG, JPEG, WebP, TIFF, BMP, GIF, AVIF or HEIC"
#: Errors that Pillow's decoders raise for damaged files; `RuntimeError` is libavif's and libheif's.
_BROKEN = (
    OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, RuntimeError,
    struct.error,
)  # fmt: skip
#: Errors of Pillow's own bound on pixels, which its WebP and GIF readers always check.
_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
_DAMAGED = "The image cannot be decoded: the file is damaged or incomplete."
_ROWS = 256
#: Bytes of a file that is read at once.
_SMALL_BYTES = 1 << 20
#: The largest value of 12 bits after the conversion of 16 bits to 8.
_TWELVE_BITS = 16
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


def read_image(source: Path | bytes, limits: Limits) -> ImageArray:
    """Return the pixels of an image file or of its bytes, uint8 (height, width, 3).

    Raises `MediaTooLarge` if the header declares more than `limits.max_pixels`. Raises `MediaUnreadable` if the file
    has another format, is damaged or truncated, or has pixels of 32 bits, whose range is unknown.
    """
    return _read(source, limits, _to_rgb)


def read_opacity(source: Path | bytes, limits: Limits) -> npt.NDArray[np.uint8]:
    """Return the opacity of an image file's pixels, uint8 (height, width): 0 is transparent.

    Raises the errors of `read_image`.
    """
    return _read(source, limits, _to_opacity)


def measure(source: Path | bytes, limits: Limits) -> tuple[int, int]:
    """Return (height, width) from the header, before EXIF rotation; raise the errors of `read_image` for headers."""
    with _file(source) as file:
        image, _ = _open(file, limits)
        _check_size(image, limits)
        return image.height, image.width


def _read(
    source: Path | bytes, limits: Limits, convert: Callable[[ImageFile.ImageFile], npt.NDArray[np.uint8]]
) -> npt.NDArray[np.uint8]:
    with _file(source) as file:
        image, is_whole = _open(file, limits)
        _check_size(image, limits)
        if not is_whole:  # the decoder would fill the rest with grey
            raise MediaUnreadable(_DAMAGED)
        try:
            with decoding(pixels=image.width * image.height, size_bytes=file.size_bytes):
                if image.format == "HEIF":
                    image.load()  # the coded image may be larger than the header declares
                    _check_size(image, limits)
                return convert(image)
        except _BOMBS as error:
            raise _too_many(limits) from error
        except _BROKEN as error:
            raise MediaUnreadable(_DAMAGED) from error


class _SmallFile(io.BytesIO):
    """A file in memory: decoders read its header in pieces of a few bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.size_bytes = len(data)
        self._data = data

    def contents(self) -> AbstractContextManager[bytes]:
        """Return the bytes of the file; its position stays."""
        return nullcontext(self._data)


class _LargeFile(io.BufferedReader):
    """A file that limits reads to its own size: Python allocates before it reads, and a chunk can declare 4 GB."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        super().__init__(io.FileIO(path))
        self.size_bytes = size_bytes

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes, or the rest of the file."""
        left = max(0, self.size_bytes - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))

    def contents(self) -> AbstractContextManager[mmap.mmap]:
        """Return the bytes of the file; its position stays."""
        return mmap.mmap(self.fileno(), 0, access=mmap.ACCESS_READ)


_File = _SmallFile | _LargeFile


def _file(source: Path | bytes) -> _File:
    if isinstance(source, bytes):
        return _SmallFile(source)
    size_bytes = source.stat().st_size
    return _LargeFile(source, size_bytes) if size_bytes > _SMALL_BYTES else _SmallFile(source.read_bytes())


def _open(file: _File, limits: Limits) -> tuple[ImageFile.ImageFile, bool]:
    """Read the header; also return False for a JPEG with less data than its declared size needs.

    `Image.open` is not used because its bound on pixels is global to the process.
    """
    name, is_whole = _format(file.read(heif.BRANDS_BYTES)), True
    if name == "JPEG":
        with file.contents() as data:
            is_whole = check_scans(data)
    file.seek(0)
    try:
        with decoding(size_bytes=file.size_bytes):
            return _READERS[name](file, ""), is_whole
    except _BOMBS as error:
        raise _too_many(limits) from error
    except _BROKEN as error:
        detail = (
            f"The file starts like {name}, but its header cannot be read: it is damaged, incomplete or of a rare kind."
        )
        raise MediaUnreadable(detail) from error


def _format(start: bytes) -> str:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WEBP"
    if (form := heif.format_of(start)) is not None:
        return form
    for signature, name in _SIGNATURES.items():
        if start.startswith(signature):
            return name
    raise MediaUnreadable(f"The file is not an image in a supported format: {_FORMATS}.")


def _check_size(image: Image.Image, limits: Limits) -> None:
    _check_sides("The image has", image.width, image.height, limits)
    if isinstance(image, TiffImageFile):  # a tile is decoded whole, even if the image shows little of it
        width, height = (image.tag_v2.get(tag, 0) for tag in (TILEWIDTH, TILELENGTH))
        _check_sides("The image's tiles have", width, height, limits)


def _check_sides(what: str, width: int, height: int, limits: Limits) -> None:
    pixels, most = width * height, limits.max_pixels or MAX_PIXELS
    if pixels > most:
        raise MediaTooLarge(f"{what} {width} x {height} = {pixels} pixels; at most {most} are allowed.")


def _too_many(limits: Limits) -> MediaTooLarge:
    return MediaTooLarge(f"The image declares more pixels than are allowed: {limits.max_pixels or MAX_PIXELS}.")


def _to_rgb(image: ImageFile.ImageFile) -> ImageArray:
    is_deep = any(";16" in str(tile[3]) for tile in image.tile)
    pixels = _decoded(image)
    if is_deep and 0 < pixels.max() <= _TWELVE_BITS:
        note(
            "The image has 16 bits per channel and no value above 4,095 of 65,535, so the model sees it as dark: if "
            "its values have 12 bits, multiply them by 16 before you send it."
        )
    return pixels


def _decoded(image: Image.Image) -> ImageArray:
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("P", "PA") and image.palette is None:
        image = image.copy()  # the copy has a palette, all black
    if image.mode in _SIXTEEN_BITS:
        image = Image.fromarray(np.rint(np.asarray(image, dtype=np.float32) / 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise MediaUnreadable("The image has 32 bits per pixel, whose range is unknown: convert it to 8 or 16 bits.")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return _array(image if image.mode == "RGB" else image.convert("RGB"))


def _to_opacity(image: Image.Image) -> npt.NDArray[np.uint8]:
    ImageOps.exif_transpose(image, in_place=True)
    if not image.has_transparency_data:
        return np.full((image.height, image.width), 255, dtype=np.uint8)
    return np.array(image.convert("RGBA").getchannel("A"))


def _array(image: Image.Image) -> ImageArray:
    """Return an RGB image's pixels. Rows are converted in strips, because Pillow makes two copies of its input."""
    if image.height <= _ROWS:
        return np.array(image)
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    for top in range(0, image.height, _ROWS):
        bottom = min(top + _ROWS, image.height)
        pixels[top:bottom] = np.asarray(image.crop((0, top, image.width, bottom)))
    return pixels
