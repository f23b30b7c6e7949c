"""Every model type that transformers knows: served as the file of outcomes says, or refused when it is checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from penstock.errors import ModelUnavailable
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.transformers.directory import known_types
from penstock.workers.engine.transformers.supported_types import FILE, outcomes
from penstock.workers.engine.transformers.tasks import Task
from tests.support.hub import a_model
from tests.support.type_trials import TRIALS, processor_of
from tests.what_runs.dedicated import DEDICATED
from tests.what_runs.trials import tried

SERVED = [
    (task, kind)
    for task in sorted(TRIALS.keys() - {Task.TEXT_GENERATION})  # `test_language_types.py` has those
    for kind, ways in outcomes()[task].items()
    if not isinstance(ways, str)
]
#: A classifier and an embedder of each form: batched texts, texts one by one, pictures with a pooling, sounds.
FEW = (
    "text-classification-deberta-v2", "text-classification-xlnet", "text-embedding-modernbert",
    "image-classification-convnext", "image-embedding-swin", "audio-classification-hubert",
)  # fmt: skip


@pytest.mark.breadth(but=FEW)
@pytest.mark.parametrize(("task", "kind"), SERVED, ids=lambda name: str(name))
def test_a_type_answers_as_the_library(task: Task, kind: str) -> None:
    torch.set_num_threads(1)  # the trial is a fork
    assert dict(tried(task, [kind])) == {kind: outcomes()[task][kind]}


def test_a_fork_of_a_trial_that_fails_says_why() -> None:
    [(_, words)] = tried(Task.IMAGE_EMBEDDING, ["imagegpt"])
    assert isinstance(words, str)
    assert words.startswith("ValueError: You have to specify")


@pytest.mark.parametrize("task", Task)
def test_every_type_of_the_library_is_in_the_file(task: Task) -> None:
    """A new version of the library brings types that nobody has tried: run `python -m tests.what_runs --try TASK`."""
    assert json.loads(FILE.read_text())["versions"]["transformers"] == transformers.__version__
    assert set(outcomes()[task]) == known_types().by_task[task]


@pytest.mark.parametrize("task", Task)
def test_a_type_that_was_not_seen_equal_is_refused_with_the_reason(task: Task, tmp_path: Path) -> None:
    refused = {kind: reason for kind, reason in outcomes()[task].items() if isinstance(reason, str)}
    (tmp_path / "model.safetensors").write_bytes(b"")
    for kind, reason in refused.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(ModelUnavailable) as refusal:
            Runners.installed().check(a_model(tmp_path, processor=processor_of(task)))
        assert reason in str(refusal.value)


def test_a_pooling_that_was_not_seen_equal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "swin"}))
    with pytest.raises(ModelUnavailable, match=r"set `options\.pooling` to one of pooler, mean"):
        Runners.installed().check(a_model(tmp_path, processor="image-embedding", options={"pooling": "patches"}))


@pytest.mark.parametrize("pooling", ["max", ["cls"]])
def test_a_pooling_that_nobody_knows_is_refused_when_it_is_checked(pooling: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "swin"}))
    with pytest.raises(ModelUnavailable, match=r"`options\.pooling` is one of pooler, cls, mean, patches, not"):
        Runners.installed().check(a_model(tmp_path, processor="image-embedding", options={"pooling": pooling}))


def test_a_record_may_ask_for_an_untried_type(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "zoedepth"}))
    model = a_model(tmp_path, processor="depth-estimation")
    with pytest.raises(ModelUnavailable, match="Set `untried = true` in `options`"):
        Runners.installed().check(model)
    Runners.installed().check(model.model_copy(update={"options": {"untried": True}}))
    with pytest.raises(ModelUnavailable, match=r"`options\.untried` is true or false, not 'yes'"):
        Runners.installed().check(model.model_copy(update={"options": {"untried": "yes"}}))


def test_the_file_has_the_outcomes_of_whole_requests() -> None:
    for task, kinds in DEDICATED.items():
        assert outcomes()[task] == kinds, "run `python -m tests.what_runs`"
