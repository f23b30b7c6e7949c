"""Texts in shared passes: a small trained model and tiny random ones, against the library's own `generate`."""

from __future__ import annotations

import gc
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock.errors import InvalidInput, ModelUnavailable, OutOfMemory, ProcessorFailed
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Continue, Runner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.transformers.continuous import ContinuousRunner, PagedText, shares
from tests.support.hub import STORIES, a_model, a_vit, finish, load, needs_stories, save, tokens
from tests.support.language import a_gpt2, a_mistral, a_prompt, generated, new, spoken
from tests.support.polling import wait_for

BEGINNINGS = ("", "Tom had a dog", "The sun was", "Lily", "A big box of toys fell", "One day", "He", "She ran to the")
CONTINUOUS = {"batching": "continuous"}


def load_continuous(directory: Path, **fields: Any) -> ContinuousRunner:
    runner = load(directory, **{"max_batch": 8, **fields, "options": {**CONTINUOUS, **fields.get("options", {})}})
    assert isinstance(runner, ContinuousRunner)
    return runner


@pytest.fixture(scope="module")
def stories() -> Iterator[ContinuousRunner]:
    with closing(load_continuous(STORIES)) as runner:
        yield runner


@pytest.fixture(autouse=True)
def _all_pages_come_back(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "stories" in request.fixturenames:
        assert request.getfixturevalue("stories").pages.free_share == 1


def in_turn(runner: Runner, prompts: list[Prompt], *, apart: int) -> list[list[int]]:
    """Return what follows prompts of which each comes so many steps after the one before."""
    states: dict[int, Any] = {}
    ends: dict[int, list[int]] = {}
    step = 0
    while len(ends) < len(prompts):
        if step % apart == 0 and (came := step // apart) < len(prompts):
            states[came] = runner.admit(prompts[came])
        for at, advanced in zip(list(states), runner.step(list(states.values())), strict=True):
            if isinstance(advanced, Continue):
                states[at] = advanced.state
            else:
                ends[at] = new(advanced.output)
                del states[at]
        step += 1
    return [ends[at] for at in range(len(prompts))]


@pytest.mark.breadth
@needs_stories
def test_the_story_is_the_library_s(stories: ContinuousRunner) -> None:
    prompt = a_prompt(max_new_tokens=60)
    (output,) = finish(stories, prompt)
    assert new(output) == generated(prompt, do_sample=False)
    assert output.data["finish_reason"] == "length"
    assert all(type(token) is int for token in new(output))


@pytest.mark.breadth(but=("1",))
@needs_stories
@pytest.mark.parametrize("apart", [1, 4])
def test_stories_that_come_one_after_the_other_are_the_library_s(stories: ContinuousRunner, apart: int) -> None:
    asked = [a_prompt(text, max_new_tokens=20 + 3 * at) for at, text in enumerate(BEGINNINGS)]
    assert in_turn(stories, asked, apart=apart) == [generated(prompt, do_sample=False) for prompt in asked]


@needs_stories
def test_partial_outputs_hold_all_tokens_so_far(stories: ContinuousRunner) -> None:
    state, heard = stories.admit(a_prompt(max_new_tokens=5)), []
    while isinstance(step := stories.step([state])[0], Continue):
        assert step.partial is not None
        heard.append(step.partial.data["token_ids"])
        state = step.state
    assert heard == [new(step.output)[:count] for count in range(1, 5)]


@needs_stories
def test_a_step_may_be_repeated_from_the_same_states(stories: ContinuousRunner) -> None:
    states = [stories.admit(a_prompt(text, max_new_tokens=8, temperature=1.0, seed=3)) for text in BEGINNINGS[:2]]
    for _ in range(6):
        once, again = stories.step(states), stories.step(states)
        assert [step.state.new for step in once] == [step.state.new for step in again]  # type: ignore[union-attr]
        states = [step.state for step in again]  # type: ignore[union-attr]


@needs_stories
def test_a_seed_tells_the_story_that_it_tells_without_neighbours(stories: ContinuousRunner) -> None:
    asked = [
        a_prompt(text, max_new_tokens=20, temperature=0.8, top_p=0.9, seed=at) for at, text in enumerate(BEGINNINGS)
    ]
    with closing(load(STORIES)) as alone:
        assert [*map(new, finish(stories, *asked))] == [new(finish(alone, prompt)[0]) for prompt in asked]


@needs_stories
def test_through_the_engine_one_job_leaves_and_the_others_do_not_notice() -> None:
    model = a_model(STORIES, max_batch=8, options=CONTINUOUS)
    asked = [a_prompt(text, max_new_tokens=20 + 5 * at) for at, text in enumerate(BEGINNINGS)]
    expected = [generated(prompt, do_sample=False) for prompt in asked]
    together = threading.Barrier(len(asked))
    kept = Keeping()
    with closing(BatchingEngine(Runners.of({"transformers": kept}))) as engine:
        engine.load(model, check=lambda: None)

        def job(at: int) -> list[int]:
            together.wait()
            with closing(engine.run(model, iter([asked[at]]), check=lambda: None)) as outputs:
                return next(new(out) for out in outputs if not out.partial or (at == 3 and len(new(out)) > 5))

        with ThreadPoolExecutor(len(asked)) as pool:
            found = list(pool.map(job, range(len(asked))))
        assert len(found[3]) < len(expected[3])
        assert found[:3] + found[4:] == expected[:3] + expected[4:]
        assert kept.runner.pages.free_share == 1


@needs_stories
def test_a_text_that_is_left_gives_its_pages_back_though_nothing_else_runs() -> None:
    kept = Keeping()
    model = a_model(STORIES, options=CONTINUOUS)
    with closing(BatchingEngine(Runners.of({"transformers": kept}))) as engine:
        with closing(engine.run(model, iter([a_prompt(max_new_tokens=400)]), check=lambda: None)) as outputs:
            assert next(outputs).partial
        wait_for(lambda: kept.runner.pages.free_share == 1, "pages of nobody's text are not free")


class Keeping:
    """Loads as the service does, and keeps the runner for a look."""

    runner: ContinuousRunner

    def __call__(self, model: Any) -> Runner:
        loaded = Runners.installed().load(model)
        assert isinstance(loaded, ContinuousRunner)
        self.runner = loaded
        return loaded


@needs_stories
def test_a_text_without_room_waits_until_there_is_some() -> None:
    asked = [a_prompt(text, max_new_tokens=50) for text in BEGINNINGS]
    with closing(load_continuous(STORIES, options={"cache_tokens": 192})) as runner:
        states = [runner.admit(prompt) for prompt in asked]
        first = runner.step(states)
        assert 1 < sum(isinstance(step, Continue) and step.partial is not None for step in first) < len(asked)
        del states, first
        assert [*map(new, finish(runner, *asked))] == [generated(prompt, do_sample=False) for prompt in asked]
        assert runner.pages.free_share == 1


@needs_stories
def test_a_text_that_waits_is_not_overtaken() -> None:
    with closing(load_continuous(STORIES, options={"cache_tokens": 192})) as runner:
        sizes = (100, 150, 10)
        states = [runner.admit(Prompt({"input_ids": tokens(1), "max_new_tokens": size})) for size in sizes]
        steps = runner.step(states)
        assert [isinstance(step, Continue) and step.partial is not None for step in steps] == [True, False, False]


@needs_stories
@pytest.mark.parametrize(
    ("tokens_given", "more", "sentence"),
    [
        (500, 13, "context is 512 tokens: the prompt has 500 and 13 more are asked for"),
        (513, 1, "takes at most 512 tokens, the prompt has 513"),
    ],
)
def test_a_prompt_that_is_too_long_is_refused(
    stories: ContinuousRunner, tokens_given: int, more: int, sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        stories.admit(Prompt({"input_ids": tokens(*[1] * tokens_given), "max_new_tokens": more}))


@needs_stories
def test_embeddings_are_refused(stories: ContinuousRunner) -> None:
    prompt = Prompt({"inputs_embeds": np.zeros((3, 64), np.float32), "max_new_tokens": 5})
    with pytest.raises(InvalidInput, match="takes tokens, and no embeddings"):
        stories.admit(prompt)


@needs_stories
def test_a_prompt_that_never_has_room_is_refused() -> None:
    with closing(load_continuous(STORIES, options={"cache_tokens": 128})) as runner:
        with pytest.raises(InvalidInput, match="room for texts of 128 tokens: the prompt has 100 and 29 more"):
            runner.admit(Prompt({"input_ids": tokens(*[1] * 100), "max_new_tokens": 29}))
        runner.admit(Prompt({"input_ids": tokens(*[1] * 100), "max_new_tokens": 28}))


def a_llama(folder: Path, *, kind: str = "Llama", **config: Any) -> Path:
    small = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    known = {"initializer_range": 0.5, "max_position_embeddings": 2048, "eos_token_id": 59, "pad_token_id": 0}
    made = getattr(transformers, f"{kind}Config")(**{**small, **heads, **known, **config})
    return save(getattr(transformers, f"{kind}ForCausalLM")(made), folder)


def a_qwen(folder: Path) -> Path:
    return a_llama(folder, kind="Qwen2")


def a_gemma(folder: Path) -> Path:
    """Save one whose layers differ: every second one slides."""
    return a_llama(folder, kind="Gemma2", head_dim=4, sliding_window=6)


def the_library_s(directory: Path, *prompts: Prompt) -> list[list[int]]:
    """Return the library's own continuations without end tokens."""
    ends = json.loads((directory / "generation_config.json").read_text())["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    made = [generated(prompt, directory, do_sample=False, pad_token_id=0) for prompt in prompts]
    return [tokens[:-1] if tokens[-1] in ends else tokens for tokens in made]


@pytest.mark.breadth
@pytest.mark.parametrize("made", [a_llama, a_qwen, a_gemma, a_mistral, a_gpt2])
def test_networks_of_many_kinds_go_on_as_by_the_library(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    torch.manual_seed(7)
    directory = made(tmp_path)
    lengths = (12, 3, 30, 7, 19, 4, 25, 9)
    asked = [Prompt({"input_ids": tokens(*range(3, 3 + n)), "max_new_tokens": 20}) for n in lengths]
    with closing(load_continuous(directory)) as runner:
        assert in_turn(runner, asked, apart=2) == the_library_s(directory, *asked)
        assert runner.pages.free_share == 1


@pytest.mark.breadth(but=("a_gemma",))
@pytest.mark.parametrize("made", [a_llama, a_gemma])
def test_a_long_prompt_is_read_in_parts_while_others_go_on(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    torch.manual_seed(8)
    directory = made(tmp_path)
    long, short = (
        Prompt({"input_ids": tokens(*[3 + n % 50 for n in range(count)]), "max_new_tokens": 10}) for count in (1300, 9)
    )
    with closing(load_continuous(directory)) as runner:
        states = [runner.admit(short), runner.admit(long)]
        for written in range(1, 3):
            steps = runner.step(states)
            states = [step.state for step in steps if isinstance(step, Continue)]
            assert [len(state.new) for state in states] == [written, 0]
        assert [*map(new, finish(runner, long, short))] == the_library_s(directory, long, short)


@pytest.mark.breadth(but=("a_gemma",))
@pytest.mark.parametrize("made", [a_llama, a_gemma])
def test_a_pass_that_fails_half_way_spoils_nothing(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    torch.manual_seed(9)
    directory = made(tmp_path)
    prompt = Prompt({"input_ids": tokens(*[3 + n % 50 for n in range(600)]), "max_new_tokens": 6})
    with closing(load_continuous(directory)) as runner:
        state, failures = runner.admit(prompt), 0
        fails = Failing(runner.network.model.layers[1], torch.OutOfMemoryError("CUDA out of memory"), every=3)
        while True:
            try:
                step = runner.step([state])[0]
            except OutOfMemory:
                failures += 1
                continue
            if not isinstance(step, Continue):
                break
            state = step.state
        fails.hook.remove()
        assert failures > 1
        assert [new(step.output)] == the_library_s(directory, prompt)


class Failing:
    """A layer that fails every so many times."""

    def __init__(self, layer: torch.nn.Module, error: Exception, *, every: int) -> None:
        self.hook = layer.register_forward_pre_hook(lambda *_: self.look())
        self.error, self.every, self.calls = error, every, 0

    def look(self) -> None:
        self.calls += 1
        if self.calls % self.every == 0:
            raise self.error


@needs_stories
def test_where_memory_runs_out_batches_are_halved_and_the_stories_are_the_same() -> None:
    asked = [a_prompt(text, max_new_tokens=12) for text in BEGINNINGS]
    kept = Keeping()
    with closing(BatchingEngine(Runners.of({"transformers": kept}))) as engine:
        model = a_model(STORIES, max_batch=8, options=CONTINUOUS)
        engine.load(model, check=lambda: None)

        def refuse(_network: Any, _given: Any, told: dict[str, Any]) -> None:
            if len(told["cu_seq_lens_q"]) > 5:
                raise torch.OutOfMemoryError("CUDA out of memory")

        kept.runner.network.register_forward_pre_hook(refuse, with_kwargs=True)
        outputs = [new(out) for out in engine.run(model, iter(asked), check=lambda: None) if not out.partial]
        assert outputs == [generated(prompt, do_sample=False) for prompt in asked]
        assert engine.batch_sizes()["tiny"] <= 4


def test_a_text_whose_numbers_are_none_fails_alone(tmp_path: Path) -> None:
    torch.manual_seed(10)
    directory, kept = a_llama(tmp_path), Keeping()
    asked = [Prompt({"input_ids": tokens(*range(3, 4 + n)), "max_new_tokens": 12}) for n in range(6)]
    asked[2] = Prompt({"input_ids": tokens(1, 58, 7), "max_new_tokens": 12})
    with closing(BatchingEngine(Runners.of({"transformers": kept}))) as engine:
        model = a_model(directory, max_batch=8, options=CONTINUOUS)
        engine.load(model, check=lambda: None)
        kept.runner.network.model.embed_tokens.weight.data[58] = float("nan")

        def job(at: int) -> list[int] | None:
            try:
                return [new(out) for out in engine.run(model, iter([asked[at]]), check=lambda: None)][-1]
            except ProcessorFailed:
                return None

        with ThreadPoolExecutor(len(asked)) as pool:
            found = list(pool.map(job, range(len(asked))))
        whole = the_library_s(directory, *asked)
        assert found == [*whole[:2], None, *whole[3:]]
        assert all(58 not in told for told in whole)
        wait_for(lambda: kept.runner.pages.free_share == 1, "pages of nobody's text are not free")


@needs_stories
def test_pages_count_as_the_model_s_memory_and_go_with_it() -> None:
    runner = load_continuous(STORIES, options={"cache_tokens": 4096})
    cache = weakref.ref(runner.pages._cache.cache_tensor)
    with closing(load(STORIES)) as alone:
        # 5 layers, 4 heads of 8 numbers for keys and as many for values, 4 bytes each.
        assert runner.memory_bytes >= alone.memory_bytes + 4096 * 5 * 4 * 8 * 2 * 4
    runner.step([runner.admit(a_prompt())])
    runner.close()
    gc.collect()
    assert cache() is None
    assert all(weight.is_meta for weight in runner.network.parameters())


@needs_stories
def test_pages_that_the_budget_does_not_hold_are_refused() -> None:
    model = a_model(STORIES, options={**CONTINUOUS, "cache_tokens": 8192})
    with (
        closing(BatchingEngine(Runners.installed(), memory_bytes=5 * 2**20)) as engine,
        pytest.raises(ModelUnavailable, match="bytes of memory, and models may take 5,242,880 here"),
    ):
        engine.load(model, check=lambda: None)


@needs_stories
def test_pages_that_the_machine_does_not_hold_are_too_much_memory() -> None:
    with pytest.raises(OutOfMemory, match="no room for a cache of 1,000,000,000,000 tokens"):
        load_continuous(STORIES, options={"cache_tokens": 10**12})


@needs_stories
def test_in_bfloat16_the_story_begins_the_same() -> None:
    with closing(load_continuous(STORIES, dtype="bfloat16")) as runner:
        outputs = finish(runner, a_prompt(max_new_tokens=20), a_prompt("Tom had", max_new_tokens=20))
    assert spoken(outputs[0]).startswith("Once upon a time, there was a little")


def test_a_network_that_ignores_pages_is_refused(tmp_path: Path) -> None:
    config = transformers.BloomConfig(vocab_size=60, hidden_size=16, n_layer=2, n_head=2, initializer_range=0.5)
    directory = save(transformers.BloomForCausalLM(config), tmp_path)
    with pytest.raises(ModelUnavailable, match=r"BloomForCausalLM (computes other logits|continuously).*: leave out"):
        load_continuous(directory)
    load(directory).close()


def test_a_network_that_the_library_cannot_batch_is_refused(tmp_path: Path) -> None:
    directory = a_llama(tmp_path, kind="StableLm")
    with pytest.raises(ModelUnavailable, match="transformers cannot batch StableLmForCausalLM continuously"):
        load_continuous(directory)
    config = transformers.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(ModelUnavailable, match="MambaForCausalLM keeps no key-value cache"):
        load_continuous(save(transformers.MambaForCausalLM(config), tmp_path / "mamba"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batching": "static"}, "`options.batching` is 'continuous' or left out, not 'static'"),
        ({"batching": "continuous", "cache_tokens": 0}, "`options.cache_tokens` is a number of tokens, not 0"),
        ({"batching": "continuous", "cache_tokens": True}, "`options.cache_tokens` is a number of tokens, not True"),
    ],
)
def test_options_are_checked_before_weights_are_read(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelUnavailable, match=sentence):
        Runners.installed().check(a_model(a_llama(tmp_path), options=options))


def test_another_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "penstock.workers.engine.transformers.continuous", None)
    with pytest.raises(ModelUnavailable, match=f"5.23 and 5.24, and {transformers.__version__} is installed"):
        load(a_llama(tmp_path), options=CONTINUOUS)


def test_only_texts_that_go_on_are_batched_so(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="is for the task text-generation, not image-classification"):
        Runners.installed().check(a_model(a_vit(tmp_path), options=CONTINUOUS))


def test_growing_texts_always_go_and_prompts_share_what_is_left() -> None:
    assert shares([1, 700, 1, 300], 512) == [1, 510, 1, 0]
    assert shares([200, 1, 300, 5], 512) == [200, 1, 300, 5]
    assert shares([1, 1, 9], 2) == [1, 1, 0]
    assert shares([], 512) == []


@needs_stories
def test_a_text_s_parts_go_on_from_its_prompt_to_what_is_new(stories: ContinuousRunner) -> None:
    state = stories.admit(a_prompt())
    text = PagedText((1, 2, 3), state.sampling, state.place, new=(4, 5))
    assert (len(text), text.part(0, 2), text.part(2, 2), text.part(4, 9)) == (5, (1, 2), (3, 4), (5,))
