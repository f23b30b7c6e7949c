"""Reading videos: some of their frames, upright, as people see them.

Which frames there are shows without decoding them: every packet has the time of its frame. So their number is known
before the first is asked for, and what a file's header says of its length does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from penstock.processors.containers import opened
from penstock.processors.video.request import VideoRequest
from penstock.processors.vision.picture import MAX_PIXELS, Picture

#: What a model without `limits.max_seconds` takes.
MAX_SECONDS = 12 * 3600
_TAKEN = "MP4, QuickTime, WebM, Matroska or AVI"


class Still(NamedTuple):
    """A frame and its time from the beginning."""

    time_s: float
    picture: Picture


@dataclass(frozen=True, slots=True)
class Film:
    """A video of which so many frames are taken, the first one `begin_s` into the file's own time."""

    path: Path
    #: (height, width), upright.
    shape: tuple[int, int]
    begin_s: float
    duration_s: float
    #: From one frame that is taken to the next.
    every_s: float
    count: int

    def stills(self, limits: Limits) -> Iterator[Still]:
        """Decode the video and yield the frames, which are as many as `count`, or fewer where some cannot be shown."""
        taken = 0
        with opened(self.path, "video", _TAKEN) as container:
            for frame in container.decode(_track(container, limits)):
                if taken < self.count and frame.time is not None and self._is_next(frame.time, taken):
                    yield Still(round(frame.time - self.begin_s, 3), self._upright(frame))
                    taken += 1
        if not taken:
            raise MediaUnreadable("The video has no frame that can be shown.")

    def _is_next(self, time_s: float, taken: int) -> bool:
        return time_s - self.begin_s >= taken * self.every_s - 1e-6

    def _upright(self, frame: VideoFrame) -> Picture:
        picture = _turned(frame)
        if picture.shape[:2] != self.shape:
            raise MediaUnreadable("The video changes its size on the way.")
        return picture


def open_film(path: Path, request: VideoRequest, limits: Limits) -> Film:
    """Look at a video's packets and its first frame.

    Raises `MediaTooLarge` for more pixels a frame or seconds than the limits allow, and `MediaUnreadable` for a file of
    another format, a damaged one, and one without frames.
    """
    times = sorted(_times(path, limits))
    if not times:
        raise MediaUnreadable("The video is empty: it holds no frames.")
    duration, most = times[-1] - times[0], limits.max_seconds or MAX_SECONDS
    if duration > most:
        raise MediaTooLarge(f"The video is longer than {most:g} seconds, which is what is taken.")
    frames = min(request.max_frames, limits.max_items or request.max_frames)
    every = max(1 / request.fps, float(duration / frames) * (1 + 1e-6))
    count = 0
    for time in times:
        count += count < frames and float(time - times[0]) >= count * every - 1e-6
    return Film(path, _shape(path, limits), float(times[0]), float(duration), every, count)


def _times(path: Path, limits: Limits) -> Iterator[Fraction]:
    """Yield the times of all frames, in the order of the file."""
    with opened(path, "video", _TAKEN) as container:
        track = _track(container, limits)
        for packet in container.demux(track):
            if packet.pts is not None and packet.time_base is not None and not packet.is_discard:
                yield packet.pts * packet.time_base


def _shape(path: Path, limits: Limits) -> tuple[int, int]:
    with opened(path, "video", _TAKEN) as container:
        first = next(container.decode(_track(container, limits)), None)
        if first is None:
            raise MediaUnreadable("The video has no frame that can be shown.")
        height, width = _turned(first).shape[:2]
        return height, width


def _track(container: InputContainer, limits: Limits) -> VideoStream:
    if not container.streams.video:
        raise MediaUnreadable("The file has no pictures: it is no video.")
    track = container.streams.video[0]
    if track.codec_context is None:
        raise MediaUnreadable("The video is of a kind that cannot be decoded here.")
    pixels, most = track.width * track.height, limits.max_pixels or MAX_PIXELS
    if pixels > most:
        raise MediaTooLarge(
            f"The video has {track.width} x {track.height} = {pixels} pixels; at most {most} are taken."
        )
    track.codec_context.thread_count = 1
    return track


def _turned(frame: VideoFrame) -> Picture:
    picture = np.rot90(frame.to_ndarray(format="rgb24"), k=round(frame.rotation / 90))
    return np.ascontiguousarray(picture, dtype=np.uint8)
