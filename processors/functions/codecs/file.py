"""Files, untouched: the function gets a path, and answers bytes with a name."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import ProcessorFailed
from penstock.models import Limits
from penstock.processors.base import ArtifactSink


def decode(source: Path, options: Mapping[str, Any], limits: Limits) -> dict[str, Any]:  # noqa: ARG001  (a codec's form)
    """Return the path of the file in the job's folder."""
    return {"path": str(source), "media_type": mimetypes.guess_type(source.name)[0] or "application/octet-stream"}


def encode(sink: ArtifactSink, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Write the bytes under their own name, or under the answer's with their suffix."""
    own = Path(str(value["name"])).name
    file = f"{name}{Path(own).suffix}" if name else own
    if not file:
        raise ProcessorFailed("the model failed: it answered a file without a name")
    path = sink.path(file)
    path.write_bytes(bytes(value["bytes"]))
    guessed = mimetypes.guess_type(file)[0]
    said = str(value["media_type"])
    sink.add(file, path, media_type=guessed or said if said == "application/octet-stream" else said)
    return {"file": file}
