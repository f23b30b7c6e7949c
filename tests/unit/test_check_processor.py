from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from penstock.models import MediaReference
from penstock.processors.base import ArtifactSink, Media, Output, OutputSpec, Prepared, Prompt, Result
from penstock.processors.testing import ConformanceError, Finished, check_processor


class Request(BaseModel):
    numbers: MediaReference
    factor: float = 1


class Sum:
    """Adds up the numbers of a file, one prompt per line."""

    request = Request
    outputs = (OutputSpec("total", "text/plain", "The sum of the numbers."),)

    def pre_process(self, request: Request, media: Media) -> Prepared[dict[str, Any]]:
        lines = media.path(request.numbers).read_text().split()
        return Prepared(self.prompts(lines), len(lines), len(lines), {"factor": request.factor})

    def prompts(self, lines: list[str]) -> Iterator[Prompt]:
        for line in lines:
            yield Prompt({"x": np.array([float(line)], np.float32)})

    def post_process(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Result:
        total = sum(float(output.data["x"][0]) for output in outputs) * context["factor"]
        path = sink.path("total.txt")
        path.write_text(str(total))
        sink.add("total.txt", path, media_type="text/plain")
        return Result(data={"total": total})


def echo(prompts: Iterator[Prompt]) -> Iterator[Output]:
    return (Output(prompt.data) for prompt in prompts)


@pytest.fixture
def check(tmp_path: Path) -> Callable[[Any], Finished]:
    numbers = tmp_path / "numbers.txt"
    numbers.write_text("1 2 3")

    def check(processor: Any) -> Finished:
        request = {"numbers": "media://1"}
        return check_processor(processor, request, {"media://1": numbers}, engine=echo, other={**request, "factor": 10})

    return check


def test_a_good_processor_passes_and_shows_what_it_made(check: Callable[[Any], Finished]) -> None:
    assert check(Sum()) == Finished(Result(data={"total": 6.0}), {"total.txt": ("text/plain", b"6.0")})


class StateOnTheInstance(Sum):
    def pre_process(self, request: Request, media: Media) -> Prepared[dict[str, Any]]:
        prepared = super().pre_process(request, media)
        self.factor = request.factor
        return prepared

    def post_process(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Result:
        return super().post_process(outputs, {**context, "factor": self.factor}, sink)


class TraceOnTheInstance(Sum):
    def __init__(self) -> None:
        self.last: Request | None = None

    def pre_process(self, request: Request, media: Media) -> Prepared[dict[str, Any]]:
        self.last = request
        return super().pre_process(request, media)


class SharedContext(Sum):
    context: dict[str, Any] = {}  # noqa: RUF012  (the mistake under test)

    def pre_process(self, request: Request, media: Media) -> Prepared[dict[str, Any]]:
        prepared = super().pre_process(request, media)
        self.context.update(prepared.context)
        return Prepared(prepared.prompts, prepared.count, prepared.cost, self.context)


class MoreThanAnnounced(Sum):
    def prompts(self, lines: list[str]) -> Iterator[Prompt]:
        return super().prompts([*lines, "4"])


class Changing(Sum):
    calls = iter(range(1000))

    def post_process(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Result:
        return super().post_process(outputs, {**context, "factor": next(self.calls)}, sink)


class LeavesOutputs(Sum):
    def post_process(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Result:  # noqa: ARG002
        return Result(data={"first": float(next(outputs).data["x"][0])})


class NotJson(Sum):
    def post_process(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Result:
        super().post_process(outputs, context, sink)
        return Result(data={"total": float("nan")})


@pytest.mark.parametrize(
    ("processor", "complaint"),
    [
        (StateOnTheInstance, "beside another job"),
        (TraceOnTheInstance, "left a trace"),
        (SharedContext, "share one context"),
        (MoreThanAnnounced, "4 prompts came and 3 were announced"),
        (Changing, "the second time"),
        (LeavesOutputs, "left outputs behind"),
        (NotJson, "not JSON"),
    ],
)
def test_a_breach_is_named(check: Callable[[Any], Finished], processor: type[Sum], complaint: str) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        check(processor())
