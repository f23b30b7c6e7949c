"""Reasons why a tiny network of a type did not answer as the library's, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.workers.engine.transformers.tasks import Task

_NO_TINY = "nobody has made a tiny network of it"
_IN_IMAGES = "its text decoder alone has another `model_type`; `image-text-to-text` serves the whole"
#: Reasons by task and type.
_OF_TYPES: Mapping[Task, Mapping[str, str]] = {
    Task.TEXT_GENERATION: {
        **dict.fromkeys(
            ("audioflamingo3", "glmasr", "granite_speech", "granite_speech_plus", "musicflamingo", "nemo_speechlm",
             "qwen2_audio", "qwen3_asr", "vibevoice_asr", "voxtral", "voxtral_realtime"),
            "its network does not make texts from texts",
        ),
        **dict.fromkeys(("musicgen", "musicgen_melody"), "it answers something other than texts"),
        **dict.fromkeys(("emu3", "mllama"), _IN_IMAGES),
        "xmod": "it needs a language beside the text, which prompts do not name",
        "gemma3n": "its vision tower needs timm",
        "whisper": "`speech-recognition` serves it",
    },
}  # fmt: skip
#: Reasons by words of the error of a trial.
_OF_ERRORS = (
    (r"requires the (\w+) library", r"it needs the package \1, with which no test has run"),
    (r"answers the same to everything", "a tiny network of it answers the same to everything, which shows nothing"),
    (r"not finite", "a tiny network of it makes numbers that are not finite"),
)


def reason_of(task: Task, kind: str, error: str) -> str:
    """Return the reason of a type, from the error of its trial where no words were written for it."""
    if kind in _OF_TYPES.get(task, {}):
        return _OF_TYPES[task][kind]
    for pattern, words in _OF_ERRORS:
        found = re.search(pattern, error)
        if found:
            return found.expand(words)
    return _NO_TINY
