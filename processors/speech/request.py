"""The `input` of audio jobs. The API imports this module for its JSON Schemas: no numpy and no decoder here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from penstock.media_types import AUDIO_FILES
from penstock.models import MediaReference

TranscriptOutput = Literal["json", "srt", "vtt"]
Language = Annotated[str, StringConstraints(pattern=r"^[a-z]{2,3}$"), Field(examples=["en"])]

_KINDS = "WAV, FLAC, MP3, Ogg, M4A, MP4 or WebM; the first audio track counts"


class SpeechRequest(BaseModel):
    """Speech to transcribe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    audio: MediaReference = Field(description=f"The recording ({_KINDS})", json_schema_extra=AUDIO_FILES)
    language: Language | None = Field(
        default=None, description="The spoken language, such as en or de; detected by default."
    )
    task: Literal["transcribe", "translate"] = Field(
        default="transcribe", description="transcribe: into the spoken language; translate: into English."
    )
    timestamps: Literal["segment", "word"] = Field(
        default="segment", description="word: the result also has the times of each word."
    )
    temperature: float = Field(
        default=0.0, ge=0, le=1, allow_inf_nan=False, description="0 chooses the likeliest words; more is more varied."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Another seed gives other words where temperature > 0.")
    outputs: tuple[TranscriptOutput, ...] = Field(
        default=("json",),
        min_length=1,
        description="json: the segments in the result; srt, vtt: the artifacts transcript.srt and transcript.vtt.",
    )


class AudioClassificationRequest(BaseModel):
    """Audio to classify."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    audio: MediaReference = Field(description=f"The recording ({_KINDS})", json_schema_extra=AUDIO_FILES)
    top_k: int = Field(default=5, ge=1, le=1000, description="Classes to return, best first.")
