"""The audio classification processor: a recording in, the most likely classes of what is heard in it out.

As speech recognition does, it decodes a recording twice: once for its length, and again window by window.
"""

from __future__ import annotations

import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from penstock.errors import ConfigError, MediaUnreadable
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import check_options
from penstock.processors.outputs import OUTPUTS
from penstock.processors.speech.hearing import Hearing, read_hearing
from penstock.processors.speech.passages import joined
from penstock.processors.speech.recording import read_sound
from penstock.processors.speech.request import AudioClassificationRequest
from penstock.processors.vision.classes import read_classes

#: The network's input: float32 (samples,) or (frames, bands).
INPUT_NAME = "sound"
#: What networks hear at once that take any length, and the most that an option may say.
_WINDOW_S, _LONGEST_S = 30, 600
#: Networks make a step of so much, and nothing of less.
_LEAST_S = 0.025


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    top_k: int
    #: Of each window.
    lengths_s: tuple[float, ...]


class AudioClassification:
    """Names the classes of a recording, window by window where it is long; of all of it by the windows' mean scores.

    Scores are as those of `ImageClassification`.
    """

    request = AudioClassificationRequest
    outputs = (OUTPUTS.spec("labels", "the result: classes and scores of the recording and its windows", kind="json"),)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "window_s")
        self._hearing = read_hearing(model)
        self._classes = read_classes(model)
        self._window = _window(model, self._hearing)

    def pre_process(self, request: AudioClassificationRequest, media: Media) -> Prepared[Context]:
        """Return one prompt per window."""
        path, rate_hz = media.path(request.audio), self._hearing.rate_hz
        samples = sum(map(len, read_sound(path, self._model.limits, rate_hz)))
        if samples < _LEAST_S * rate_hz:
            raise MediaUnreadable(f"The recording is shorter than {_LEAST_S} seconds: nothing can be heard in it.")
        lengths = even_windows(samples, self._window)
        context = Context(request.top_k, tuple(length / rate_hz for length in lengths))
        return Prepared(self._prompts(path, lengths), len(lengths), samples, context, unit="windows")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:  # noqa: ARG002
        """Return `{"duration", "labels": [{"id", "label", "score"}], "windows": [{"start", "end", "labels"}]}`."""
        ends = np.cumsum(context.lengths_s)
        scores = [self._classes.scores(output) for output in final_outputs(outputs)]
        windows = [
            {
                "start": round(float(end) - length, 3),
                "end": round(float(end), 3),
                "labels": self._classes.best(found, context.top_k),
            }
            for end, length, found in zip(ends, context.lengths_s, scores, strict=True)
        ]
        labels = self._classes.best(np.mean(scores, axis=0), context.top_k)
        return Result(data={"duration": round(float(ends[-1]), 3), "labels": labels, "windows": windows})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a window of noise."""
        rate_hz = self._hearing.rate_hz
        samples = min(self._window, int((limits.max_seconds or _LONGEST_S) * rate_hz))
        path = folder / "dummy.wav"
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, rate_hz, samples, "NONE", ""))
            file.writeframes(np.random.default_rng(0).integers(-3000, 3000, samples, dtype="<i2").tobytes())
        return Dummy({"audio": "media://dummy"}, {"media://dummy": path})

    def _prompts(self, path: Path, lengths: Sequence[int]) -> Iterator[Prompt]:
        for samples in joined(read_sound(path, self._model.limits, self._hearing.rate_hz), lengths):
            yield Prompt({INPUT_NAME: self._hearing(samples)}, len(samples))


def even_windows(samples: int, most: int) -> list[int]:
    """Return how many samples each window has: `most` at most, and all but the same."""
    count = -(-samples // most)
    return [end - begin for begin, end in pairwise(samples * number // count for number in range(count + 1))]


def _window(model: Model, hearing: Hearing) -> int:
    """Return how many samples are heard at once."""
    longest = _LONGEST_S if hearing.most_samples is None else hearing.most_samples / hearing.rate_hz
    given = model.options.get("window_s", min(_WINDOW_S, longest) if hearing.most_samples is None else longest)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0.1 <= given <= longest:
        raise ConfigError(f"model {model.name!r}: options.window_s is a number of seconds from 0.1 to {longest:g}")
    return round(given * hearing.rate_hz)
