"""Reasons why a tiny network of a type did not answer as the library's, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.workers.engine.transformers.tasks import Task

NO_TINY = "nobody has made a tiny network of it"
_IN_IMAGES = "its text decoder alone has another `model_type`; `image-text-to-text` serves the whole"
_LANGUAGE = "it needs a language beside the text, which prompts do not name"
_COLOURS = "it reads numbers of colours, and no pixels"
_PATCHES = "it reads patches that only its own processor makes"
_MORE = "it reads more than the tokens of a text: boxes, tables, entities or characters"
#: Reasons by task and type.
_OF_TYPES: Mapping[Task, Mapping[str, str]] = {
    Task.IMAGE_CLASSIFICATION: {
        "imagegpt": _COLOURS, "siglip2": _PATCHES, "shieldgemma2": "it reads a text beside the image",
    },
    Task.IMAGE_EMBEDDING: {
        **dict.fromkeys(
            ("conditional_detr", "dab-detr", "deformable_detr", "detr", "table-transformer"),
            "its vectors are those of objects, and not of the image",
        ),
        **dict.fromkeys(("llama4", "mllama"), "it reads a text beside the image"),
        **dict.fromkeys(("timesformer", "videomae", "videoprism_vision_model", "vivit"), "it reads videos"),
        "depth_pro": "its smallest image has 1536 x 1536 px, too many for a test",
        "imagegpt": _COLOURS,
        "siglip2": _PATCHES + "; `text-image-embedding` serves it",
        "vit_mae": "it hides patches by chance",
    },
    Task.AUDIO_CLASSIFICATION: dict.fromkeys(("wav2vec2-bert", "whisper"), "it reads features of its own"),
    Task.TEXT_CLASSIFICATION: {
        **dict.fromkeys(
            (
                "canine", "layoutlm", "layoutlmv2", "layoutlmv3", "lilt", "luke", "markuplm", "perceiver", "roc_bert",
                "tapas",
            ),
            _MORE,
        ),
        "reformer": "it takes texts of certain lengths only",
        "xmod": _LANGUAGE,
    },
    Task.TEXT_EMBEDDING: {
        **dict.fromkeys(("musicgen", "musicgen_melody", "whisper"), "it makes or reads sounds"),
        "gemma3n": "its vision tower needs timm",
        "xmod": _LANGUAGE,
        "perceiver": "it reads numbers of bytes or pixels of its own form",
    },
    Task.TEXT_GENERATION: {
        **dict.fromkeys(
            ("audioflamingo3", "glmasr", "granite_speech", "granite_speech_plus", "musicflamingo", "nemo_speechlm",
             "qwen2_audio", "qwen3_asr", "vibevoice_asr", "voxtral", "voxtral_realtime"),
            "its network does not make texts from texts",
        ),
        **dict.fromkeys(("musicgen", "musicgen_melody"), "it answers something other than texts"),
        **dict.fromkeys(("emu3", "mllama"), _IN_IMAGES),
        "xmod": _LANGUAGE,
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
    return NO_TINY
