"""Times from Whisper's timestamp tokens: the segments of a window, and the begin of the next window. Pure.

The rules are those of the long-form transcription of https://cdn.openai.com/papers/whisper.pdf, section 3.8, as
`WhisperForConditionalGeneration.generate` of transformers applies them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Seconds of a step of the timestamp tokens, and of a frame of the features.
TOKEN_S, FRAME_S = 0.02, 0.01
FRAMES_PER_TOKEN = 2


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of text that are spoken between two times in seconds."""

    start_s: float
    end_s: float
    tokens: tuple[int, ...]
    #: Begin and end of each token in seconds; empty unless the prompt asks for times of words.
    spans: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class AudioWindow:
    """A window of features: its first frame, and the number of its frames with audio."""

    begin: int
    frames: int
    #: Token of the window's beginning; higher tokens are later times.
    first_timestamp: int

    def ended(self, tokens: Sequence[int]) -> list[Segment]:
        """Return the finished segments, each ended by two timestamps in a row."""
        return list(self._segments(tokens, self._cuts(tokens)))

    def segments(self, tokens: Sequence[int], steps: Sequence[int] = ()) -> tuple[list[Segment], int]:
        """Return all segments of the window's tokens, and the distance to the next window in frames.

        With `steps`, the step of the timestamps at which each token ends, segments have `spans`.
        """
        cuts, times = self._cuts(tokens), [self._is_time(token) for token in tokens]
        ends_once = times[-2:] == [False, True]
        if cuts and not ends_once:
            # The next window repeats the unfinished segment.
            return list(self._segments(tokens, cuts, steps)), self._steps(tokens[cuts[-1] - 1]) * FRAMES_PER_TOKEN
        if cuts:
            return list(self._segments(tokens, [*cuts, len(tokens)], steps)), self.frames
        last = next((token for token in reversed(tokens) if self._is_time(token)), self.first_timestamp)
        end = self._s(self._steps(last) or self.frames // FRAMES_PER_TOKEN)
        spans = self._spans(tokens, range(len(tokens)), steps)
        return [Segment(self._s(0), end, self._spoken(tokens), spans)], self.frames

    def _cuts(self, tokens: Sequence[int]) -> list[int]:
        """Return the indices of tokens that begin a segment after another one."""
        pairs = enumerate(pairwise(tokens), start=1)
        return [at for at, (one, other) in pairs if self._is_time(one) and self._is_time(other)]

    def _segments(self, tokens: Sequence[int], cuts: Sequence[int], steps: Sequence[int] = ()) -> Iterator[Segment]:
        for begin, end in pairwise([0, *cuts]):
            part, spans = tokens[begin:end], self._spans(tokens, range(begin, end), steps)
            yield Segment(self._s(self._steps(part[0])), self._s(self._steps(part[-1])), self._spoken(part), spans)

    def _spans(self, tokens: Sequence[int], places: range, steps: Sequence[int]) -> tuple[tuple[float, float], ...]:
        """Return the times of the text tokens at these places: each token begins at the end of the one before."""
        if not steps:
            return ()
        spoken = [place for place in places if not self._is_time(tokens[place])]
        return tuple((self._s(steps[place - 1] if place else 0), self._s(steps[place])) for place in spoken)

    def _is_time(self, token: int) -> bool:
        return token >= self.first_timestamp

    def _steps(self, token: int) -> int:
        return token - self.first_timestamp

    def _s(self, steps: int) -> float:
        return round(self.begin * FRAME_S + steps * TOKEN_S, 2)

    def _spoken(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(token for token in tokens if not self._is_time(token))
