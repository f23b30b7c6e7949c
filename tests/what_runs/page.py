"""The page `docs/reference/what-runs.md`, made from `page.md.template`, `tried.json` and the tables of the tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.workers.engine.transformers.tasks import UNFIT, Task
from penstock.workers.engine.transformers.tried import ALONE, BATCHED, EQUAL, FILE, outcomes
from tests.support.image_text_kinds import KINDS
from tests.support.image_text_table import OWN
from tests.support.pair_table import TABLE
from tests.support.pipeline_table import table as pipelines

TEMPLATE = Path(__file__).with_name("page.md.template")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "what-runs.md"


def page() -> str:
    """Return the whole page."""
    return re.sub(r"\{\{ ([a-z-]+) \}\}", lambda found: _PARTS[found[1]](), TEMPLATE.read_text(encoding="utf-8"))


def versions() -> str:
    """Return the versions of the libraries that the types were compared with."""
    with_ = json.loads(FILE.read_text(encoding="utf-8"))["versions"]
    return ", ".join(f"{name} {version}" for name, version in with_.items())


def _found(task: Task) -> Mapping[str, Sequence[str] | str]:
    """Return the outcomes of a task, with the types that do not fit it."""
    return {**outcomes().get(task, {}), **UNFIT.get(task, {})}


def _names(kinds: Sequence[str]) -> str:
    return ", ".join(f"`{kind}`" for kind in sorted(kinds)) or "none"


def _texts(task: Task) -> str:
    """Return the types of texts: those that share batches, those that run one by one, and those that are refused."""
    found = _found(task)
    batched = [kind for kind, ways in found.items() if not isinstance(ways, str) and BATCHED in ways]
    alone = [kind for kind, ways in found.items() if not isinstance(ways, str) and ways == [ALONE]]
    return "\n\n".join(
        [
            f"In batches ({len(batched)}): {_names(batched)}.",
            f"One text at a time, as padding would change their answers ({len(alone)}): {_names(alone)}.",
            _refused([task]),
        ]
    )


def _images() -> str:
    """Return the types of networks of images and sounds by task, and those that are refused."""
    rows = ["| task | types |", "| --- | --- |"]
    tasks = [task for task in Task if task not in _OWN_PARTS]
    for task in tasks:
        for ways, kinds in _by_ways(_found(task)).items():
            rows.append(f"| `{task}`{_qualified(task, ways)} | {_names(kinds)} |")
    return "\n".join([*rows, "", _refused(tasks, named=True)])


def _qualified(task: Task, ways: Sequence[str]) -> str:
    if task is Task.IMAGE_EMBEDDING:
        return f", `pooling` {' or '.join(ways)}"
    if task is Task.TEXT_IMAGE_EMBEDDING:
        return ", a tower for texts and one for images" if EQUAL in ways else ", chat models"
    return ""


def _by_ways(found: Mapping[str, Sequence[str] | str]) -> Mapping[tuple[str, ...], list[str]]:
    made: dict[tuple[str, ...], list[str]] = {}
    for kind, ways in found.items():
        if not isinstance(ways, str):
            made.setdefault(tuple(ways), []).append(kind)
    return dict(sorted(made.items()))


def _refused(tasks: Sequence[Task], *, named: bool = False) -> str:
    rows = [
        f"| `{kind}` |{f' `{task}` |' if named else ''} {reason} |"
        for task in tasks
        for kind, reason in sorted(_found(task).items())
        if isinstance(reason, str)
    ]
    head = (
        ["| refused | task | reason |", "| --- | --- | --- |"] if named else ["| refused | reason |", "| --- | --- |"]
    )
    return "\n".join([*head, *rows]) if rows else "None is refused."


def _image_text() -> str:
    rows = ["| `model_type` | runs | tested with |", "| --- | --- | --- |"]
    for kind, ways in sorted(_found(Task.IMAGE_TEXT_TO_TEXT).items()):
        if isinstance(ways, str):
            rows.append(f"| `{kind}` | refused | {ways} |")
        elif kind in OWN:
            rows.append(f"| `{kind}` | yes, by a family of its own | several images, text |")
        else:
            made = KINDS[kind]
            images = "one image" if made.most == 1 else "one image, two images"
            needs = f", with the package `{made.package}`" if made.package else ""
            rows.append(f"| `{kind}` | yes{needs} | {'text, ' if made.text_only else ''}{images} |")
    return "\n".join(rows)


def _language() -> str:
    found = _found(Task.TEXT_GENERATION)
    equal = [kind for kind, ways in found.items() if not isinstance(ways, str)]
    return f"Equal ({len(equal)}): {_names(equal)}.\n\n{_refused([Task.TEXT_GENERATION])}"


def _pairs() -> str:
    rows = ["| `processor` | runners |", "| --- | --- |"]
    for name, runners in TABLE.items():
        rows.append(f"| `{name}` | {', '.join(f'`{runner}`' for runner in sorted(runners - {'fake'}))} |")
    return "\n".join(rows)


#: Tasks whose types have a part of their own in the page.
_OWN_PARTS = (Task.TEXT_CLASSIFICATION, Task.TEXT_EMBEDDING, Task.TEXT_GENERATION, Task.IMAGE_TEXT_TO_TEXT)
_PARTS: Mapping[str, Callable[[], str]] = {
    "image-text-to-text": _image_text,
    "images": _images,
    "pairs": _pairs,
    "pipelines": pipelines,
    "text-classification": lambda: _texts(Task.TEXT_CLASSIFICATION),
    "text-embedding": lambda: _texts(Task.TEXT_EMBEDDING),
    "text-generation": _language,
    "versions": versions,
}
