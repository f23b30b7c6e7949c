"""Answers of a server that speaks OpenAI's protocol, put together from the chunks of a stream. Pure.

A server's data are checked where they are read: a chunk of another form raises `Malformed`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Values of an answer outside its choices.
_HEAD = ("id", "object", "created", "model", "system_fingerprint")
#: Texts of a delta that come in pieces: the answer's, a refusal, and the thoughts before it by the names of servers.
_TEXTS = ("content", "refusal", "reasoning_content", "reasoning")
#: Choices and tool calls of an answer, at most.
_MAX_PARTS = 1024


class Malformed(Exception):
    """The server's answer is not of OpenAI's protocol."""


@dataclass(slots=True)
class Answer:
    """An answer so far: choices by their index, in the form of a request without a stream."""

    head: dict[str, Any] = field(default_factory=dict)
    choices: dict[int, dict[str, Any]] = field(default_factory=dict)
    usage: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        first = self.choices.get(0, {})
        return str(first.get("message", first).get("content" if "message" in first else "text") or "")

    @property
    def complete(self) -> bool:
        """True if the server has ended every choice, and sent the usage."""
        ended = all(choice["finish_reason"] is not None for choice in self.choices.values())
        return bool(self.choices) and ended and self.usage is not None

    def add(self, chunk: Any) -> None:
        """Add a chunk of a stream; raise `Malformed`."""
        choices = _object(chunk).get("choices") or []
        self.head |= {name: chunk[name] for name in _HEAD if name in chunk}
        if (usage := chunk.get("usage")) is not None:
            self.usage = _object(usage)
        if not isinstance(choices, list):
            raise Malformed("`choices` is no list")
        for part in choices:
            _add_part(self._choice(_object(part)), part)

    def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""
        choices = [self.choices[index] for index in sorted(self.choices)]
        return {**self.head, "choices": choices, "usage": self.usage}

    def _choice(self, part: Mapping[str, Any]) -> dict[str, Any]:
        index = _index(part)
        if index not in self.choices:
            empty: dict[str, Any] = {"text": ""}
            if "delta" in part:
                empty = {"message": {"role": "assistant", "content": None}}
            self.choices[index] = {"index": index, **empty, "logprobs": None, "finish_reason": None}
        return self.choices[index]


def parsed(data: str) -> Any:
    """Return JSON; raise `Malformed`."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"a part of the answer is not JSON ({type(error).__name__})") from error


def _add_part(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    if (reason := part.get("finish_reason")) is not None:
        choice["finish_reason"] = str(reason)
    if (logprobs := part.get("logprobs")) is not None:
        choice["logprobs"] = choice["logprobs"] or {}
        _join(choice["logprobs"], _object(logprobs))
    if "message" in choice:
        _add_delta(choice["message"], _object(part.get("delta") or {}))
    else:
        choice["text"] += _text(part.get("text"))


def _add_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name in _TEXTS:
        if delta.get(name) is not None:
            message[name] = (message.get(name) or "") + _text(delta[name])
    calls = delta.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Malformed("`tool_calls` is no list")
    for call in calls:
        _add_call(message.setdefault("tool_calls", []), _object(call))


def _add_call(calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    """Add a piece of a tool call: the first has its id and name, all have parts of the arguments."""
    index = _index(part, default=len(calls))
    while len(calls) <= index:
        calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call, function = calls[index], _object(part.get("function") or {})
    call["id"] = call["id"] or _text(part.get("id"))
    for name in ("name", "arguments"):
        call["function"][name] += _text(function.get(name))


def _join(earlier: dict[str, Any], later: Mapping[str, Any]) -> None:
    """Add log probabilities whose lists go on where the earlier ones end."""
    for name, value in later.items():
        if isinstance(value, list) and isinstance(earlier.get(name), list):
            earlier[name] += value
        else:
            earlier[name] = list(value) if isinstance(value, list) else value


def _index(part: Mapping[str, Any], default: int = 0) -> int:
    index = part.get("index", default)
    if not isinstance(index, int) or not 0 <= index < _MAX_PARTS:
        raise Malformed("an `index` is not valid")
    return index


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Malformed(f"a part of the answer is {type(value).__name__}, not an object")
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Malformed(f"a text of the answer is {type(value).__name__}")
    return value
