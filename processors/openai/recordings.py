"""Recordings of chats in vLLM. Each is decoded once here, in the process of its job, before vLLM's server gets it.

A recording that crashes its decoder would end the server with the requests of all jobs, and vLLM answers 500 to many
that are damaged, as if it had failed itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.models import Limits
from penstock.processors.openai.body import Medium, part_of

#: The formats that OpenAI's protocol names. vLLM refuses others in some messages, and goes by the file's bytes anyway.
_NAMED = ("wav", "mp3")
#: Samples a second that are made of a recording. They are counted and dropped.
_RATE_HZ = 16_000


def check_recordings(body: Mapping[str, Any], media: Sequence[Medium], limits: Limits) -> None:
    """Decode the recordings of a chat, and name their formats in its body as vLLM takes them.

    Raises `MediaTooLarge` for more than `limits.max_seconds`, and `MediaUnreadable` for a file that cannot be decoded.
    """
    for medium in media:
        if medium.at[-2] != "input_audio":
            continue
        from penstock.processors.speech.recording import read_audio  # with PyAV, which models without audio do not need

        for _ in read_audio(medium.path, limits, _RATE_HZ):
            pass
        part = part_of(body, medium)
        part["format"] = part["format"] if part["format"] in _NAMED else _NAMED[0]
