"""Model types that tests compared with transformers itself, by task: those that `models check` accepts.

`supported_types.json` is written by `python -m tests.what_runs` from what the tests ran. It has, by task and model
type, a list of the ways that gave the library's numbers, or a string: the reason why none did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.errors import ModelUnavailable
from penstock.workers.engine.transformers.images import pooling_of
from penstock.workers.engine.transformers.tasks import Task

FILE = Path(__file__).with_name("supported_types.json")
#: Ways of tasks with one way, and of texts: in padded batches, or one by one.
EQUAL, BATCHED, ALONE = "equal", "batched", "alone"

#: By task and model type: the ways that were equal, or the reason why none was.
Outcomes = Mapping[Task, Mapping[str, Sequence[str] | str]]


@cache
def outcomes() -> Outcomes:
    """Return the outcomes of the file."""
    tasks = json.loads(FILE.read_text(encoding="utf-8"))["tasks"]
    return MappingProxyType({Task(name): MappingProxyType(types) for name, types in tasks.items()})


def ways(task: Task, model_type: str) -> Sequence[str]:
    """Return the ways in which a type gave the library's numbers; none if it was never seen to."""
    found = outcomes().get(task, {}).get(model_type, "")
    return () if isinstance(found, str) else found


def require_supported(task: Task, model_type: str, options: Mapping[str, Any]) -> None:
    """Raise `ModelUnavailable` for a type or a pooling that no test has seen equal, unless the record allows it."""
    untried = options.get("untried", False)
    if not isinstance(untried, bool):
        raise ModelUnavailable(f"`options.untried` is true or false, not {untried!r}")
    if untried:
        return
    equal = ways(task, model_type)
    if not equal:
        reason = outcomes().get(task, {}).get(model_type, "no test has run it")
        raise ModelUnavailable(
            f"for {task.value}, the model_type {model_type!r} was not seen to answer as transformers does: {reason}. "
            "Set `untried = true` in `options` of the model's record to try it nevertheless"
        )
    if task is Task.IMAGE_EMBEDDING and (pooling := pooling_of(options)) not in equal:
        raise ModelUnavailable(
            f"the network of the model_type {model_type!r} has no vectors for the pooling {pooling!r}: set "
            f"`options.pooling` to one of {', '.join(equal)}"
        )
