"""Files in a plugin's answer: base64 texts that become artifacts."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

from penstock.processors.base import ArtifactSink

#: First bytes of file formats, with suffix and media type. Other texts stay in the answer unchanged.
_KINDS = (
    (b"II*\0", ".tif", "image/tiff"),
    (b"MM\0*", ".tif", "image/tiff"),
    (b"II+\0", ".tif", "image/tiff"),
    (b"\x89PNG\r\n\x1a\n", ".png", "image/png"),
    (b"\xff\xd8\xff", ".jpg", "image/jpeg"),
    (b"\x93NUMPY", ".npy", "application/octet-stream"),
    (b"\x89HDF\r\n\x1a\n", ".h5", "application/x-hdf5"),
)
#: Number of base64 characters that hold the longest of the first bytes.
_BEGINNING_CHARS = 12
_UNFIT = re.compile(r"[^0-9A-Za-z_-]+")


def with_artifacts(answer: Any, sink: ArtifactSink, at: Sequence[str] = ()) -> Any:
    """Add the files in an answer to the sink, and return the answer with `{"artifact": name}` instead of each file.

    A file is named after its path in the answer: `data.tif`, `tiles-0.png`.
    """
    match answer:
        case dict():
            return {key: with_artifacts(value, sink, (*at, key)) for key, value in answer.items()}
        case list():
            return [with_artifacts(value, sink, (*at, str(index))) for index, value in enumerate(answer)]
        case str() if (found := _file(answer)) is not None:
            data, suffix, media_type = found
            name = (_UNFIT.sub("-", "-".join(at)).strip("-") or "answer") + suffix
            path = sink.path(name)
            path.write_bytes(data)
            sink.add(name, path, media_type=media_type)
            return {"artifact": name}
        case _:
            return answer


def _file(text: str) -> tuple[bytes, str, str] | None:
    try:
        beginning = base64.b64decode(text[:_BEGINNING_CHARS], validate=True)
        kind = next((kind for kind in _KINDS if beginning.startswith(kind[0])), None)
        return None if kind is None else (base64.b64decode(text, validate=True), *kind[1:])
    except (binascii.Error, ValueError):
        return None
