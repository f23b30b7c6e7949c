"""Speech to text with Whisper, token by token, in windows of 30 s.

The encoder runs once per window; then each step adds one token to every recording of the batch, as in `generation`.
If a window's tokens end before its audio, the next window begins at that time. This is the library's long-form
transcription, with the library's own rules for tokens. The library's `generate` runs the encoder twice to find the
language, and warps time in Python: 1.18 times the processor time, 1.5 with times of words (docs/decisions/0121).
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import InvalidInput, Issue, ModelUnavailable, ProcessorFailed
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Done, Runner, Step
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, weights_bytes
from penstock.workers.engine.transformers.alignment import Aligner, aligner_of
from penstock.workers.engine.transformers.directory import HubDirectory, library
from penstock.workers.engine.transformers.sampling import Sampling
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
    #: Largest number of tokens of a window, with the beginning.
    most: int

    def code(self, token: int) -> str:
        """Return the code of a language's token."""
        return next(code for code, known in self.languages.items() if known == token)


@dataclass(frozen=True, slots=True)
class EncodedWindow:
    """A window in progress: its encoded audio, and the tokens so far."""

    audio: Tensor
    #: Tokens that the decoder begins with.
    beginning: tuple[int, ...]
    new: tuple[int, ...] = ()
    #: Keys and values of everything but the last new token; None before the first step.
    cache: Any = None


@dataclass(frozen=True, slots=True)
class SpeechState:
    """The state of a recording. Steps make new states and leave this one valid."""

    features: Sent
    #: Number of the features' frames with audio; the rest is padding.
    frames: int
    task: str
    sampling: Sampling
    #: True: the prompt asks for times of words.
    words: bool = False
    #: Token of the language; None until the language is detected.
    language: int | None = None
    #: Frame where the window begins; earlier frames are in `segments`.
    seek: int = 0
    window: EncodedWindow | None = None
    segments: tuple[Segment, ...] = ()
    #: Number of tokens chosen in all windows.
    drawn: int = 0


@dataclass(frozen=True)
class SpeechRunner(NetworkRunner):
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
    #: The library's logits processors.
    rules: Sequence[Any] = field(repr=False)
    #: None for a network without `alignment_heads`.
    aligner: Aligner | None = field(repr=False)

    def bucket(self, prompt: Prompt) -> Hashable:  # noqa: ARG002
        """Return one key for all recordings: they advance together."""
        return "recordings"

    def admit(self, prompt: Prompt) -> SpeechState:
        """Return the recording on its way to the device."""
        features, frames = self._checked(prompt)
        task, code = prompt.data.get("task", "transcribe"), prompt.data.get("language")
        if task not in TASKS:
            raise InvalidInput(f"`task` is one of {', '.join(TASKS)}")
        words = bool(prompt.data.get("words"))
        if words and self.aligner is None:
            why = "the model can time segments only: its generation_config.json names no `alignment_heads`"
            raise _wrong("timestamps", why)
        sampling = Sampling.of({**prompt.data, "max_new_tokens": self.words.most, "top_p": None})
        return SpeechState(self.device.send(features), frames, task, sampling, words, self._language(code, task))

    def step(self, states: Sequence[SpeechState]) -> Sequence[Step]:
        """Choose one more token for every recording."""
        with self.device.running(grows=True):
            return [self._advance(state) for state in states]

    def _checked(self, prompt: Prompt) -> tuple[np.ndarray[Any, Any], int]:
        features, frames = prompt.data.get("features"), prompt.data.get("frames")
        if not isinstance(features, np.ndarray) or features.dtype != np.float32 or features.ndim != 2:
            raise ProcessorFailed("the network takes `features`, a float32 array (bands, frames)")
        if features.shape[0] != self.bands:
            raise InvalidInput(f"the network takes features of {self.bands} bands, the prompt has {features.shape[0]}")
        if type(frames) is not int or not 0 < frames <= features.shape[1]:
            raise ProcessorFailed(f"`frames` is the number of frames with audio, from 1 to {features.shape[1]}")
        return features, frames

    def _language(self, code: object, task: str) -> int | None:
        known = self.words.languages
        if not known:
            if task == "translate":
                raise _wrong("task", "the model knows one language only and translates nothing")
            if code not in (None, "en"):
                raise _wrong("language", f"the model knows English only, not {code!r}")
            return None
        if code is not None and code not in known:
            raise _wrong("language", f"the model does not know the language {code!r}; it knows: {', '.join(known)}")
        return None if code is None else known[str(code)]

    def _advance(self, state: SpeechState) -> Step:
        if state.window is None:
            state = self._listen(state)
        window = state.window
        assert window is not None  # noqa: S101  (`_listen` made it)
        cache = None if window.cache is None else _branch(window.cache)
        scores, cache = self._decode(window.audio, window.new[-1:] or window.beginning, cache)
        token = state.sampling.choose(self._ruled(scores, window.new), state.drawn)
        ends = token == self.words.end
        new = window.new if ends else (*window.new, token)
        state = replace(state, window=replace(window, cache=cache, new=new), drawn=state.drawn + 1)
        if ends or len(window.beginning) + len(new) == self.words.most:
            return self._move_on(state, new, whole=ends)
        return Continue(state, self._news(state, new))

    def _listen(self, state: SpeechState) -> SpeechState:
        """Run the encoder on the next window, and detect the language if it is not known."""
        features = self.device.receive(state.features)[:, state.seek : state.seek + self.window_frames]
        padded = torch.nn.functional.pad(features, (0, self.window_frames - features.shape[1]))
        audio = self.network.model.encoder(padded[None]).last_hidden_state
        words, language = self.words, state.language
        if words.languages and language is None:
            scores, _ = self._decode(audio, [words.start], None)
            tokens = list(words.languages.values())
            language = tokens[int(scores[tokens].argmax())]
        beginning = (words.start,) if language is None else (words.start, language, words.tasks[state.task])
        return replace(state, language=language, window=EncodedWindow(audio, beginning))

    def _move_on(self, state: SpeechState, tokens: Sequence[int], *, whole: bool) -> Step:
        """Go on to the next window, or finish the recording."""
        steps = self._steps(state, tokens, whole=whole) if state.words else ()
        found, frames = self._window(state).segments(tokens, steps)
        segments = (*state.segments, *found)
        # At least one step, so that the recording ends whatever the tokens are.
        seek = state.seek + max(frames, FRAMES_PER_TOKEN)
        if seek >= state.frames:
            return Done(self._output(segments, state))
        moved = replace(state, seek=seek, window=None, segments=segments)
        return Continue(moved, replace(self._output(segments, state), partial=True))

    def _steps(self, state: SpeechState, tokens: Sequence[int], *, whole: bool) -> Sequence[int]:
        """Return the step at which each token of a window ends.

        Without an end token (`whole` is false) the last token was never fed to the decoder: it gets the time of the
        token before.
        """
        window, fed = state.window, list(tokens if whole else tokens[:-1])
        assert window is not None and self.aligner is not None  # noqa: S101, PT018  (`admit` refused it otherwise)
        if not fed:
            return [0] * len(tokens)
        frames_heard = (state.frames - state.seek) // FRAMES_PER_TOKEN
        steps = self.aligner.steps([*window.beginning, *fed], len(window.beginning), window.audio, frames_heard)
        return steps if whole else [*steps, steps[-1]]

    def _news(self, state: SpeechState, tokens: Sequence[int]) -> Output | None:
        """Return a partial output if a segment of the window has just ended."""
        if state.words or len(tokens) < 2 or min(tokens[-2:]) < self.words.first_timestamp:
            return None
        segments = (*state.segments, *self._window(state).ended(tokens))
        return replace(self._output(segments, state), partial=True)

    def _window(self, state: SpeechState) -> AudioWindow:
        frames_heard = min(self.window_frames, self.device.receive(state.features).shape[1] - state.seek)
        return AudioWindow(state.seek, frames_heard, self.words.first_timestamp)

    def _output(self, segments: Sequence[Segment], state: SpeechState) -> Output:
        rows = [[segment.start_s, segment.end_s, list(segment.tokens)] for segment in segments]
        if state.words:
            spans = [[list(span) for span in segment.spans] for segment in segments]
            rows = [[*row, of_row] for row, of_row in zip(rows, spans, strict=True)]
        language = None if state.language is None else self.words.code(state.language)
        return Output({"segments": rows, "language": language})

    def _decode(self, audio: Tensor, tokens: Sequence[int], cache: Any) -> tuple[Tensor, Any]:
        """Return the logits after these tokens, float32 (vocabulary,), and the cache with these tokens."""
        ids = torch.tensor([list(tokens)], device=self.device.device)
        cached = {cache_name(): cache, "use_cache": True}
        made = self.network.model.decoder(input_ids=ids, encoder_hidden_states=audio, **cached)
        return self.network.proj_out(made.last_hidden_state[0, -1]).float(), made[cache_name()]

    def _ruled(self, scores: Tensor, new: Sequence[int]) -> Tensor:
        so_far = torch.tensor([list(new)], dtype=torch.long, device=scores.device)
        ruled = scores[None]
        for rule in self.rules:
            ruled = rule(so_far, ruled)
        return ruled[0]


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
        rules=_rules(network.generation_config, device),
        aligner=aligner_of(network),
    )


def _words(network: Any) -> SpecialTokens:
    """Return the tokens of `generation_config.json`; raise `ModelUnavailable` if it has no timestamps."""
    settings, config = network.generation_config, network.config
    silent = getattr(settings, "no_timestamps_token_id", None)
    if silent is None or settings.decoder_start_token_id is None or not isinstance(settings.eos_token_id, int):
        raise ModelUnavailable(
            "generation_config.json lacks the tokens of times: `no_timestamps_token_id`, `decoder_start_token_id` and "
            "`eos_token_id`; take the one of the published model"
        )
    several = getattr(settings, "is_multilingual", True)
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
        most=min(settings.max_length or config.max_target_positions, config.max_target_positions),
    )


def _rules(config: Any, device: TorchDevice) -> Sequence[Any]:
    """Return the library's logits processors, which get the new tokens alone."""
    from transformers.generation import logits_process as processes

    rules: list[Any] = []
    if config.begin_suppress_tokens:
        never_first = processes.SuppressTokensAtBeginLogitsProcessor
        rules.append(never_first(config.begin_suppress_tokens, 0, device=str(device.device)))
    if config.suppress_tokens:
        rules.append(processes.SuppressTokensLogitsProcessor(config.suppress_tokens, device=str(device.device)))
    return [*rules, processes.WhisperTimeStampLogitsProcessor(config, begin_index=0)]


@functools.cache
def cache_name() -> str:
    """Return the name of the networks' argument for a key-value cache, which changed in transformers 5.24."""
    known = inspect.signature(library().GenerationMixin.prepare_inputs_for_generation).parameters
    return "cache" if "cache" in known else "past_key_values"


def _branch(cache: Any) -> Any:
    """Return a copy of a cache that can grow alone: layers replace their tensors and never write into them."""

    def branch(half: Any) -> Any:
        grown = copy.copy(half)
        grown.layers = [copy.copy(layer) for layer in half.layers]
        return grown

    parts = (branch(cache.self_attention_cache), branch(cache.cross_attention_cache))
    grown = library().EncoderDecoderCache(*parts)
    grown.is_updated = dict(cache.is_updated)
    return grown


def _wrong(name: str, why: str) -> InvalidInput:
    return InvalidInput(why, errors=[Issue(f"/input/{name}", why)])
