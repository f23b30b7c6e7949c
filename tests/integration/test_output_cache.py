"""An embedder that remembers, in the real engine: the same picture of one tenant is embedded once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.output_cache import CachingRunner
from penstock.workers.engine.runners import Runners
from tests.support.engine_jobs import never
from tests.support.hub import a_bert, a_model, a_vit_backbone, an_image, load


@dataclass
class Watched:
    """An engine with a remembering embedder, and how many pictures its network has seen."""

    engine: BatchingEngine
    model: Model
    seen: int = 0

    def embed(self, *prompts: Prompt) -> list[Output]:
        return list(self.engine.run(self.model, iter(prompts), check=never))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    model = a_model(a_vit_backbone(tmp_path), options={"encoder_cache_bytes": 100_000})

    def loaded(model: Model) -> CachingRunner:
        runner = Runners.installed().load(model)
        assert isinstance(runner, CachingRunner)
        runner.runner.network.register_forward_hook(  # type: ignore[attr-defined]
            lambda _module, _args, kwargs, _out: note(len(kwargs["pixel_values"])), with_kwargs=True
        )
        return runner

    def note(pictures: int) -> None:
        watched.seen += pictures

    watched = Watched(BatchingEngine(Runners.of({"transformers": loaded})), model)
    yield watched
    watched.engine.close()


def picture(seed: int, tenant: str = "one") -> Prompt:
    return Prompt({"pixels": an_image(3, 32, 32, seed=seed)}, tenant=tenant)


def test_the_same_picture_is_embedded_once(watched: Watched) -> None:
    first = watched.embed(picture(1), picture(2))
    assert watched.seen == 2
    again = watched.embed(picture(2), picture(1), picture(1))
    assert watched.seen == 2
    assert [dict(output.counts) for output in again] == [{"encoder_hits": 1, "encoder_misses": 0}] * 3
    assert [dict(output.counts) for output in first] == [{"encoder_hits": 0, "encoder_misses": 1}] * 2
    for output, same in zip(again, (first[1], first[0], first[0]), strict=True):
        np.testing.assert_array_equal(output.data["embedding"], same.data["embedding"])
    assert watched.engine.kept_bytes() == {"tiny": 2 * 16 * 4}


def test_another_tenant_learns_nothing_of_it(watched: Watched) -> None:
    watched.embed(picture(1))
    (output,) = watched.embed(picture(1, tenant="two"))
    assert (watched.seen, output.counts["encoder_misses"]) == (2, 1)


def test_what_a_job_does_with_its_embedding_changes_no_other_job_s(watched: Watched) -> None:
    (first,) = watched.embed(picture(1))
    kept = first.data["embedding"].copy()
    first.data["embedding"][:] = 0
    (second,) = watched.embed(picture(1))
    np.testing.assert_array_equal(second.data["embedding"], kept)


def test_a_picture_that_does_not_fit_harms_nobody(watched: Watched) -> None:
    with pytest.raises(InvalidInput, match="channels"):
        watched.embed(picture(1), Prompt({"pixels": an_image(4, 32, 32)}))
    assert len(watched.embed(picture(1))) == 1


def test_the_numbers_are_those_of_a_runner_that_forgets(tmp_path: Path) -> None:
    folder = a_bert(tmp_path)
    prompt = Prompt({"input_ids": np.array([2, 7, 9, 3], np.int64)})
    forgets, keeps = load(folder), load(folder, options={"encoder_cache_bytes": 1000})
    for _ in range(2):
        (expected,), (found,) = (runner.step([runner.admit(prompt)]) for runner in (forgets, keeps))
        np.testing.assert_array_equal(found.output.data["embedding"], expected.output.data["embedding"])  # type: ignore[union-attr]


def test_without_the_option_nothing_is_kept(tmp_path: Path) -> None:
    folder = a_vit_backbone(tmp_path)
    assert not isinstance(load(folder), CachingRunner)
    with pytest.raises(ModelUnavailable, match="encoder_cache_bytes"):
        load(folder, options={"encoder_cache_bytes": "1 GB"})
