"""A processor that logs, prints and warns, for tests of the lines of a job."""

from __future__ import annotations

import ctypes
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from pydantic import BaseModel, ConfigDict

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result


class TalkingRequest(BaseModel):
    """The word that every line has, the number of prints, and the end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    word: str
    prints: int = 1
    #: `crash`: the process ends; `fail`: an exception; `silent`: a result, and no line; `unended`: a result, after a
    #: print without the end of its line; None: a result.
    then: str | None = None


class Talker:
    """Says the word in each half and in its prompt."""

    request = TalkingRequest
    outputs = ()

    def __init__(self, model: Model) -> None:
        """Take no options."""

    def pre_process(self, request: TalkingRequest, media: Media) -> Prepared[TalkingRequest]:  # noqa: ARG002
        if request.then == "silent":
            return Prepared(iter([Prompt({"x": np.zeros(1, np.float32)})]), 1, 1, request)
        structlog.get_logger().warning("talker.began", word=request.word, password="hunter2")
        for number in range(request.prints):
            print(f"print {number} {request.word}")  # noqa: T201
        logging.getLogger("talker").info("%s has https://h/x?X-Amz-Signature=abc", request.word)
        if request.then == "crash":
            sys.stdout.write(f"last words of {request.word}\n")
            ctypes.string_at(0)
        if request.then == "fail":
            raise ValueError(f"cannot bear {request.word}")
        return Prepared(self._prompts(request), 1, 1, request)

    def _prompts(self, request: TalkingRequest) -> Iterator[Prompt]:
        print(f"prompt {request.word}", file=sys.stderr)  # noqa: T201
        yield Prompt({"x": np.zeros(1, np.float32)})

    def post_process(self, outputs: Iterator[Output], context: TalkingRequest, sink: ArtifactSink) -> Result:  # noqa: ARG002
        list(outputs)
        if context.then == "silent":
            return Result(text=context.word)
        if context.then == "unended":
            sys.stdout.write(f"unended {context.word}")
        warnings.warn(f"result {context.word}", stacklevel=1)
        return Result(text=context.word)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a request."""
        return Dummy({"word": "dummy"})


def texts(found: Any) -> list[str]:
    """Return the texts of a job's lines."""
    return [line.text for line in found.lines]
