"""Videos: pictures at a rate in, MP4 out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import MediaTooLarge
from penstock.models import Limits
from penstock.processors.base import ArtifactSink
from penstock.processors.video.reading import read_chosen, read_timeline
from penstock.processors.video.writing import open_video_writer

#: Bytes of the pictures of one video.
MAX_BYTES = 2**30


def decode(source: Path, options: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return uint8 (pictures, height, width, 3) at the options' `fps`; raise the errors of `read_timeline`."""
    timeline, fps = read_timeline(source, limits), float(options.get("fps", 1.0))
    every = max(1.0, timeline.rate / fps)
    chosen = [int(at) for at in np.arange(0, timeline.frames, every)]
    height, width = timeline.shape
    if (size := len(chosen) * height * width * 3) > MAX_BYTES:
        raise MediaTooLarge(
            f"{len(chosen)} pictures of {width} x {height} take {size:,} bytes; at most {MAX_BYTES:,} are allowed: "
            "the model takes fewer in a second with `Video(fps=...)`."
        )
    frames = np.empty((len(chosen), height, width, 3), np.uint8)
    for at, picture in enumerate(read_chosen(source, chosen, (height, width), limits)):
        frames[at] = picture
    return {"frames": frames, "fps": fps}


def encode(sink: ArtifactSink, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Write uint8 (pictures, height, width, 3) as MP4."""
    frames, file = np.asarray(value["frames"]), f"{name or 'video'}.mp4"
    path = sink.path(file)
    with open_video_writer(path, frames.shape[1:3], float(value["fps"])) as writer:
        for picture in frames:
            writer.add(picture)
    sink.add(file, path, media_type="video/mp4")
    return {"pictures": len(frames), "seconds": round(len(frames) / value["fps"], 3)}
