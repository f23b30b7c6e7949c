"""The speech recognition processor: a recording in, its transcript out, streamed while it is written.

A recording is decoded twice: once to cut it into passages at pauses, and again passage by passage as the engine needs
them. So the number of passages is known before the first word, and only a few passages are in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options
from penstock.processors.io_signature import IOSignature
from penstock.processors.language.tokens import read_vocabulary
from penstock.processors.outputs import OUTPUTS, Kind
from penstock.processors.outputs import write_text as write
from penstock.processors.speech.log_mel import LogMel, read_log_mel
from penstock.processors.speech.passages import Loudness, joined
from penstock.processors.speech.recording import read_audio, sound_begin_s, write_dummy
from penstock.processors.speech.request import SpeechRequest
from penstock.processors.speech.subtitles import srt, vtt
from penstock.processors.speech.words import words_of
from penstock.views import View

#: The network's input: float32 (bands, frames), and the frames of audio without padding; and its outputs.
INPUT_NAME, FRAMES_NAME = "features", "frames"
SEGMENTS_NAME, LANGUAGE_NAME, WORDS_NAME = "segments", "language", "words"
#: The most seconds of the option `passage_s`, which may exceed the network's window.
_LONGEST_S = 600

_KINDS = OUTPUTS.register("srt", Kind("application/x-subrip", ".srt", write)).register(
    "vtt", Kind("text/vtt; charset=utf-8", ".vtt", write)
)


@dataclass(frozen=True, slots=True)
class SpeechRecognitionContext:
    """The state that `post_process` needs from `pre_process`."""

    outputs: tuple[str, ...]
    #: Seconds from the beginning of the file to the first passage.
    begin_s: float
    #: Seconds of each passage.
    lengths_s: tuple[float, ...]
    #: True where the result has the times of words.
    words: bool


class SpeechRecognition:
    """Transcribes a recording into segments with times."""

    request = SpeechRequest
    outputs = (
        _KINDS.spec("json", "the result: the text, its segments with their times, and the language", kind="json"),
        _KINDS.spec("srt", "transcript.srt: subtitles as SubRip", kind="srt", default=False),
        _KINDS.spec("vtt", "transcript.vtt: subtitles as WebVTT", kind="vtt", default=False),
    )
    views = (View("passages", "/segments"),)
    io_signatures = (
        IOSignature(
            prompt={
                INPUT_NAME: "float32 (bands, frames)",
                **dict.fromkeys((FRAMES_NAME, WORDS_NAME, "temperature", "seed"), "number"),
                **dict.fromkeys((LANGUAGE_NAME, "task"), "text"),
            },
            output={SEGMENTS_NAME: "list", LANGUAGE_NAME: "text"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "passage_s")
        self._features = read_log_mel(model)
        self._vocabulary = read_vocabulary(model, truncate=False)
        self._passage_s = _passage_s(model, self._features)

    def pre_process(self, request: SpeechRequest, media: Media) -> Prepared[SpeechRecognitionContext]:
        """Return one prompt per passage."""
        path, features = media.path(request.audio), self._features
        loudness = Loudness(features.rate_hz)
        for block in read_audio(path, self._model.limits, features.rate_hz):
            loudness.add(block)
        lengths = loudness.passages(self._passage_s)
        least = features.frames(features.chunk_s * features.rate_hz)
        cost = sum(max(least, features.frames(length)) for length in lengths)
        seconds = tuple(length / features.rate_hz for length in lengths)
        context = SpeechRecognitionContext(request.outputs, sound_begin_s(path), seconds, request.timestamps == "word")
        return Prepared(self._prompts(path, lengths, request), len(lengths), cost, context, unit="passages")

    def post_process(self, outputs: Iterator[Output], context: SpeechRecognitionContext, sink: ArtifactSink) -> Result:
        """Return the text, and `{"language", "duration", "segments": [{"id", "start", "end", "text"}]}` as data.

        With word timestamps also `"words": [{"start", "end", "text"}]`. Times are in seconds from the beginning of the
        file, and `duration` is the time of the end of its sound.
        """
        transcript = _Transcript(self._decode, sink)
        spoken: dict[str, float] = defaultdict(float)
        at, lengths = context.begin_s, iter(context.lengths_s)
        length = next(lengths)
        for output in outputs:
            language = str(output.data[LANGUAGE_NAME] or "en")
            transcript.grow(output.data[SEGMENTS_NAME], at, length, language)
            if not output.partial:
                spoken[language] += length
                transcript.turn()
                at, length = at + length, next(lengths, 0.0)
        for name, made in (("srt", srt), ("vtt", vtt)):
            if name in context.outputs:
                _KINDS.put(sink, "transcript", made(transcript.segments), kind=name)
        language = max(spoken, key=lambda code: spoken[code])
        duration = round(context.begin_s + sum(context.lengths_s), 3)
        data = {"language": language, "duration": duration, "segments": transcript.segments}
        if context.words:
            data["words"] = transcript.words
        return Result(text=transcript.text, data=data)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a passage of noise."""
        rate_hz = self._features.rate_hz
        samples = int(min(self._features.chunk_s, limits.max_seconds or self._features.chunk_s) * rate_hz)
        return Dummy({"audio": "media://dummy"}, {"media://dummy": write_dummy(folder, rate_hz, samples)})

    def _prompts(self, path: Path, lengths: Sequence[int], request: SpeechRequest) -> Iterator[Prompt]:
        asked = {
            LANGUAGE_NAME: request.language,
            WORDS_NAME: request.timestamps == "word",
            "task": request.task,
            "temperature": request.temperature,
            "seed": request.seed,
        }
        blocks = read_audio(path, self._model.limits, self._features.rate_hz)
        for samples in joined(blocks, lengths):
            features = self._features(samples)
            count = features.shape[1]
            yield Prompt(
                {INPUT_NAME: features, FRAMES_NAME: min(count, self._features.frames(len(samples))), **asked}, count
            )

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._vocabulary.decode(tokens)


class _Transcript:
    """The segments of a recording so far. A passage's output repeats its earlier segments until the passage is over."""

    def __init__(self, decode: Any, sink: ArtifactSink) -> None:
        self._decode, self._sink = decode, sink
        self._count = 0
        self.segments: list[dict[str, Any]] = []
        self.words: list[dict[str, Any]] = []
        self.text = ""

    def grow(self, found: Sequence[Sequence[Any]], at: float, length: float, language: str) -> None:
        """Add the new segments of the passage that begins at `at` seconds."""
        for start, end, tokens, *spans in found[self._count :]:
            text = self._decode(tokens)
            added = text if self.text else text.lstrip()
            if added:
                self.text += added
                self._sink.say(added)
            if text.strip():
                # Networks may transcribe the silence that pads their window.
                times = _times(start, end, at, length)
                self.segments.append({"id": len(self.segments), **times, "text": text.strip()})
            for of_tokens in spans:
                self._time_words(tokens, of_tokens, language, at, length)
        self._count = len(found)

    def _time_words(
        self, tokens: Sequence[int], spans: Sequence[Sequence[float]], language: str, at: float, length: float
    ) -> None:
        spoken = [(token, span) for token, span in zip(tokens, spans, strict=True) if self._decode([token])]
        for text, places in words_of([token for token, _ in spoken], self._decode, language):
            if text.strip():
                start, end = spoken[places[0]][1][0], spoken[places[-1]][1][1]
                self.words.append({**_times(start, end, at, length), "text": text.strip()})

    def turn(self) -> None:
        """Go on to the next passage."""
        self._count = 0


def _times(start: float, end: float, at: float, length: float) -> dict[str, float]:
    return {"start": round(at + min(start, length), 3), "end": round(at + min(end, length), 3)}


def _passage_s(model: Model, features: LogMel) -> float:
    given = model.options.get("passage_s", features.chunk_s)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 1 <= given <= _LONGEST_S:
        raise ConfigError(f"model {model.name!r}: options.passage_s must be a number of seconds from 1 to {_LONGEST_S}")
    return float(given)
