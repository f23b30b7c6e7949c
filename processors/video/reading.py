"""Reading videos: sampling some of their frames and turning them upright.

Packets carry the times of their frames, so the number of sampled frames is known before any is decoded. The duration in
the header is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.decoding import bounded
from penstock.processors.limits import check_seconds
from penstock.processors.media.containers import opened, packets
from penstock.processors.video.request import VideoRequest
from penstock.processors.vision.image import MAX_PIXELS, ImageArray

_SUPPORTED = "MP4, QuickTime, WebM, Matroska or AVI"


class Frame(NamedTuple):
    """A sampled frame and its time from the beginning of the video."""

    time_s: float
    image: ImageArray


@dataclass(frozen=True, slots=True)
class Video:
    """A video and the choice of its frames. The first frame is at `begin_s` of the file's own time."""

    path: Path
    #: (height, width), upright.
    shape: tuple[int, int]
    begin_s: float
    duration_s: float
    #: Seconds from one sampled frame to the next.
    every_s: float
    count: int

    def frames(self, limits: Limits) -> Iterator[Frame]:
        """Decode the video and yield `count` frames, or fewer where some cannot be decoded."""
        count = 0
        with opened(self.path, "video", _SUPPORTED) as container:
            for decoded in _decoded(container, limits):
                if count < self.count and decoded.time is not None and self._is_next(decoded.time, count):
                    yield Frame(round(decoded.time - self.begin_s, 3), self._upright(decoded))
                    count += 1
        if not count:
            raise MediaUnreadable("The video has no frame that can be decoded.")

    def _is_next(self, time_s: float, count: int) -> bool:
        return time_s - self.begin_s >= count * self.every_s - 1e-6

    def _upright(self, frame: VideoFrame) -> ImageArray:
        image = _turned(frame)
        if image.shape[:2] != self.shape:
            raise MediaUnreadable("The video's frames differ in size.")
        return image


class Timeline(NamedTuple):
    """The number, rate and size of the frames of a whole video."""

    frames: int
    #: Frames per second, on average.
    rate: float
    #: (height, width), upright.
    shape: tuple[int, int]


def read_timeline(path: Path, limits: Limits) -> Timeline:
    """Return a video's timeline from its packets and its first frame. Raises the errors of `open_video`."""
    times = _ordered_times(path, limits)
    duration = float(times[-1] - times[0])
    rate = (len(times) - 1) / duration if duration else 1.0
    return Timeline(len(times), rate, _shape(path, limits))


def read_chosen(path: Path, chosen: Sequence[int], shape: tuple[int, int], limits: Limits) -> Iterator[ImageArray]:
    """Decode a video and yield the frames with these numbers, which are sorted, upright.

    A number that is given twice yields its frame twice. Raises `MediaUnreadable` if a frame cannot be decoded or is not
    of the `shape` (height, width).
    """
    left = list(chosen)
    with opened(path, "video", _SUPPORTED) as container:
        for number, decoded in enumerate(_decoded(container, limits)):
            while left and left[0] == number:
                image = _turned(decoded)
                if image.shape[:2] != shape:
                    raise MediaUnreadable("The video's frames differ in size.")
                yield image
                del left[0]
            if not left:
                return
    raise MediaUnreadable(f"Frame {left[0]} of the video cannot be decoded.")


def open_video(path: Path, request: VideoRequest, limits: Limits) -> Video:
    """Read a video's packets and its first frame, and choose the frames.

    Raises `MediaTooLarge` for more pixels per frame or more seconds than the limits allow, and `MediaUnreadable` for
    another format, a damaged file, and a file without frames.
    """
    times = _ordered_times(path, limits)
    duration = times[-1] - times[0]
    frames = min(request.max_frames, limits.max_items or request.max_frames)
    every = max(1 / request.fps, float(duration / frames) * (1 + 1e-6))
    count = 0
    for time in times:
        count += count < frames and float(time - times[0]) >= count * every - 1e-6
    return Video(path, _shape(path, limits), float(times[0]), float(duration), every, count)


def _ordered_times(path: Path, limits: Limits) -> Sequence[Fraction]:
    """Return the times of all frames in seconds, sorted. Raises `MediaTooLarge` or `MediaUnreadable`."""
    times = sorted(_times(path, limits))
    if not times:
        raise MediaUnreadable("The video is empty: it holds no frames.")
    return times


def _times(path: Path, limits: Limits) -> Iterator[Fraction]:
    """Yield the times of all frames in the order of the file; raise `MediaTooLarge` at the first one past the limit."""
    ends: tuple[Fraction, ...] = ()
    with opened(path, "video", _SUPPORTED) as container:
        track = _track(container, limits)
        for packet in packets(container, path, "video"):
            if packet.stream.index != track.index:
                continue
            if packet.pts is not None and packet.time_base is not None and not packet.is_discard:
                time = packet.pts * packet.time_base
                ends = min((time, *ends)), max((time, *ends))
                check_seconds(float(ends[1] - ends[0]), limits, "video")
                yield time


def _shape(path: Path, limits: Limits) -> tuple[int, int]:
    with opened(path, "video", _SUPPORTED) as container:
        first = next(_decoded(container, limits), None)
        if first is None:
            raise MediaUnreadable("The video has no frame that can be decoded.")
        height, width = _turned(first).shape[:2]
        return height, width


def _decoded(container: InputContainer, limits: Limits) -> Iterator[VideoFrame]:
    track = _track(container, limits)
    return bounded(container.decode(track), pixels=track.width * track.height)


def _track(container: InputContainer, limits: Limits) -> VideoStream:
    if not container.streams.video:
        raise MediaUnreadable("The file has no video track.")
    track = container.streams.video[0]
    if track.codec_context is None:
        raise MediaUnreadable("The video's codec is not supported.")
    pixels, most = track.width * track.height, limits.max_pixels or MAX_PIXELS
    if pixels > most:
        raise MediaTooLarge(
            f"The video has {track.width} x {track.height} = {pixels} pixels; at most {most} are allowed."
        )
    track.codec_context.thread_count = 1
    return track


def _turned(frame: VideoFrame) -> ImageArray:
    image = np.rot90(frame.to_ndarray(format="rgb24"), k=round(frame.rotation / 90))
    return np.ascontiguousarray(image, dtype=np.uint8)
