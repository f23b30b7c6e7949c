"""The audio classification processor: a recording in, its most likely classes out.

A recording is decoded twice, as in speech recognition: once for its length, and again window by window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from penstock.errors import ConfigError, MediaUnreadable
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import check_options
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS
from penstock.processors.speech.feature_extractors import FeatureExtractor, read_feature_extractor
from penstock.processors.speech.passages import joined
from penstock.processors.speech.recording import read_audio, sound_begin_s, write_dummy
from penstock.processors.speech.request import AudioClassificationRequest
from penstock.processors.vision.classes import OUTPUT_NAME, read_classes
from penstock.views import View

#: The network's input: float32 (samples,) or (frames, bands).
INPUT_NAME = "sound"
#: Seconds of a window for networks that accept any length, and the most that the option `window_s` may set.
_WINDOW_S, _LONGEST_S = 30, 600
#: Seconds of the shortest recording: one step of a network.
_LEAST_S = 0.025


@dataclass(frozen=True, slots=True)
class AudioClassificationContext:
    """The state that `post_process` needs from `pre_process`."""

    top_k: int
    #: Seconds from the beginning of the file to the first window.
    begin_s: float
    #: Seconds of each window.
    lengths_s: tuple[float, ...]


class AudioClassification:
    """Classifies a recording window by window, and the whole by the mean of the windows' scores.

    Scores are made as in `ImageClassification`.
    """

    request = AudioClassificationRequest
    outputs = (OUTPUTS.spec("labels", "the result: classes and scores of the recording and its windows", kind="json"),)
    views = (View("labels", "/labels"), View("labels", "/windows/*/labels", "window"))
    io_signatures = (
        IOSignature(
            prompt={INPUT_NAME: "float32 (samples) or float32 (frames, bands)"},
            output={OUTPUT_NAME: "array (classes)"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "window_s")
        self._extractor = read_feature_extractor(model)
        self._classes = read_classes(model)
        self._window = _window(model, self._extractor)

    def pre_process(self, request: AudioClassificationRequest, media: Media) -> Prepared[AudioClassificationContext]:
        """Return one prompt per window."""
        path, rate_hz = media.path(request.audio), self._extractor.rate_hz
        samples = sum(map(len, read_audio(path, self._model.limits, rate_hz)))
        if samples < _LEAST_S * rate_hz:
            raise MediaUnreadable(f"The recording is shorter than {_LEAST_S} seconds, one step of a network.")
        lengths = even_windows(samples, self._window)
        context = AudioClassificationContext(
            request.top_k, sound_begin_s(path), tuple(length / rate_hz for length in lengths)
        )
        return Prepared(self._prompts(path, lengths), len(lengths), samples, context, unit="windows")

    def post_process(
        self,
        outputs: Iterator[Output],
        context: AudioClassificationContext,
        sink: ArtifactSink,  # noqa: ARG002
    ) -> Result:
        """Return `{"duration", "labels": [{"id", "label", "score"}], "windows": [{"start", "end", "labels"}]}`.

        Times are in seconds from the beginning of the file, and `duration` is the time of the end of its sound.
        """
        ends = context.begin_s + np.cumsum(context.lengths_s)
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
        rate_hz = self._extractor.rate_hz
        samples = min(self._window, int((limits.max_seconds or _LONGEST_S) * rate_hz))
        return Dummy({"audio": "media://dummy"}, {"media://dummy": write_dummy(folder, rate_hz, samples)})

    def _prompts(self, path: Path, lengths: Sequence[int]) -> Iterator[Prompt]:
        for samples in joined(read_audio(path, self._model.limits, self._extractor.rate_hz), lengths):
            yield Prompt({INPUT_NAME: self._extractor(samples)}, len(samples))


def even_windows(samples: int, most: int) -> list[int]:
    """Return the samples of each window: at most `most`, in windows of nearly equal length."""
    count = -(-samples // most)
    return [end - begin for begin, end in pairwise(samples * number // count for number in range(count + 1))]


def _window(model: Model, extractor: FeatureExtractor) -> int:
    """Return the samples of the longest window."""
    longest = _LONGEST_S if extractor.max_samples is None else extractor.max_samples / extractor.rate_hz
    given = model.options.get("window_s", min(_WINDOW_S, longest) if extractor.max_samples is None else longest)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0.1 <= given <= longest:
        raise ConfigError(f"model {model.name!r}: options.window_s must be a number of seconds from 0.1 to {longest:g}")
    return round(given * extractor.rate_hz)
