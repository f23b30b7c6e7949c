from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from penstock.models import Limits, MediaReference
from penstock.processors.base import (
    ArtifactSink,
    Dummy,
    Media,
    Output,
    OutputSpec,
    Prepared,
    Prompt,
    Result,
    final_outputs,
)
from penstock.processors.testing import ConformanceError, Finished, check_processor, check_request_module


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
        total = sum(float(output.data["x"][0]) for output in final_outputs(outputs)) * context["factor"]
        path = sink.path("total.txt")
        path.write_text(str(total))
        sink.add("total.txt", path, media_type="text/plain")
        return Result(data={"total": total})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        path = folder / "numbers.txt"
        path.write_text("1 " * (limits.max_items or 2))
        return Dummy({"numbers": "media://dummy"}, {"media://dummy": path})


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


def test_a_processor_that_saves_what_it_did_passes_too(check: Callable[[Any], Finished]) -> None:
    assert sorted(check(Saving()).saved) == ["1-2-3/0", "1-2-3/1", "1-2-3/2"]


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


class FewerThanAnnounced(Sum):
    def prompts(self, lines: list[str]) -> Iterator[Prompt]:
        return super().prompts(lines[:2])


class CostsMoreThanAnnounced(Sum):
    def prompts(self, lines: list[str]) -> Iterator[Prompt]:
        return (Prompt(prompt.data, cost=2) for prompt in super().prompts(lines))


class Text(Sum):
    """Prompts of any value."""

    value: Any = None

    def prompts(self, lines: list[str]) -> Iterator[Prompt]:
        for prompt in super().prompts(lines):
            yield Prompt({**prompt.data, "more": self.value})


class Objects(Text):
    value = np.array([object()])


class NotPlain(Text):
    value = Path("numbers.txt")


class NotClosing(Sum):
    def prompts(self, lines: list[str]) -> Iterator[Prompt]:
        try:
            yield from super().prompts(lines)
        except GeneratorExit:
            raise RuntimeError("the file is gone") from None


class CountsPartials(Sum):
    def post_process(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Result:  # noqa: ARG002
        return Result(data={"outputs": sum(1 for _ in outputs)})


class SaysTooMuch(Sum):
    def post_process(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Result:
        total = super().post_process(outputs, context, sink).data
        for _ in range(2):
            sink.say("six")
        return Result(text="six", data=total)


class DummyOfAnotherRequest(Sum):
    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        return Dummy({"number": 1}, super().dummy(limits, folder).files)


class DummyWithoutFile(Sum):
    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        return Dummy(super().dummy(limits, folder).request)


class DummyThatFails(Sum):
    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        dummy = super().dummy(limits, folder)
        dummy.files["media://dummy"].write_text("one")
        return dummy


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


class Saving(Sum):
    """Saves each number, so that no later attempt asks for it again."""

    def pre_process(self, request: Request, media: Media) -> Prepared[dict[str, Any]]:
        lines = media.path(request.numbers).read_text().split()
        found = {name: path.read_text() for name, path in media.checkpoints(f"{'-'.join(lines)}/").items()}
        done = [float(text[:-1]) for text in found.values() if self.good(text)]
        left = lines[len(done) :]
        context = {"factor": request.factor, "done": done, "name": "-".join(lines)}
        return Prepared(self.prompts(left), len(left), len(left), context, done=len(done))

    def good(self, text: str) -> bool:
        return text.endswith("!")

    def post_process(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Result:
        return super().post_process(self.saved(outputs, context, sink), context, sink)

    def saved(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Iterator[Output]:
        for value in context["done"]:
            yield Output({"x": [value]})
        for number, output in enumerate(final_outputs(outputs), start=len(context["done"])):
            path = sink.path("draft")
            path.write_text(f"{float(output.data['x'][0]):09.1f}!")
            sink.checkpoint(f"{context['name']}/{number}", path)
            yield output


class TrustsWhatItFinds(Saving):
    def good(self, text: str) -> bool:
        return bool(text)


class CountsWhatItFindsTwice(Saving):
    def post_process(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Result:
        context["done"] = [value * 2 for value in context["done"]]
        return super().post_process(outputs, context, sink)


class SavesAnywhere(Saving):
    def post_process(self, outputs: Iterator[Output], context: dict[str, Any], sink: ArtifactSink) -> Result:
        return super().post_process(outputs, {**context, "name": "../elsewhere"}, sink)


@pytest.mark.parametrize(
    ("processor", "complaint"),
    [
        (StateOnTheInstance, "when another job ran"),
        (TraceOnTheInstance, "changed the processor's attributes"),
        (SharedContext, "share one context"),
        (MoreThanAnnounced, "there are 4 prompts, but 3 were announced"),
        (FewerThanAnnounced, "there are 2 prompts, but 3 were announced"),
        (CostsMoreThanAnnounced, "the prompts cost 6 together, more than the announced 3"),
        (Objects, "prompt 1 holds under 'more' an array of object"),
        (NotPlain, "prompt 1 holds under 'more' a pathlib.*Path"),
        (NotClosing, "closing the prompts after 1 of them failed"),
        (CountsPartials, "partial outputs changed the result"),
        (SaysTooMuch, "text sent with `say`, 'sixsix', is not the beginning"),
        (DummyOfAnotherRequest, "the dummy's request is not valid"),
        (DummyWithoutFile, "names 'media://dummy' at /numbers but wrote no file"),
        (DummyThatFails, "the dummy request fails: ValueError"),
        (Changing, "the second time"),
        (LeavesOutputs, "left outputs unread"),
        (NotJson, "not JSON"),
        (TrustsWhatItFinds, "with damaged checkpoints"),
        (CountsWhatItFindsTwice, "with whole checkpoints"),
        (SavesAnywhere, "'../elsewhere/0' is not a valid name of a checkpoint"),
    ],
)
def test_a_breach_is_named(check: Callable[[Any], Finished], processor: type[Sum], complaint: str) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        check(processor())


def test_a_bound_on_the_number_of_prompts_is_allowed_where_the_author_says_so(tmp_path: Path) -> None:
    (tmp_path / "numbers.txt").write_text("1 2 3")
    files = {"media://1": tmp_path / "numbers.txt"}
    finished = check_processor(
        FewerThanAnnounced(),
        {"numbers": "media://1"},
        files,
        engine=echo,
        limits=Limits(max_items=2),
        count_is_a_bound=True,
    )
    assert finished.result.data == {"total": 3.0}


class Light(Sum):
    request = type("Request", (BaseModel,), {"__module__": "penstock.models"})


class Heavy(Sum):
    request = type("Request", (BaseModel,), {"__module__": "penstock.processors.outputs"})


class Missing(Sum):
    request = type("Request", (BaseModel,), {"__module__": "penstock.nowhere"})


def test_the_module_of_a_request_is_light() -> None:
    check_request_module(Light())
    with pytest.raises(ConformanceError, match="imports PIL numpy: move it"):
        check_request_module(Heavy())
    with pytest.raises(ConformanceError, match=r"cannot be imported alone: [\s\S]*nowhere"):
        check_request_module(Missing())
