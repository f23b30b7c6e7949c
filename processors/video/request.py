"""The `input` of video jobs. The API imports this module for its JSON Schemas: no numpy and no decoder here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.media_types import VIDEO_FILES
from penstock.models import MediaReference, Record

VideoOutput = Literal["overlay", "masks"]

MAX_FRAMES = 10_000


class VideoRequest(Record):
    """A video and the sampling of its frames."""

    video: MediaReference = Field(
        description="The video (MP4, QuickTime, WebM, Matroska or AVI; the first track counts)",
        json_schema_extra=VIDEO_FILES,
    )
    fps: float = Field(
        default=1.0, gt=0, le=120, allow_inf_nan=False, description="Frames to process per second of video."
    )
    max_frames: int = Field(
        default=300,
        ge=1,
        le=MAX_FRAMES,
        description="The most frames to process; a longer video is sampled at a lower rate over its whole length.",
    )


class VideoClassificationRequest(VideoRequest):
    """A video whose frames to classify."""

    top_k: int = Field(default=5, ge=1, le=1000, description="Classes to return for each frame, best first.")


class VideoSegmentationRequest(VideoRequest):
    """A video whose frames to segment."""

    outputs: tuple[VideoOutput, ...] = Field(
        default=("overlay",),
        min_length=1,
        description="overlay: overlay.mp4, the frames in their classes' colours; masks: masks.mkv, lossless class ids.",
    )
