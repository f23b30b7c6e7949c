"""Codecs: files to values and back, one module each. A codec knows nothing of any model.

`decode(source, options, limits)` returns JSON with arrays and bytes in it; `encode(sink, name, value)` writes a file
and returns what the answer's JSON says of it. Modules are imported when a model first needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Modules of codecs by name. `own` hands files over as they are, to a codec of the user's file.
_MODULES = {
    "audio": "audio", "document": "document", "file": "file", "image": "image", "own": "file", "table": "table",
    "tensor": "tensor", "video": "video",
}  # fmt: skip
#: Codecs of answers that are JSON.
AS_JSON = ("json", "labels", "boxes", "vector")


def codec(name: str) -> Any:
    """Return the module of a codec."""
    return import_module(f"{__name__}.{_MODULES[name]}")
