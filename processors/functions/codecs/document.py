"""Documents: the pages of a PDF as images and text, or an image as one page; PDF of images out, text in the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, JpegImagePlugin, PdfImagePlugin  # noqa: F401  (Pillow's PDF writer needs both)

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.base import ArtifactSink
from penstock.processors.decoding import decoding
from penstock.processors.vision.image import MAX_PIXELS, read_image

#: Pages of a document, characters of all its text, and bytes of all its images.
MAX_PAGES, MAX_CHARS, MAX_BYTES = 1000, 2_000_000, 2**30
#: Bytes at the beginning of a file in which a PDF has its signature.
_HEAD_BYTES = 1024
#: Units of a PDF in an inch.
_UNITS = 72


def decode(source: Path, options: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the `image`, uint8 (height, width, 3), and the `text` of each of the `pages`, and their `dpi`.

    Raises `MediaUnreadable` or `MediaTooLarge`.
    """
    dpi = int(options.get("dpi", 150))
    with source.open("rb") as file:
        is_pdf = b"%PDF-" in file.read(_HEAD_BYTES)
    if not is_pdf:
        return {"pages": [{"image": read_image(source, limits), "text": ""}], "dpi": dpi}
    return {"pages": list(_pages(source, dpi, limits.max_pixels or MAX_PIXELS)), "dpi": dpi}


def encode(sink: ArtifactSink, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Write uint8 (height, width[, 3 or 4]) of each page as a PDF; return the texts, and the sizes in pixels."""
    pages, file = value["pages"], f"{name or 'document'}.pdf"
    told = [{"page": at, "text": one["text"]} for at, one in enumerate(pages, 1)]
    if not pages or pages[0]["image"] is None:
        return {"pages": told}
    first, *others = (Image.fromarray(np.asarray(one["image"])).convert("RGB") for one in pages)
    path = sink.path(file)
    first.save(path, "PDF", save_all=True, append_images=others, resolution=float(value["dpi"]))
    sink.add(file, path, media_type="application/pdf")
    sizes = [{"width": image.width, "height": image.height} for image in (first, *others)]
    return {"pages": [one | size for one, size in zip(told, sizes, strict=True)]}


def _pages(source: Path, dpi: int, max_pixels: int) -> Iterator[dict[str, Any]]:
    try:
        import pypdfium2 as pdfium
    except ImportError as error:
        raise MediaUnreadable(
            "The document is a PDF, and the worker has no reader for it: the operator can install one "
            "(pip install 'pypdfium2')."
        ) from error
    size_bytes, chars, total = source.stat().st_size, 0, 0
    try:
        with decoding(size_bytes=size_bytes):
            document = pdfium.PdfDocument(source)
        with closing(document):
            if len(document) > MAX_PAGES:
                raise MediaTooLarge(f"The document has {len(document):,} pages; at most {MAX_PAGES:,} are allowed.")
            for number in range(len(document)):
                with closing(document[number]) as page:
                    pixels = _size(page, dpi, number, max_pixels)
                    if (total := total + 3 * pixels) > MAX_BYTES:
                        raise MediaTooLarge(
                            f"The pages take more than {MAX_BYTES:,} bytes as images at {dpi} dots per inch: the "
                            "model takes fewer with `Document(dpi=...)`."
                        )
                    with decoding(pixels=pixels, size_bytes=size_bytes):
                        found = _page(page, dpi)
                if (chars := chars + len(found["text"])) > MAX_CHARS:
                    raise MediaTooLarge(f"The text of the document has more than {MAX_CHARS:,} characters.")
                yield found
    except pdfium.PdfiumError as error:
        raise MediaUnreadable(f"The PDF cannot be read: it is damaged, or needs a password ({error}).") from error


def _size(page: Any, dpi: int, number: int, max_pixels: int) -> int:
    """Return the pixels of a page, which are checked before any is drawn."""
    width, height = (max(1, round(side * dpi / _UNITS)) for side in page.get_size())
    if width * height > max_pixels:
        raise MediaTooLarge(
            f"Page {number + 1} has {width} x {height} pixels at {dpi} dots per inch; at most {max_pixels:,} are "
            "allowed."
        )
    return int(width * height)


def _page(page: Any, dpi: int) -> dict[str, Any]:
    with closing(page.render(scale=dpi / _UNITS, rev_byteorder=True, may_draw_forms=False)) as bitmap:
        image = np.array(bitmap.to_numpy()[..., :3])
    with closing(page.get_textpage()) as text:
        return {"image": image, "text": text.get_text_bounded().replace("\r\n", "\n").replace("\x00", "")}
