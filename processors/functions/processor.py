"""The processor `function`: prompts are calls of a user's function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog

from penstock.errors import InvalidInput, PenstockError, ProcessorFailed
from penstock.functions.nested import CALL, VALUE, flat, nested
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, OutputSpec, Prepared, Prompt, Result
from penstock.processors.functions.codecs import AS_JSON, codec
from penstock.processors.functions.request import FunctionRequest, request_class
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS
from penstock.views import View

#: Media types of files that answers become, by codec.
_WRITTEN = {
    "image": "image/png", "audio": "audio/wav", "video": "video/mp4", "table": "application/vnd.apache.parquet",
    "document": "application/pdf",
    "tensor": "application/x-npy", "file": "application/octet-stream", "own": "application/octet-stream",
}  # fmt: skip
#: The values of a call and of its answer, as `nested.flat` names them.
_CALLS = IOSignature(prompt={CALL: "object", "places": "list"}, output={VALUE: "object", "places": "list"})
#: Characters of a file's name without its suffix, and of the suffix, at most; and those that it does not have.
MAX_STEM_CHARS, MAX_SUFFIX_CHARS = 48, 16
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f\\:]")
#: Members of an answer's JSON for codecs of answers that are JSON.
_MEMBERS = {"labels": "labels", "boxes": "boxes", "vector": "vectors"}

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class FunctionContext:
    """A job's request, and what of its lines and text was told."""

    request: FunctionRequest
    items: int | None
    lines: int = 0
    text: int = 0
    texts: list[str] = field(default_factory=list)


class Function:
    """A user's function, whose signature the model's record has in `options`."""

    request: type[FunctionRequest] = FunctionRequest
    outputs: tuple[OutputSpec, ...] = ()
    io_signatures = (_CALLS,)

    def __init__(self, model: Model) -> None:
        self._model = model
        signature = model.options.get("signature")
        if not isinstance(signature, Mapping):
            raise InvalidInput(f"model {model.name!r} has no signature: name its Python file in `models`")
        self._signature = signature
        self.request = request_class(signature)
        self.outputs = _outputs(signature)
        self.views = tuple(_views(signature))

    def pre_process(self, request: FunctionRequest, media: Media) -> Prepared[FunctionContext]:
        """Return one prompt; for a function with batches, one for each item."""
        first, given = self._signature["batched"], dict(request.arguments)
        if first is None:
            prompt = Prompt(flat({"arguments": self._decoded(given, media)}, CALL))
            context = FunctionContext(request, None)
            unit, steps = ("percent", 100) if self._signature["streams"] else ("calls", 1)
            return Prepared(iter([prompt]), 1, 1, context, unit=unit, steps=steps, repeatable=self._model.cache)
        items = _listed(given.pop(first))
        shared = self._decoded(given, media)
        prompts = (Prompt(flat({"arguments": shared, "item": self._one(first, item, media)}, CALL)) for item in items)
        context = FunctionContext(request, len(items))
        return Prepared(prompts, len(items), len(items), context, unit="items", repeatable=self._model.cache)

    def post_process(self, outputs: Iterator[Output], context: FunctionContext, sink: ArtifactSink) -> Result:
        """Encode the answers; raise the function's error as the model's."""
        answers = []
        for output in outputs:
            told = nested(output.data)
            self._tell(told, context, sink)
            if output.partial:
                continue
            if error := told.get("error"):
                raise raised(error)
            answers.append(told["answer"])
            context.texts.append(told["text"])
            context.lines = context.text = 0
        if context.items is None:
            return _result(answers[0], context.texts[0], sink)
        parts = [answer["parts"][""] for answer in answers]
        several = len(parts) > 1
        data = [_encoded(part, f"{part['codec']}-{at}" if several else "", sink) for at, part in enumerate(parts, 1)]
        return Result(data={"answers": data})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002  (nobody knows a function's largest input)
        """Raise: functions are not warmed up with made-up input."""
        raise ProcessorFailed("functions have no request for a warm-up")

    def _decoded(self, given: Mapping[str, Any], media: Media) -> dict[str, Any]:
        found = dict[str, Any]()
        for name, value in given.items():
            if self._signature["parameters"][name]["list"] and value is not None:
                found[name] = [self._one(name, one, media) for one in _listed(value)]
            else:
                found[name] = self._one(name, value, media)
        return found

    def _one(self, name: str, value: Any, media: Media) -> Any:
        kind = self._signature["parameters"][name]
        if value is None or kind["codec"] == "json":
            return value
        found = codec(kind["codec"]).decode(media.path(value), kind["options"], self._model.limits)
        return {**found, "name": file_name(value)} if kind["codec"] in ("file", "own") else found

    @staticmethod
    def _tell(told: Mapping[str, Any], context: FunctionContext, sink: ArtifactSink) -> None:
        """Print and say what is new: lines go to the job's log."""
        for line in told["lines"][context.lines :]:
            print(line)  # noqa: T201  (an IO process's output is the job's log)
        context.lines = max(context.lines, len(told["lines"]))
        if fresh := told["text"][context.text :]:
            sink.say(fresh)
            context.text = len(told["text"])


def file_name(reference: str) -> str:
    """Return the name of a reference's file: one that any folder can hold, with its suffix."""
    address = urlsplit(reference)
    path = unquote(address.path) if address.scheme in ("http", "https") else reference
    name = Path(_NOT_IN_NAMES.sub("_", path.rstrip("/").rpartition("/")[2]).lstrip(". "))
    return f"{name.stem[:MAX_STEM_CHARS]}{name.suffix[:MAX_SUFFIX_CHARS]}" or "file"


def _listed(value: Any) -> list[Any]:
    """Return the items of a list of files, of which one may stand alone."""
    return [value] if isinstance(value, str) else list(value)


def _result(answer: Mapping[str, Any], text: str, sink: ArtifactSink) -> Result:
    """Return the result of a call: text, JSON, and files."""
    if "parts" in answer:
        parts = answer["parts"]
        if list(parts) == [""]:
            return _single(parts[""], text, sink)
        names = {name: f"{part['codec']}-{name}" if name.isdigit() else name for name, part in parts.items()}
        return Result(text=text or None, data={name: _encoded(part, names[name], sink) for name, part in parts.items()})
    streamed = answer.get("stream") or answer.get("list") or []
    several = len(streamed) > 1
    answers = [
        _encoded(part, f"{part['codec']}-{at}" if several and part["codec"] != "file" else "", sink)
        for at, part in enumerate(streamed, 1)
    ]
    return Result(text=text or None, data={"answers": answers} if answers or not text else None)


def _single(part: Mapping[str, Any], text: str, sink: ArtifactSink) -> Result:
    value = part["value"]
    if part["codec"] == "json":
        if isinstance(value, str):
            return Result(text=text + value)
        if value is None:
            return Result(text=text or None, data=None if text else {})
        return Result(text=text or None, data=value if isinstance(value, dict) else {"answer": value})
    if (name := _MEMBERS.get(part["codec"])) is not None:
        return Result(text=text or None, data={name: [value] if part["codec"] == "vector" else value})
    return Result(text=text or None, data=_encoded(part, "", sink))


def _encoded(part: Mapping[str, Any], name: str, sink: ArtifactSink) -> Any:
    """Return the JSON of an answer or a part of it; files go to the sink."""
    if part["codec"] in AS_JSON:
        return {"labels": part["value"]} if part["codec"] == "labels" else part["value"]
    return codec(part["codec"]).encode(sink, name, part["value"])


def raised(error: Mapping[str, Any]) -> PenstockError:
    """Return a function's error as Penstock's; its place goes to the operator's log."""
    if error["invalid"]:
        return InvalidInput(str(error["detail"]))
    trace = error["trace"] and f"\n{error['trace']}"
    where = {name: value for name, value in (("place", error["place"]), ("trace", trace)) if value}
    log.error("function.failed", error=f"{error['type']}: {error['detail']}", **where)
    if error["wrong_answer"]:
        return ProcessorFailed(f"the model failed: {error['detail']}")
    return ProcessorFailed(f"the model failed: its function raised {error['type']}")


def _outputs(signature: Mapping[str, Any]) -> tuple[OutputSpec, ...]:
    found = []
    for name, kind in signature["answers"].items():
        written = _WRITTEN.get(kind["codec"])
        if written is None:
            found.append(OUTPUTS.spec(name or "answer", "the result", kind="json"))
        else:
            found.append(OutputSpec(name or kind["codec"], written, f"a file of the result ({kind['codec']})"))
    return tuple(found)


def _views(signature: Mapping[str, Any]) -> Iterator[View]:
    """Yield the views that the types of the answer declare."""
    batched = signature["batched"] is not None
    for name, kind in signature["answers"].items():
        codec_name = kind["codec"]
        if batched or kind["list"]:
            yield _OF_LISTS.get(codec_name, View("rows", "/answers"))
        elif name:
            yield _OF_PARTS.get(codec_name, _part_rows)(name)
        else:
            yield _SINGLE.get(codec_name, View("rows", "/answer"))


def _part_rows(name: str) -> View:
    return View("rows", f"/{name}")


#: Views of an answer, of a list of answers, and of a part of an answer, by codec; others are rows.
_SINGLE = {
    "labels": View("labels", "/labels"), "boxes": View("boxes", "/boxes"), "vector": View("vectors", "/vectors"),
    "table": View("rows", "/rows"), "document": View("rows", "/pages"),
}  # fmt: skip
_OF_LISTS = {
    "labels": View("labels", "/answers/*/labels", "item"), "boxes": View("boxes", "/answers/*", "item"),
    "vector": View("vectors", "/answers"), "table": View("rows", "/answers/*/rows", "item"),
    "document": View("rows", "/answers/*/pages", "item"),
}  # fmt: skip
_OF_PARTS: Mapping[str, Callable[[str], View]] = {
    "labels": lambda name: View("labels", f"/{name}/labels"), "boxes": lambda name: View("boxes", f"/{name}"),
    "table": lambda name: View("rows", f"/{name}/rows"), "document": lambda name: View("rows", f"/{name}/pages"),
}  # fmt: skip
