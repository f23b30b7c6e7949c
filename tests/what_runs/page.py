"""The page `docs/reference/what-runs.md`.

It is made from `page.md.template`, `supported_types.json` and the tables of the tests.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from penstock.workers.engine.transformers.supported_types import ALONE, BATCHED, EQUAL, FILE, outcomes
from penstock.workers.engine.transformers.tasks import Task
from tests.support.image_text_kinds import KINDS
from tests.support.pair_table import TABLE
from tests.support.pipeline_table import rows as pipelines

TEMPLATE = Path(__file__).with_name("page.md.template")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "what-runs.md"

#: Data of each task and its how-to page.
_TASKS: Mapping[Task, tuple[str, str]] = {
    Task.IMAGE_CLASSIFICATION: ("image to classes", "serve-a-model.md"),
    Task.SEMANTIC_SEGMENTATION: ("image to classes of pixels", "serve-a-model.md"),
    Task.INSTANCE_SEGMENTATION: ("image to masks", "pictures.md"),
    Task.OBJECT_DETECTION: ("image to boxes", "pictures.md"),
    Task.DEPTH_ESTIMATION: ("image to depth", "pictures.md"),
    Task.ZERO_SHOT_CLASSIFICATION: ("image and words to classes", "pictures.md"),
    Task.ZERO_SHOT_OBJECT_DETECTION: ("image and words to boxes", "pictures.md#objects-by-words"),
    Task.MASK_GENERATION: ("image and points to masks", "pictures.md#objects-by-points-and-boxes"),
    Task.IMAGE_EMBEDDING: ("image to vector", "serve-a-model.md"),
    Task.IMAGE_TEXT_TO_TEXT: ("chat with images", "chat-with-pictures.md"),
    Task.TEXT_CLASSIFICATION: ("text to classes", "rank-and-classify-texts.md"),
    Task.TEXT_EMBEDDING: ("text to vector", "serve-a-model.md"),
    Task.TEXT_GENERATION: ("text", "serve-a-model.md"),
    Task.TEXT_IMAGE_EMBEDDING: ("text or image to vector", "rank-and-classify-texts.md#texts-and-images-in-one-space"),
    Task.SPEECH_RECOGNITION: ("recording to text", "transcribe-speech.md"),
    Task.AUDIO_CLASSIFICATION: ("recording to classes", "transcribe-speech.md#classify-audio"),
}
#: Names of processors that differ from their task's.
_PROCESSORS: Mapping[Task, str] = {Task.SEMANTIC_SEGMENTATION: "image-segmentation"}


def page() -> str:
    """Return the whole page."""
    return re.sub(r"\{\{ ([a-z-]+) \}\}", lambda found: _PARTS[found[1]](), TEMPLATE.read_text(encoding="utf-8"))


def versions() -> str:
    """Return the versions of the libraries that the types were compared with."""
    with_ = json.loads(FILE.read_text(encoding="utf-8"))["versions"]
    return ", ".join(f"{name} {version}" for name, version in with_.items())


def _types() -> str:
    """Return the rows of all types that transformers knows: the served ones by task, then the refused ones."""
    return "\n".join([*_served(), *_refused()])


def _served() -> Iterator[str]:
    for task in Task:
        by_words = defaultdict(list)
        for kind, ways in outcomes().get(task, {}).items():
            if not isinstance(ways, str):
                by_words[_tested(task, kind, ways)].append(kind)
        for tested, kinds in sorted(by_words.items()):
            yield _row(task, kinds, "directory (`transformers`)", tested)


def _refused() -> Iterator[str]:
    for task in Task:
        by_reason = defaultdict(list)
        for kind, ways in outcomes().get(task, {}).items():
            if isinstance(ways, str):
                by_reason[ways].append(kind)
        for reason, kinds in sorted(by_reason.items()):
            yield _row(task, kinds, "refused", reason)


def _row(task: Task, kinds: Sequence[str], form: str, tested: str) -> str:
    data, how = _TASKS[task]
    names = ", ".join(f"`{kind}`" for kind in sorted(kinds))
    return f"| {names} | [`{_PROCESSORS.get(task, task)}`](../howto/{how}) | {data} | {form} | {tested} |"


def _tested(task: Task, kind: str, ways: Sequence[str]) -> str:
    """Return the conditions under which a type gave the library's numbers."""
    if task is Task.IMAGE_TEXT_TO_TEXT:
        return _chats(kind)
    if task is Task.IMAGE_EMBEDDING:
        return f"`pooling` {' or '.join(ways)}"
    if task is Task.TEXT_IMAGE_EMBEDDING:
        return "a tower for texts and one for images" if EQUAL in ways else "chat models"
    if task in (Task.TEXT_CLASSIFICATION, Task.TEXT_EMBEDDING):
        return "in batches" if BATCHED in ways else "one text at a time" if ways == [ALONE] else ", ".join(ways)
    return "alone and in turns with other prompts" if task is Task.TEXT_GENERATION else "tiny networks"


def _chats(kind: str) -> str:
    made = KINDS[kind]
    images = "one image" if made.most == 1 else "one image, two images"
    needs = f"; needs the package `{made.package}`" if made.package else ""
    return f"{'text, ' if made.text_only else ''}{images}{needs}"


def _pairs() -> str:
    rows = ["| runners | processors |", "| --- | --- |"]
    by_runners = defaultdict(list)
    for name, runners in TABLE.items():
        by_runners[", ".join(f"`{runner}`" for runner in sorted(runners - {"fake"}))].append(f"`{name}`")
    rows += [f"| {runners} | {', '.join(names)} |" for runners, names in sorted(by_runners.items())]
    return "\n".join(rows)


_PARTS: Mapping[str, Callable[[], str]] = {
    "pairs": _pairs,
    "pipelines": lambda: "\n".join(pipelines()),
    "types": _types,
    "versions": versions,
}
