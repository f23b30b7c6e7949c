"""HEIC and AVIF files: recognised by their brands, and read where a decoder is installed.

Both are HEIF files (ISO/IEC 23008-12). Their decoders are imported with the first such file: few jobs need one.
"""

from __future__ import annotations

from typing import BinaryIO

from PIL import ImageFile, features

from penstock.errors import MediaUnreadable

#: Bytes of the beginning of a file in which its brands stand.
BRANDS_BYTES = 64
_AVIF = frozenset({b"avif", b"avis"})
_HEIC = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})


def format_of(start: bytes) -> str | None:
    """Return `AVIF` or `HEIC` for the first bytes of such a file, by the brands of its `ftyp` box; else None."""
    if start[4:8] != b"ftyp":
        return None
    end = min(int.from_bytes(start[:4]), len(start))
    brands = {start[8:12], *(start[at : at + 4] for at in range(16, end, 4))}
    return "AVIF" if brands & _AVIF else "HEIC" if brands & _HEIC else None


def open_avif(file: BinaryIO, name: str) -> ImageFile.ImageFile:
    """Read the header of an AVIF file; raise `MediaUnreadable` where Pillow has no decoder."""
    try:
        from PIL import AvifImagePlugin
    except ImportError as error:
        raise _no_decoder("AVIF", "pillow>=11.3") from error
    if not features.check("avif"):
        raise _no_decoder("AVIF", "pillow>=11.3")
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # one job, one core
    return AvifImagePlugin.AvifImageFile(file, name)


def open_heic(file: BinaryIO, name: str) -> ImageFile.ImageFile:
    """Read the header of a HEIC file; raise `MediaUnreadable` where pillow-heif is not installed."""
    try:
        import pillow_heif
    except ImportError as error:
        raise _no_decoder("HEIC", "pillow-heif") from error
    pillow_heif.options.DECODE_THREADS = 1
    image: ImageFile.ImageFile = pillow_heif.HeifImageFile(file, name)  # type: ignore[no-untyped-call]
    return image


def _no_decoder(form: str, package: str) -> MediaUnreadable:
    return MediaUnreadable(
        f"The image is {form}, and the worker has no decoder for it: the operator can install one "
        f"(pip install '{package}'). Or send the image as JPEG or PNG."
    )
