"""Writing videos with PyAV: H.264 for people, and FFV1, which keeps every number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from penstock.models import Limits

#: The sides of a dummy's frames, and how many there are.
_DUMMY_PX, _DUMMY_FRAMES = 512, 4


class Reel:
    """A video that grows frame by frame."""

    def __init__(self, container: Any, stream: Any, form: str) -> None:
        self._container, self._stream, self._form = container, stream, form

    def add(self, pixels: npt.NDArray[np.uint8]) -> None:
        """Add a frame: uint8 (height, width, 3), or (height, width) for class ids."""
        height, width = self._stream.height, self._stream.width
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels[:height, :width]), format=self._form)
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write what is held back."""
        self._container.mux(self._stream.encode(None))


@contextmanager
def film_maker(path: Path, shape: tuple[int, int], fps: float, *, exact: bool = False) -> Iterator[Reel]:
    """Make a video of frames of (height, width): MP4 with H.264, or `exact` ids as Matroska with FFV1.

    H.264 as players want it has even sides: an odd last row or column is left out.
    """
    codec, stored, form = ("ffv1", "gray", "gray") if exact else ("libx264", "yuv420p", "rgb24")
    height, width = shape if exact else (max(2, shape[0] // 2 * 2), max(2, shape[1] // 2 * 2))
    # Matroska gives every file a random name of its own otherwise.
    with av.open(str(path), "w", container_options={"fflags": "+bitexact"}) as container:
        stream: Any = container.add_stream(codec, rate=1 / Fraction(1 / fps).limit_denominator(1000))
        stream.width, stream.height, stream.pix_fmt = width, height, stored
        stream.thread_count = 1
        if not exact:  # x264's macroblock tree gives other bits now and then, beside other work one video in five
            stream.options = {"x264-params": "mbtree=0"}
        reel = Reel(container, stream, form)
        yield reel
        reel.finish()


def write_dummy(folder: Path, limits: Limits) -> Path:
    """Write a few frames of noise, as large as an ordinary one or as the limits allow."""
    side = min(_DUMMY_PX, int((limits.max_pixels or _DUMMY_PX**2) ** 0.5)) // 2 * 2
    random, path = np.random.default_rng(0), folder / "dummy.mp4"
    with film_maker(path, (side, side), _DUMMY_FRAMES / min(3, limits.max_seconds or 3)) as reel:
        for _ in range(_DUMMY_FRAMES):
            reel.add(random.integers(0, 256, (side, side, 3), dtype=np.uint8))
    return path
