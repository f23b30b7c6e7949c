"""Image files with the generation parameters in their metadata."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from penstock.processors.image_generation.request import Format

MEDIA_TYPES: Mapping[Format, str] = {"png": "image/png", "webp": "image/webp"}

#: The PNG text chunk in which image generation tools look for parameters.
CHUNK = "parameters"
#: EXIF's ImageDescription. It holds ASCII only, and so does the JSON.
_DESCRIPTION = 0x010E


def write_image(path: Path, pixels: npt.NDArray[np.uint8], parameters: Mapping[str, Any], kind: Format) -> None:
    """Write uint8 (height, width, 1 or 3) with its parameters as JSON, in the PNG's text or the WebP's EXIF."""
    text, image = json.dumps(parameters), _pil_image(pixels)
    if kind == "png":
        info = PngInfo()
        info.add_text(CHUNK, text)
        image.save(path, format="PNG", pnginfo=info)
    else:
        exif = Image.Exif()
        exif[_DESCRIPTION] = text
        image.convert("RGB").save(path, format="WEBP", lossless=True, exif=exif)


def preview(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return uint8 (height, width, 1 or 3) as a small WebP."""
    file = io.BytesIO()
    _pil_image(pixels).convert("RGB").save(file, format="WEBP", quality=75)
    return file.getvalue()


def _pil_image(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
