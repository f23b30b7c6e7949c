"""Speech to text, token by token: a tiny Whisper with random weights, against the library's own `generate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Runner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.transformers.alignment import first_steps
from tests.support.hub import a_model, a_whisper, finish, load

pytestmark = pytest.mark.library

Segments = list[list[Any]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def whisper(source: Path) -> Iterator[Runner]:
    with closing(load(source)) as runner:
        yield runner


def a_recording(*, frames: int = 200, seed: int = 0, **data: Any) -> Prompt:
    """Return features as Whisper gets them: most are between -1 and 1.5, louder and softer."""
    random = np.random.default_rng(seed)
    loudness = np.repeat(random.uniform(-1, 1.5, (80, -(-frames // 10))), 10, axis=1)[:, :frames]
    features = (loudness + random.normal(size=(80, frames)) * 0.2).astype(np.float32)
    return Prompt({"features": features, "frames": frames, **data})


def theirs(source: Path, prompt: Prompt, **options: Any) -> Segments:
    """Return the library's own segments."""
    network: Any = transformers.WhisperForConditionalGeneration.from_pretrained(source, local_files_only=True).eval()
    features = torch.from_numpy(prompt.data["features"])[None]
    made = network.generate(features, return_timestamps=True, return_segments=True, **options)
    first = network.generation_config.no_timestamps_token_id + 1
    return [
        [float(found["start"]), float(found["end"]), [t for t in found["tokens"].tolist() if t < first]]
        for found in made["segments"][0]
    ]


def close_to(expected: Segments) -> list[Any]:
    return [[pytest.approx(start), pytest.approx(end), tokens] for start, end, tokens in expected]


def told(output: Output) -> Segments:
    segments: Segments = output.data["segments"]
    return segments


@pytest.mark.breadth
@pytest.mark.parametrize(("task", "seed"), [("transcribe", 0), ("translate", 1)])
def test_a_window_of_sound_has_the_library_s_segments(source: Path, whisper: Runner, task: str, seed: int) -> None:
    prompt = a_recording(seed=seed, task=task, language="de")
    (output,) = finish(whisper, prompt)
    assert told(output) == close_to(theirs(source, prompt, task=task, language="de"))
    assert len(told(output)) > 1, "the network says when something is over"
    assert output.data["language"] == "de"


def test_long_recordings_go_on_where_the_last_words_ended(source: Path, whisper: Runner) -> None:
    prompt = a_recording(frames=731, seed=2, language="en")
    (output,) = finish(whisper, prompt)
    assert told(output) == close_to(theirs(source, prompt, task="transcribe", language="en"))
    assert told(output)[-1][0] > 4


def their_spans(source: Path, prompt: Prompt) -> list[list[list[float]]]:
    """Return when the library hears the tokens of each segment: each from where the one before it was over."""
    network: Any = transformers.WhisperForConditionalGeneration.from_pretrained(source, local_files_only=True).eval()
    features = torch.from_numpy(prompt.data["features"])[None]
    asked = {"return_timestamps": True, "return_segments": True, "return_token_timestamps": True, "language": "de"}
    frames = torch.ones((1, prompt.data["frames"]), dtype=torch.long)
    made = network.generate(features, attention_mask=frames, task="transcribe", **asked)
    first = network.generation_config.no_timestamps_token_id + 1

    def times(found: dict[str, Any]) -> list[float]:
        said: list[float] = found["token_timestamps"].tolist()
        return said

    return [
        [
            [round(start, 2), round(end, 2)]
            for (start, end), token in zip(
                pairwise(found["token_timestamps"].tolist()), found["tokens"][1:], strict=True
            )
            if token < first
        ]
        for found in made["segments"][0]
    ]


@pytest.mark.breadth
@pytest.mark.parametrize(("frames", "seed"), [(200, 0), (200, 1), (171, 3), (731, 2), (1500, 4)])
def test_tokens_are_timed_as_the_library_times_them(source: Path, whisper: Runner, frames: int, seed: int) -> None:
    prompt = a_recording(frames=frames, seed=seed, language="de", words=True)
    (output,) = finish(whisper, prompt)
    assert [spans for *_, spans in told(output)] == their_spans(source, prompt)
    (without,) = finish(whisper, a_recording(frames=frames, seed=seed, language="de"))
    assert [segment for *segment, _ in told(output)] == told(without)


def test_words_come_window_by_window(whisper: Runner) -> None:
    state, heard = whisper.admit(a_recording(frames=731, seed=2, language="en", words=True)), []
    while isinstance(step := whisper.step([state])[0], Continue):
        state = step.state
        if step.partial is not None:
            heard.append(told(step.partial))
    assert len(heard) > 2
    assert all(len(tokens) == len(spans) for part in heard for *_, tokens, spans in part)


@settings(deadline=None)
@given(rows=st.integers(1, 6), columns=st.integers(1, 6), seed=st.integers(0, 100))
def test_the_cheapest_way_is_found(rows: int, columns: int, seed: int) -> None:
    costs = np.random.default_rng(seed).normal(size=(rows, columns))

    def cheapest(row: int, column: int) -> tuple[float, tuple[int, ...]]:
        """Look at every way to a cell; return its cost and where it enters each row."""
        if row == column == 0:
            return float(costs[0, 0]), (0,)
        before = []
        if column:
            before.append(cheapest(row, column - 1))
        for step in (0, 1) if row else ():
            if step <= column:
                cost, entered = cheapest(row - 1, column - step)
                before.append((cost, (*entered, column)))
        cost, entered = min(before)
        return cost + float(costs[row, column]), entered

    assert first_steps(costs) == list(cheapest(rows - 1, columns - 1)[1])


def test_words_are_refused_where_no_heads_follow_them(tmp_path: Path) -> None:
    source = a_whisper(tmp_path)
    with (
        closing(load(with_heads(source, None))) as runner,
        pytest.raises(InvalidInput, match="time segments only") as one,
    ):
        runner.admit(a_recording(words=True))
    assert [issue.pointer for issue in one.value.errors] == ["/input/timestamps"]
    for heads, words in (([[0, 2]], r"an alignment head \[0, 2\] that the network lacks"), ([0, 1], "no pairs")):
        with pytest.raises(ModelUnavailable, match=words):
            load(with_heads(source, heads))


def with_heads(source: Path, heads: Any) -> Path:
    path = source / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "alignment_heads": heads}))
    return source


def test_the_language_is_heard_as_the_library_hears_it(source: Path, whisper: Runner) -> None:
    network: Any = transformers.WhisperForConditionalGeneration.from_pretrained(source, local_files_only=True).eval()
    prompts = [a_recording(seed=seed) for seed in range(3)]
    tokens = network.detect_language(torch.from_numpy(np.stack([prompt.data["features"] for prompt in prompts])))
    codes = {token: name.strip("<|>") for name, token in network.generation_config.lang_to_id.items()}
    outputs = finish(whisper, *prompts)
    assert [output.data["language"] for output in outputs] == [codes[token] for token in tokens.tolist()]
    assert told(outputs[0]) == close_to(theirs(source, prompts[0], task="transcribe"))


@pytest.mark.breadth
def test_silence_at_the_end_is_not_listened_to(whisper: Runner) -> None:
    long = a_recording(frames=731, seed=2, language="en")
    (whole,) = finish(whisper, long)
    (output,) = finish(whisper, Prompt({**long.data, "frames": 150}))
    assert told(output) == told(whole)[: len(told(output))]
    assert told(output)[-1][0] < 2 < told(whole)[-1][0]


def test_partial_outputs_hold_the_segments_that_are_ended(whisper: Runner) -> None:
    state, heard = whisper.admit(a_recording(seed=1, language="de")), []
    while isinstance(step := whisper.step([state])[0], Continue):
        state = step.state
        if step.partial is not None:
            assert step.partial.partial
            heard.append(told(step.partial))
    whole = told(step.output)
    assert heard
    assert all(segments == whole[: len(segments)] for segments in heard)
    assert [len(segments) for segments in heard] == sorted(len(segments) for segments in heard)


@pytest.mark.breadth
def test_recordings_at_different_steps_do_not_touch_each_other(whisper: Runner) -> None:
    asked = [a_recording(seed=seed, language="fr") for seed in range(3)]
    alone = [finish(whisper, prompt)[0] for prompt in asked]
    late: list[Any] = [whisper.admit(asked[0])]
    for _ in range(3):
        late = [step.state for step in whisper.step(late) if isinstance(step, Continue)]
    ends = finish_states(whisper, [*late, *map(whisper.admit, asked[1:])])
    assert ends == alone


def finish_states(runner: Runner, states: list[Any]) -> list[Output]:
    ends: dict[int, Output] = {}
    places = dict(enumerate(states))
    while places:
        for place, step in zip(list(places), runner.step(list(places.values())), strict=True):
            if isinstance(step, Continue):
                places[place] = step.state
            else:
                ends[place] = step.output
                del places[place]
    return [ends[place] for place in range(len(states))]


@pytest.mark.parametrize("lost", [False, True])
def test_a_step_may_be_repeated(whisper: Runner, lost: bool) -> None:
    """The engine repeats its latest step after an error, which may have cost the window's cache."""
    prompt = again(3)
    state = whisper.admit(prompt)
    while isinstance(step := whisper.step([state])[0], Continue):
        if lost:
            state.held.close()
        else:
            assert whisper.step([state])[0] == step
        state = step.state
    assert [step.output] == [output for output in finish(whisper, prompt) if not output.partial]


def again(seed: int) -> Prompt:
    """Return a recording whose words are drawn by chance."""
    return Prompt({**a_recording(seed=seed).data, "temperature": 1.0, "seed": seed})


@pytest.mark.breadth
def test_through_the_engine_recordings_of_a_job_are_those_heard_alone(source: Path, whisper: Runner) -> None:
    asked = [a_recording(frames=20 + 90 * seed, seed=seed) for seed in range(5)]
    with closing(BatchingEngine(Runners.installed())) as engine:
        model = a_model(source, max_batch=4)
        outputs = [out for out in engine.run(model, iter(asked), check=lambda: None) if not out.partial]
    assert outputs == [finish(whisper, prompt)[0] for prompt in asked]


@pytest.mark.breadth
def test_a_network_of_one_language_is_asked_nothing(tmp_path: Path) -> None:
    source, prompt = a_whisper(tmp_path), a_recording(seed=1)
    path = source / "generation_config.json"
    known = {**json.loads(path.read_text()), "is_multilingual": False}
    path.write_text(json.dumps(known))
    with closing(load(source)) as runner:
        (with_languages,) = finish(runner, prompt)
    del known["lang_to_id"]
    path.write_text(json.dumps(known))
    with closing(load(source)) as runner:
        (output,) = finish(runner, prompt)
        assert output == with_languages
        assert output.data["language"] is None
        with pytest.raises(InvalidInput, match="translates nothing"):
            runner.admit(a_recording(task="translate"))
        with pytest.raises(InvalidInput, match="knows English only, not 'de'"):
            runner.admit(a_recording(language="de"))
    assert told(output) == close_to(theirs(source, prompt))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({"language": "xx"}, InvalidInput, "does not know the language 'xx'; it knows: de, en, fr"),
        ({"task": "sing"}, InvalidInput, "`task` is one of transcribe, translate"),
        ({"temperature": -1}, InvalidInput, "`temperature` is a number"),
        ({"frames": 0}, ProcessorFailed, "`frames` is the number of frames with audio"),
        ({"frames": 201}, ProcessorFailed, "`frames` is the number of frames with audio, from 1 to 200"),
        ({"features": np.zeros((128, 200), np.float32)}, InvalidInput, "features of 80 bands, the prompt has 128"),
        ({"features": np.zeros((80, 200))}, ProcessorFailed, "float32 array"),
    ],
)
def test_what_does_not_fit_is_refused(
    whisper: Runner, data: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        whisper.admit(Prompt({**a_recording().data, **data}))


def test_a_model_that_knows_no_timestamps_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    source = a_whisper(tmp_path)
    path = source / "generation_config.json"
    known = json.loads(path.read_text())
    del known["no_timestamps_token_id"]
    path.write_text(json.dumps(known))
    with pytest.raises(ModelUnavailable, match=r"generation_config\.json lacks the tokens of times"):
        load(source)


def test_another_kind_of_speech_model_is_refused_by_name(tmp_path: Path) -> None:
    config = {"model_type": "speech_to_text", "architectures": ["Speech2TextForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(
        ModelUnavailable, match=r"model_type 'speech_to_text' was not seen to answer .* only Whisper's networks"
    ):
        load(tmp_path, processor="speech-recognition")
