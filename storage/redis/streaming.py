"""Partial text and previews of a job's result, for clients that follow the job."""

from __future__ import annotations

import base64

from penstock.jobs import Claim, JobKey
from penstock.storage.redis.fields import dump
from penstock.storage.redis.records import held_by, names_of
from penstock.storage.redis.scripts import Command, query


def stream_text(claim: Claim, text: str, *, at: int) -> Command[bool]:
    """Emit a part of the result's text, which begins at character `at` of this attempt's text, to the job's followers.

    False where the attempt no longer holds the job: then nothing is emitted.
    """
    data = dump({"text": text, "at": at, "attempt": claim.attempt})
    return Command("add", {"op": "text", **held_by(claim), "at": at, "length": len(text), "data": data}, bool)


def show_preview(claim: Claim, name: str, media_type: str, image: bytes) -> Command[bool]:
    """Emit a preview of the artifact `name` to the job's followers.

    False where the attempt no longer holds the job: then nothing is emitted.
    """
    encoded_image = base64.b64encode(image).decode()
    data = dump({"name": name, "content_type": media_type, "data": encoded_image, "attempt": claim.attempt})
    return Command("add", {"op": "preview", **held_by(claim), "data": data}, bool)


def streamed(key: JobKey) -> Command[int]:
    """Return the characters of a job's text that `note_streamed` noted; 0 where there is no note."""
    return query("streamed", int, **names_of(key))


def note_streamed(key: JobKey, chars: int, *, for_s: float) -> Command[bool]:
    """Note how many characters of a job's text were streamed to its client, for so many seconds."""
    return Command("note", {"op": "streamed", **names_of(key), "chars": chars, "for_ms": round(for_s * 1000)}, bool)
