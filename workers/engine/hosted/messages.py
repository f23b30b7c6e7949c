"""Prompts, answers and errors as messages have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from traceback import format_exception
from typing import Any

import numpy as np

from penstock.errors import (
    InvalidInput,
    Issue,
    ModelProcessEnded,
    ModelUnavailable,
    OutOfMemory,
    PenstockError,
    ProcessorFailed,
)
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Step

#: Errors of a step or a prompt by their names; any other is `ProcessorFailed`. A lost device ends the process.
_ERRORS: Mapping[str, type[PenstockError]] = {
    **{one.__name__: one for one in (InvalidInput, ModelUnavailable, OutOfMemory, ProcessorFailed)},
    "DeviceLost": ModelProcessEnded,
}


def prompt_value(prompt: Prompt) -> dict[str, Any]:
    """Return a prompt as a message's value."""
    return {"data": dict(prompt.data), "cost": prompt.cost, "tenant": prompt.tenant}


def prompt_of(value: Mapping[str, Any]) -> Prompt:
    """Return the prompt of a message; its arrays are views of the body."""
    return Prompt(value["data"], cost=value["cost"], tenant=value["tenant"])


def answers_value(steps: Sequence[Step | PenstockError]) -> list[dict[str, Any]]:
    """Return the answers to a batch as a message's value; raise `TypeError` for a step that did not finish."""
    return [_answer(step) for step in steps]


def _answer(step: Step | PenstockError) -> dict[str, Any]:
    if isinstance(step, PenstockError):
        return {"error": error_fields(step)}
    if not isinstance(step, Done):
        raise TypeError("only runners of one pass run in a process of their own")
    return {"data": dict(step.output.data), "counts": dict(step.output.counts)}


def steps_of(value: Sequence[Mapping[str, Any]]) -> list[Done | PenstockError]:
    """Return the answers of a message. Arrays of several answers are copied: one must not keep all in memory."""
    return [_step(answer, alone=len(value) == 1) for answer in value]


def _step(answer: Mapping[str, Any], *, alone: bool) -> Done | PenstockError:
    if "error" in answer:
        return error_of(answer["error"])
    data = {
        name: np.array(each) if isinstance(each, np.ndarray) and not alone else each
        for name, each in answer["data"].items()
    }
    return Done(Output(data, counts=answer["counts"]))


def error_fields(error: PenstockError) -> dict[str, Any]:
    """Return an error as a message has it, with the traceback of its cause for the operators."""
    return {
        "type": type(error).__name__,
        "detail": error.detail,
        "issues": [[issue.pointer, issue.detail] for issue in error.errors],
        "trace": "" if error.__cause__ is None else "".join(format_exception(error.__cause__)),
    }


def error_of(fields: Mapping[str, Any]) -> PenstockError:
    """Return the error of a message."""
    issues = [Issue(pointer, detail) for pointer, detail in fields["issues"]]
    return _ERRORS.get(fields["type"], ProcessorFailed)(str(fields["detail"]), errors=issues)
