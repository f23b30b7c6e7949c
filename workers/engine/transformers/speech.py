"""Speech to text with Whisper, token by token, in windows of 30 s.

The encoder runs once per window; then each step adds one token to every recording of the batch, by a call of the
library's `generate` for each window (see `stepwise`). If a window's tokens end before its audio, the next window begins
at that time, as in the library's long-form transcription: that would run the encoder twice to find the language, listen
to the silence that pads a recording, and warp time in Python (docs/decisions/0121).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import InvalidInput, Issue, ModelUnavailable, ProcessorFailed
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Runner
from penstock.workers.engine.resumable import Pause, Paused, Resumable
from penstock.workers.engine.torch.device import Sent, TorchDevice, weights_bytes
from penstock.workers.engine.transformers.alignment import Aligner, aligner_of
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.sampling import Sampling
from penstock.workers.engine.transformers.stepwise import Chooser, Held, HeldState, StepwiseRunner
from penstock.workers.engine.transformers.timestamps import FRAMES_PER_TOKEN, AudioWindow, Segment

TASKS = ("transcribe", "translate")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The special tokens of a network, from `generation_config.json`."""

    start: int
    end: int
    first_timestamp: int
    #: Tokens of languages by code, such as "en"; empty for a network of one language.
    languages: Mapping[str, int]
    tasks: Mapping[str, int]

    def code(self, token: int) -> str:
        """Return the code of a language's token."""
        return next(code for code, known in self.languages.items() if known == token)


@dataclass(slots=True)
class Recording(Held):
    """A recording under way, with the call of its window."""

    features: Sent
    #: Number of the features' frames with audio; the rest is padding.
    frames: int
    task: str
    sampling: Sampling
    #: True: the prompt asks for times of words.
    words: bool = False
    #: Code of the language; None until the language is detected.
    language: str | None = None
    #: Frame where the window begins; earlier frames are in `segments`.
    seek: int = 0
    segments: tuple[Segment, ...] = ()
    #: The window's encoded audio; None before its first step.
    audio: Tensor | None = None
    #: The window's tokens so far, and the number of tokens chosen in earlier windows.
    new: list[int] = field(default_factory=list)
    drawn: int = 0


@dataclass(frozen=True, slots=True)
class SpeechRunner(StepwiseRunner[Recording]):
    """A Whisper: prompts have `features`, float32 (bands, frames) of 10 ms, and plain data.

    `frames` is the number of frames with audio; `language` a code, or None for detection; `task` one of `TASKS`;
    `temperature` and `seed` as in `Sampling.of`. Outputs have `segments`, a list of [start, end, token ids] in seconds,
    and `language`, None for networks of one language. Partial outputs have the finished segments. With `words` each
    segment also has a list of [start, end] of its tokens, and partial outputs come window by window.
    """

    words: SpecialTokens
    bands: int
    #: Frames of a window.
    window_frames: int
    #: None for a network without `alignment_heads`.
    aligner: Aligner | None = field(repr=False)

    def bucket(self, prompt: Prompt) -> Hashable:  # noqa: ARG002
        """Return one key for all recordings: they advance together."""
        return "recordings"

    def admit(self, prompt: Prompt) -> HeldState[Recording]:
        """Return the recording on its way to the device."""
        features, frames = self._checked(prompt)
        task, code = prompt.data.get("task", "transcribe"), prompt.data.get("language")
        if task not in TASKS:
            raise InvalidInput(f"`task` is one of {', '.join(TASKS)}")
        words = bool(prompt.data.get("words"))
        if words and self.aligner is None:
            why = "the model can time segments only: its generation_config.json names no `alignment_heads`"
            raise _wrong("timestamps", why)
        sampling = Sampling.of({**prompt.data, "max_new_tokens": 1, "top_p": None})
        self._require_language(code, task)
        return HeldState(Recording(self.device.send(features), frames, task, sampling, words, code))

    def advance(self, held: Recording) -> Output | None:
        """Choose one more token; return the segments if one has just ended."""
        if held.audio is None:
            held.audio = self._listened(held)
        held.generation = held.generation or self._begun(held, held.audio)
        came = held.generation.resume()
        if ended := isinstance(came, Paused) and came.value == self.words.end:
            came = held.generation.resume()
        if isinstance(came, Paused):
            held.new.append(came.value)
            return self._news(held)
        return self._move_on(held, held.audio, ended=ended)

    def _checked(self, prompt: Prompt) -> tuple[np.ndarray[Any, Any], int]:
        features, frames = prompt.data.get("features"), prompt.data.get("frames")
        if not isinstance(features, np.ndarray) or features.dtype != np.float32 or features.ndim != 2:
            raise ProcessorFailed("the network takes `features`, a float32 array (bands, frames)")
        if features.shape[0] != self.bands:
            raise InvalidInput(f"the network takes features of {self.bands} bands, the prompt has {features.shape[0]}")
        if type(frames) is not int or not 0 < frames <= features.shape[1]:
            raise ProcessorFailed(f"`frames` is the number of frames with audio, from 1 to {features.shape[1]}")
        return features, frames

    def _require_language(self, code: object, task: str) -> None:
        known = self.words.languages
        if not known:
            if task == "translate":
                raise _wrong("task", "the model knows one language only and translates nothing")
            if code not in (None, "en"):
                raise _wrong("language", f"the model knows English only, not {code!r}")
        elif code is not None and code not in known:
            raise _wrong("language", f"the model does not know the language {code!r}; it knows: {', '.join(known)}")

    def _listened(self, recording: Recording) -> Tensor:
        """Run the encoder on the next window, and detect the language if it is not known."""
        features = self.device.receive(recording.features)[:, recording.seek : recording.seek + self.window_frames]
        padded = torch.nn.functional.pad(features, (0, self.window_frames - features.shape[1]))
        audio: Tensor = self.network.model.encoder(padded[None]).last_hidden_state
        if self.words.languages and recording.language is None:
            recording.language = self.words.code(int(self.network.detect_language(encoder_outputs=_encoded(audio))))
        return audio

    def _begun(self, recording: Recording, audio: Tensor) -> Resumable:
        """Return a call of `generate` that has chosen the window's tokens so far."""
        # The call's thread must know nothing that knows the call.
        network, device, sampling = self.network, self.device, recording.sampling
        made, drawn = tuple(recording.new), recording.drawn
        asked = {"language": f"<|{recording.language}|>", "task": recording.task} if self.words.languages else {}

        def generate(pause: Pause) -> None:
            with device.running(grows=True):
                network.generate(
                    encoder_outputs=_encoded(audio), return_timestamps=True, force_unique_generate_call=True,
                    num_beams=1, logits_processor=[Chooser(pause, sampling, made, drawn)], **asked,
                )  # fmt: skip

        generation = Resumable(generate)
        self.generations.add(generation)
        return generation

    def _move_on(self, recording: Recording, audio: Tensor, *, ended: bool) -> Output:
        """Go on to the next window, or finish the recording."""
        steps = self._steps(recording, audio, ended=ended) if recording.words else ()
        found, frames = self._window(recording).segments(recording.new, steps)
        recording.close()
        recording.audio, recording.segments = None, (*recording.segments, *found)
        # At least one step, so that the recording ends whatever the tokens are.
        recording.seek += max(frames, FRAMES_PER_TOKEN)
        recording.drawn += len(recording.new) + ended
        recording.new = []
        return self._output(recording.segments, recording, partial=recording.seek < recording.frames)

    def _steps(self, recording: Recording, audio: Tensor, *, ended: bool) -> Sequence[int]:
        """Return the step at which each token of a window ends.

        Without an end token the last token was never fed to the decoder: it gets the time of the token before.
        """
        tokens, words, beginning = recording.new, self.words, [self.words.start]
        fed = tokens if ended else tokens[:-1]
        assert self.aligner is not None  # noqa: S101  (`admit` refused it otherwise)
        if not fed:
            return [0] * len(tokens)
        if words.languages:
            beginning += [words.languages[str(recording.language)], words.tasks[recording.task]]
        frames_heard = (recording.frames - recording.seek) // FRAMES_PER_TOKEN
        steps = self.aligner.steps([*beginning, *fed], len(beginning), audio, frames_heard)
        return steps if ended else [*steps, steps[-1]]

    def _news(self, recording: Recording) -> Output | None:
        """Return a partial output if a segment of the window has just ended."""
        tokens = recording.new
        if recording.words or len(tokens) < 2 or min(tokens[-2:]) < self.words.first_timestamp:
            return None
        segments = (*recording.segments, *self._window(recording).ended(tokens))
        return self._output(segments, recording, partial=True)

    def _window(self, recording: Recording) -> AudioWindow:
        width = self.device.receive(recording.features).shape[1]
        frames_heard = min(self.window_frames, width - recording.seek)
        return AudioWindow(recording.seek, frames_heard, self.words.first_timestamp)

    def _output(self, segments: Sequence[Segment], recording: Recording, *, partial: bool) -> Output:
        rows = [[segment.start_s, segment.end_s, list(segment.tokens)] for segment in segments]
        if recording.words:
            spans = [[list(span) for span in segment.spans] for segment in segments]
            rows = [[*row, of_row] for row, of_row in zip(rows, spans, strict=True)]
        language = recording.language if self.words.languages else None
        return Output({"segments": rows, "language": language}, partial=partial)


def load_transcriber(directory: HubDirectory) -> Runner:
    """Load a Whisper. With `dtype` bfloat16 its weights are bfloat16, for speed."""
    model = directory.model
    device = TorchDevice.of(model)
    network = directory.load(
        "AutoModelForSpeechSeq2Seq", dtype=device.dtype, unused=lambda name: name == "proj_out.weight"
    )
    words = _words(network)
    device.place(network)
    return SpeechRunner(
        network,
        device,
        max_batch=model.max_batch,
        memory_bytes=weights_bytes(network),
        words=words,
        bands=network.config.num_mel_bins,
        window_frames=FRAMES_PER_TOKEN * network.config.max_source_positions,
        aligner=aligner_of(network),
    )


def _words(network: Any) -> SpecialTokens:
    """Return the tokens of `generation_config.json`; raise `ModelUnavailable` if it has no timestamps."""
    settings = network.generation_config
    silent = getattr(settings, "no_timestamps_token_id", None)
    if silent is None or settings.decoder_start_token_id is None or not isinstance(settings.eos_token_id, int):
        raise ModelUnavailable(
            "generation_config.json lacks the tokens of times: `no_timestamps_token_id`, `decoder_start_token_id` and "
            "`eos_token_id`; take the one of the published model"
        )
    several = getattr(settings, "is_multilingual", True)
    if not several:  # `generate` would look for a language
        vars(settings).pop("lang_to_id", None)
    languages = getattr(settings, "lang_to_id", None) or {}
    tasks = getattr(settings, "task_to_id", None) or {}
    if several and languages and set(tasks) < set(TASKS):
        raise ModelUnavailable("generation_config.json has languages and no `task_to_id`")
    return SpecialTokens(
        start=settings.decoder_start_token_id,
        end=settings.eos_token_id,
        first_timestamp=silent + 1,
        languages={name.strip("<|>"): token for name, token in languages.items()} if several else {},
        tasks=tasks,
    )


def _encoded(audio: Tensor) -> Any:
    """Return encoded audio as the library takes it."""
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=audio)


def _wrong(name: str, why: str) -> InvalidInput:
    return InvalidInput(why, errors=[Issue(f"/input/{name}", why)])
