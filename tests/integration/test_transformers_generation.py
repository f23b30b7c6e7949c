"""Text token by token: a small trained model, against the library's own `generate`."""

from __future__ import annotations

import gc
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Continue, Done, Runner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.transformers.sampling import Sampling
from tests.support.hub import STORIES, a_model, finish, load, needs_stories, tokens
from tests.support.language import a_gpt2, a_mistral, a_prompt, generated, new, spoken

pytestmark = pytest.mark.library

WAIT_S = 30

BEGINNING = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball"
)


@pytest.fixture(scope="module")
def stories() -> Iterator[Runner]:
    with closing(load(STORIES)) as runner:
        yield runner


@needs_stories
def test_the_story_is_the_known_one_and_the_library_s(stories: Runner) -> None:
    prompt = a_prompt(max_new_tokens=60)
    (output,) = finish(stories, prompt)
    assert spoken(output).startswith(BEGINNING)
    assert new(output) == generated(prompt, do_sample=False)
    assert output.data["finish_reason"] == "length"
    assert all(type(token) is int for token in new(output))


@needs_stories
def test_the_end_tokens_are_those_of_the_generation_config_and_are_not_told(tmp_path: Path) -> None:
    directory = shutil.copytree(STORIES, tmp_path / "ends", copy_function=shutil.copyfile)
    full_stop = 426
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [511, full_stop]}))
    with closing(load(directory)) as runner:
        (output,) = finish(runner, a_prompt())
    assert output.data["finish_reason"] == "stop"
    assert spoken(output) == "Once upon a time, there was a little girl named Lily"
    assert [*new(output), full_stop] == generated(a_prompt(), do_sample=False)[: len(new(output)) + 1]


@needs_stories
def test_settings_of_the_generation_config_that_change_scores_hold_as_in_the_library(tmp_path: Path) -> None:
    directory = shutil.copytree(STORIES, tmp_path / "settings", copy_function=shutil.copyfile)
    settings = {"eos_token_id": 2, "repetition_penalty": 1.3, "suppress_tokens": [426]}
    (directory / "generation_config.json").write_text(json.dumps(settings))
    with closing(load(directory)) as runner:
        (output,) = finish(runner, a_prompt())
    assert new(output) == generated(a_prompt(), directory, do_sample=False) != generated(a_prompt(), do_sample=False)


@needs_stories
def test_partial_outputs_hold_all_tokens_so_far(stories: Runner) -> None:
    state, heard = stories.admit(a_prompt(max_new_tokens=5)), []
    while isinstance(step := stories.step([state])[0], Continue):
        assert step.partial is not None
        assert step.partial.partial
        heard.append(step.partial.data["token_ids"])
        state = step.state
    assert isinstance(step, Done)
    whole = new(step.output)
    assert heard == [whole[:count] for count in range(1, 5)]


@needs_stories
def test_texts_at_different_steps_do_not_touch_each_other(stories: Runner) -> None:
    asked = [a_prompt(text, max_new_tokens=12) for text in ("", "Tom had a dog", "The sun")]
    alone = [new(finish(stories, prompt)[0]) for prompt in asked]
    late: list[Any] = [stories.admit(asked[0])]
    for prompt in asked[1:]:
        # Three steps for those that are there before the next one comes.
        for _ in range(3):
            late = [step.state for step in stories.step(late) if isinstance(step, Continue)]
        late.append(stories.admit(prompt))
    ends: dict[int, list[int]] = {}
    places = list(range(3))
    while late:
        steps = stories.step(late)
        ends |= {place: new(step.output) for place, step in zip(places, steps, strict=True) if isinstance(step, Done)}
        places = [place for place in places if place not in ends]
        late = [step.state for step in steps if isinstance(step, Continue)]
    assert [ends[place] for place in range(3)] == alone


@needs_stories
def test_a_step_may_be_repeated_from_the_same_states(stories: Runner) -> None:
    state = stories.admit(a_prompt(max_new_tokens=6, temperature=1.0, seed=3))
    first = stories.step([state])[0]
    for _ in range(3):
        assert isinstance(first, Continue)
        again = stories.step([first.state])[0]
        assert isinstance(again, Continue)
        assert stories.step([first.state]) == [again]
        first = again


@needs_stories
def test_the_call_of_a_dropped_text_ends_at_once(stories: Runner) -> None:
    before = set(threading.enumerate())
    gc.disable()  # a canceled job's cache must not wait for a collection of circles
    try:
        [step] = stories.step([stories.admit(a_prompt(max_new_tokens=60))])
        [thread] = set(threading.enumerate()) - before
        assert isinstance(step, Continue)
        del step
        thread.join(WAIT_S)
        assert not thread.is_alive()
    finally:
        gc.enable()


@needs_stories
def test_a_seed_tells_the_same_story_every_time_and_another_one_another(stories: Runner) -> None:
    same = [finish(stories, a_prompt(temperature=1.0, seed=5))[0] for _ in range(2)]
    beside = finish(stories, a_prompt(temperature=1.0, seed=6), a_prompt(temperature=1.0, seed=5))
    assert new(same[0]) == new(same[1]) == new(beside[1]) != new(beside[0])
    free = finish(stories, *(a_prompt(temperature=1.0) for _ in range(2)))
    assert new(free[0]) != new(free[1])


@pytest.mark.breadth
@needs_stories
def test_through_the_engine_stories_of_many_jobs_are_those_told_alone() -> None:
    model = a_model(STORIES, max_batch=4)
    asked = [a_prompt(text, max_new_tokens=20) for text in ("", "Tom had a dog", "The sun", "Lily", "A big box")]
    with closing(BatchingEngine(Runners.installed())) as engine:
        outputs = [out for out in engine.run(model, iter(asked), check=lambda: None) if not out.partial]
    with closing(load(STORIES)) as runner:
        assert [new(output) for output in outputs] == [new(finish(runner, prompt)[0]) for prompt in asked]


@needs_stories
@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ({}, "takes `input_ids`"),
        ({"input_ids": tokens(1)}, "`max_new_tokens` is a whole number of at least 1"),
        ({"input_ids": tokens(1), "max_new_tokens": True}, "`max_new_tokens` is"),
        ({"input_ids": tokens(1), "max_new_tokens": 5, "temperature": -1}, "`temperature` is a number of at least 0"),
        ({"input_ids": tokens(1), "max_new_tokens": 5, "temperature": float("nan")}, "`temperature` is"),
        ({"input_ids": tokens(1), "max_new_tokens": 5, "top_p": 0}, "`top_p` is a number above 0 and up to 1"),
        ({"input_ids": tokens(1), "max_new_tokens": 5, "seed": "x"}, "`seed` is a whole number of at least 0"),
        ({"input_ids": tokens(512), "max_new_tokens": 5}, "knows the tokens 0 to 511; the prompt has others"),
        (
            {"input_ids": tokens(*([1] * 500)), "max_new_tokens": 13},
            "context is 512 tokens: the prompt has 500 and 13 more are asked for",
        ),
        ({"input_ids": tokens(*([1] * 513)), "max_new_tokens": 1}, "takes at most 512 tokens, the prompt has 513"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(stories: Runner, prompt: dict[str, Any], sentence: str) -> None:
    kind = InvalidInput if prompt else ProcessorFailed
    with pytest.raises(kind, match=sentence):
        stories.admit(Prompt(prompt))


@pytest.mark.parametrize("made", [a_mistral, a_gpt2])
def test_other_kinds_of_networks_are_continued_as_by_the_library(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    torch.manual_seed(7)
    directory = made(tmp_path)
    ids = tokens(*range(3, 12))
    with closing(load(directory)) as runner:
        (output,) = finish(runner, Prompt({"input_ids": ids, "max_new_tokens": 20}))
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, local_files_only=True).eval()
    batch = torch.from_numpy(ids)[None]
    whole = network.generate(
        batch, attention_mask=torch.ones_like(batch), max_new_tokens=20, do_sample=False, pad_token_id=0
    )
    expected = whole[0, len(ids) :].tolist()
    ended = expected[-1] in (58, 59)
    assert new(output) == (expected[:-1] if ended else expected)
    assert output.data["finish_reason"] == ("stop" if ended else "length")


@needs_stories
def test_in_bfloat16_the_weights_take_half_the_memory_and_the_story_begins_the_same(stories: Runner) -> None:
    with closing(load(STORIES, dtype="bfloat16")) as runner:
        (output,) = finish(runner, a_prompt(max_new_tokens=20))
        assert runner.memory_bytes < 0.51 * stories.memory_bytes
    assert spoken(output).startswith("Once upon a time, there was a little")


class TestSampling:
    logits = torch.tensor([2.0, 0.5, 1.0, -1.0])

    def draw(self, count: int = 4000, **data: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        sampling = Sampling.of({"max_new_tokens": count, "seed": 11, **data})
        chosen = [sampling.choose(self.logits, position) for position in range(count)]
        return np.bincount(chosen, minlength=4) / count

    def test_without_a_temperature_the_likeliest_is_chosen(self) -> None:
        assert self.draw(10).tolist() == [1, 0, 0, 0]

    @pytest.mark.breadth(but=("0.5",))
    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_tokens_come_as_often_as_the_temperature_says(self, temperature: float) -> None:
        expected = torch.softmax(self.logits / temperature, dim=0).numpy()
        np.testing.assert_allclose(self.draw(temperature=temperature), expected, atol=0.03)

    @pytest.mark.breadth(but=("0.7",))
    @pytest.mark.parametrize("top_p", [0.1, 0.6, 0.7, 0.95])
    def test_top_p_keeps_the_tokens_that_the_library_keeps(self, top_p: float) -> None:
        warper = transformers.TopPLogitsWarper(top_p)
        kept = torch.softmax(warper(torch.zeros(1, 1, dtype=torch.long), self.logits[None])[0], dim=0).numpy()
        found = self.draw(temperature=1.0, top_p=top_p)
        assert ((found > 0) == (kept > 0)).all()
        np.testing.assert_allclose(found, kept, atol=0.03)
