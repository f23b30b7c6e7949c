"""The `input` of jobs on sound. Their JSON Schemas are the API's: neither numpy nor a decoder is imported here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from penstock.models import MediaReference

TranscriptOutput = Literal["json", "srt", "vtt"]
Language = Annotated[str, StringConstraints(pattern=r"^[a-z]{2,3}$"), Field(examples=["en"])]

_KINDS = "WAV, FLAC, MP3, Ogg, M4A, MP4 or WebM; the first sound track counts"


class SpeechRequest(BaseModel):
    """Speech to write down."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    audio: MediaReference = Field(description=f"The recording ({_KINDS})")
    language: Language | None = Field(
        default=None, description="What is spoken, such as en or de; without it the model listens for it."
    )
    task: Literal["transcribe", "translate"] = Field(
        default="transcribe", description="transcribe: in the language that is spoken; translate: in English."
    )
    timestamps: Literal["segment", "word"] = Field(
        default="segment", description="word: the result has the times of each word besides."
    )
    temperature: float = Field(
        default=0.0, ge=0, le=1, allow_inf_nan=False, description="0 takes the likeliest words; more is more varied."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Another seed hears other words where temperature > 0.")
    outputs: tuple[TranscriptOutput, ...] = Field(
        default=("json",),
        min_length=1,
        description="json: the segments in the result; srt, vtt: the artifacts transcript.srt and transcript.vtt.",
    )


class AudioClassificationRequest(BaseModel):
    """Sound to classify."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    audio: MediaReference = Field(description=f"The recording ({_KINDS})")
    top_k: int = Field(default=5, ge=1, le=1000, description="How many classes to name, best first.")
