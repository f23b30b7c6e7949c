"""Images: RGB pixels in, PNG out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.models import Limits
from penstock.processors.base import ArtifactSink
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.image import read_image


def decode(source: Path | bytes, options: Mapping[str, Any], limits: Limits) -> Any:  # noqa: ARG001  (a codec's form)
    """Return uint8 (height, width, 3), upright; raise the errors of `read_image`."""
    return read_image(source, limits)


def encode(sink: ArtifactSink, name: str, value: Any) -> dict[str, Any]:
    """Write uint8 (height, width[, 3 or 4]) as PNG."""
    OUTPUTS.put(sink, name or "image", value, kind="png")
    return {"width": value.shape[1], "height": value.shape[0]}
