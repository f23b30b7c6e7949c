"""Ends of inputs: the words of the table, and the comparison of a job or an answer with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from penstock.client import Job
from tests.corpus.texts import SPECIAL

#: Texts that no sentence to a caller may contain: paths, traces, addresses of objects, names of libraries' insides.
LEAKS = re.compile(
    r"/(tmp|home|work|usr|var|spool|proc|etc)/|penstock-data|(?i:\bspool\b)|site-packages|Traceback|\.py\b|line \d+, in"
    r"|0x[0-9a-fA-F]{6}|object at|\bNone\b|[a-z]Error\b|Exception|Errno|rasterio|\bPIL\b|Pillow|Plugin|TIFF[A-Z]\w+"
    r"|opj_|recursion|sys\.|unpack|\bb'|\bmedia\.\w+"
)
#: Control characters, and those that change the direction of a text.
UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Answer:
    """The API's answer to a submission: a status and a problem, or a job that ended."""

    status: int
    problem: Mapping[str, Any] | None = None
    job: Job | None = None


class Outcome(Protocol):
    """The outcome of an input according to the table."""

    def check(self, answer: Answer) -> None:
        """Fail unless it is so."""
        ...


@dataclass(frozen=True)
class Refused:
    """A 4xx before there is a job."""

    status: int
    code: str
    sentence: str

    def check(self, answer: Answer) -> None:
        assert answer.job is None, "a job was made"
        problem = answer.problem or {}
        told = json.dumps([problem.get("detail"), problem.get("errors")], ensure_ascii=False)
        assert (answer.status, problem.get("code")) == (self.status, self.code), told
        assert self.sentence in told
        assert problem["retryable"] is False
        check_sentence(problem["detail"])


@dataclass(frozen=True)
class Failed:
    """A job that fails at once, for good, with a reason."""

    code: str
    sentence: str

    def check(self, answer: Answer) -> None:
        job = ended(answer)
        assert job.error is not None, "it succeeded"
        assert (job.error.code, job.error.retryable) == (self.code, False), job.error.detail
        assert self.sentence in job.error.detail
        check_sentence(job.error.detail)


@dataclass(frozen=True)
class Right:
    """A job that succeeds. Its kinds say with what."""

    def check(self, answer: Answer) -> None:
        job = ended(answer)
        assert job.succeeded, job.error
        self.check_data(job.data or {})

    def check_data(self, data: Mapping[str, Any]) -> None:
        """Fail unless the result is the right one."""


@dataclass(frozen=True)
class Scene(Right):
    """A scene of this size with so many pixels that hold data, as many as it has unless it is said."""

    width: int
    height: int
    valid: int = -1

    def check_data(self, data: Mapping[str, Any]) -> None:
        assert (data["scene"]["width"], data["scene"]["height"]) == (self.width, self.height)
        assert data["valid_pixels"] == (self.width * self.height if self.valid < 0 else self.valid)


Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Picture(Right):
    """A picture whose quarters have these mean colours, from 0 to 255: at the top, then at the bottom."""

    quarters: tuple[Colour, Colour, Colour, Colour]

    def check_data(self, data: Mapping[str, Any]) -> None:
        [numbers] = data["embeddings"]
        seen = [tuple(round(255 * numbers[4 * colour + at]) for colour in range(3)) for at in range(4)]
        # Quarters run into each other a little where the picture is made small.
        assert seen == [pytest.approx(colour, abs=30) for colour in self.quarters]


@dataclass(frozen=True)
class Letters(Right):
    """A text of so many tokens with the two around it, of which those two alone are special."""

    tokens: int
    truncated: bool = False

    def check_data(self, data: Mapping[str, Any]) -> None:
        [counts] = data["embeddings"]
        assert counts[256:] == [1, 1, *[0] * (len(SPECIAL) - 2)], "a special token was typed"
        assert (data["usage"]["prompt_tokens"], sum(counts)) == (self.tokens, self.tokens)
        assert data["truncated"] == [0] * self.truncated


@dataclass(frozen=True)
class Heard(Right):
    """A recording of so many seconds."""

    seconds: float

    def check_data(self, data: Mapping[str, Any]) -> None:
        assert data["duration"] == pytest.approx(self.seconds, abs=0.01)


@dataclass(frozen=True)
class OneOf:
    """The outcomes of a damaged file: nobody works out by hand what a flipped bit means to a decoder."""

    codes: tuple[str, ...]

    def check(self, answer: Answer) -> None:
        job = ended(answer)
        if job.error is not None:
            assert (job.error.code in self.codes, job.error.retryable) == (True, False), job.error
            check_sentence(job.error.detail)


def ended(answer: Answer) -> Job:
    """Return the job of an answer, which ended at its first attempt."""
    assert answer.job is not None, f"refused: {answer.problem}"
    assert answer.job.raw["attempt"] == 1, "it was tried again"
    return answer.job


def check_sentence(told: str) -> None:
    """Fail if a sentence tells what callers should not read, or is none."""
    assert not LEAKS.search(told), told
    assert not UNREADABLE.search(told), repr(told)
    assert 8 < len(told) < 1000, told
