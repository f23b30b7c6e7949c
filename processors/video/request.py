"""The `input` of video jobs. Their JSON Schemas are the API's: neither numpy nor a decoder is imported here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.models import MediaReference

VideoOutput = Literal["overlay", "masks"]

MAX_FRAMES = 10_000


class VideoRequest(BaseModel):
    """A video to look at, frame by frame."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    video: MediaReference = Field(
        description="The video (MP4, QuickTime, WebM, Matroska or AVI; the first track counts)"
    )
    fps: float = Field(
        default=1.0, gt=0, le=120, allow_inf_nan=False, description="How many frames of a second to take."
    )
    max_frames: int = Field(
        default=300,
        ge=1,
        le=MAX_FRAMES,
        description="At most so many frames; of a longer video fewer a second are taken, spread over all of it.",
    )


class VideoClassificationRequest(VideoRequest):
    """A video whose frames to classify."""

    top_k: int = Field(default=5, ge=1, le=1000, description="How many classes to name for each frame, best first.")


class VideoSegmentationRequest(VideoRequest):
    """A video whose frames to segment."""

    outputs: tuple[VideoOutput, ...] = Field(
        default=("overlay",),
        min_length=1,
        description="overlay: overlay.mp4, the frames in their classes' colours; masks: masks.mkv, lossless class ids.",
    )
