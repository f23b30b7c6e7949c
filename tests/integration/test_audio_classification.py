"""Recordings through tiny networks that classify them, as the library's own pipeline does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers import ASTFeatureExtractor

from penstock.errors import ConfigError, InvalidInput, MediaUnreadable, ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.registry import Registry
from penstock.processors.speech.classification import even_windows
from penstock.processors.speech.feature_extractors import FilterBank
from penstock.processors.testing import Finished, check_processor
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.integration.test_speech_recognition import RATE_HZ, a_tune, samples_of, write
from tests.support.hub import a_model, a_wav2vec2, a_whisper, an_ast, load
from tests.support.recordings import film

Make = Callable[..., Path]


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def classified(engine: BatchingEngine, model: Model, path: Path, other: Path, **request: Any) -> Mapping[str, Any]:
    done: Finished = check_processor(
        Registry.imported().processor_for(model),
        {"audio": "media://a", **request},
        {"media://a": path, "media://b": other},
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        other={"audio": "media://b"},
        limits=model.limits,
    )
    assert done.result.data is not None
    return done.result.data


def theirs(source: Path, samples: Any, **options: Any) -> list[dict[str, Any]]:
    """Return what the library's pipeline says, best first."""
    classify = transformers.pipeline("audio-classification", model=str(source), feature_extractor=str(source))
    found: list[dict[str, Any]] = classify(samples, **options)
    return [{"label": one["label"], "score": pytest.approx(one["score"], abs=1e-5)} for one in found]


def names_and_scores(labels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"label": one["label"], "score": one["score"]} for one in labels]


@pytest.mark.breadth(but=("1.2-a_wav2vec2-config0", "0.5-an_ast-config1"))
@torch.inference_mode()
@pytest.mark.parametrize(("make", "config"), [(a_wav2vec2, {}), (an_ast, {}), (a_wav2vec2, {"num_labels": 3})])
@pytest.mark.parametrize("seconds", [0.5, 1.2])
def test_a_recording_has_the_scores_of_the_library_s_pipeline(
    engine: BatchingEngine, tmp_path: Path, make: Make, config: dict[str, Any], seconds: float
) -> None:
    source = make(tmp_path / "model", **config)
    path, other = write(tmp_path / "a.wav", a_tune(seconds, seed=3)), write(tmp_path / "b.wav", a_tune(0.7, seed=4))
    model = a_model(source, processor="audio-classification", max_batch=1)
    found = classified(engine, model, path, other, top_k=3)
    expected = theirs(source, samples_of(path), top_k=3)
    assert names_and_scores(found["labels"]) == expected
    assert found["duration"] == seconds
    assert found["windows"] == [{"start": 0, "end": seconds, "labels": found["labels"]}]


@torch.inference_mode()
def test_classes_that_do_not_exclude_each_other_are_scored_each_by_itself(
    engine: BatchingEngine, tmp_path: Path
) -> None:
    source = an_ast(tmp_path / "model", problem_type="multi_label_classification")
    path = write(tmp_path / "a.wav", a_tune(1, seed=3))
    model = a_model(source, processor="audio-classification", max_batch=1)
    found = classified(engine, model, path, write(tmp_path / "b.wav", a_tune(0.7, seed=4)))
    assert names_and_scores(found["labels"]) == theirs(source, samples_of(path))
    assert sum(one["score"] for one in found["labels"]) != pytest.approx(1, abs=0.01)


@pytest.mark.breadth(but=("an_ast-options0-3",))
@torch.inference_mode()
@pytest.mark.parametrize(("make", "options", "windows"), [(an_ast, {}, 3), (a_wav2vec2, {"window_s": 1}, 4)])
def test_a_long_recording_is_heard_window_by_window(
    engine: BatchingEngine, tmp_path: Path, make: Make, options: dict[str, Any], windows: int
) -> None:
    source = make(tmp_path / "model")
    path, other = write(tmp_path / "a.wav", a_tune(3.5, seed=5)), write(tmp_path / "b.wav", a_tune(0.7, seed=4))
    model = a_model(source, processor="audio-classification", max_batch=1, options=options)
    found = classified(engine, model, path, other)
    samples, edges = samples_of(path), np.linspace(0, 3.5 * RATE_HZ, windows + 1).astype(int)
    alone = [theirs(source, samples[begin:end]) for begin, end in pairwise(edges)]
    assert [names_and_scores(window["labels"]) for window in found["windows"]] == alone
    times = [(window["start"], window["end"]) for window in found["windows"]]
    assert times == [(round(b / RATE_HZ, 3), round(e / RATE_HZ, 3)) for b, e in pairwise(edges)]
    for label in found["labels"]:
        scores = [one["score"] for window in found["windows"] for one in window["labels"] if one["id"] == label["id"]]
        assert label["score"] == pytest.approx(np.mean(scores))


@pytest.mark.breadth(but=("a.mp4-flac",))
@torch.inference_mode()
@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "flac"), ("a.mkv", "pcm_s16le")])
def test_a_late_sound_has_the_times_of_its_film(engine: BatchingEngine, tmp_path: Path, name: str, codec: str) -> None:
    source, samples = an_ast(tmp_path / "model"), a_tune(3.5, seed=5)
    plain, other = write(tmp_path / "a.wav", samples), write(tmp_path / "b.wav", a_tune(0.7, seed=4))
    model = a_model(source, processor="audio-classification", max_batch=1)
    alone = classified(engine, model, plain, other)
    late = classified(engine, model, film(tmp_path / name, codec, samples, sound_s=2.5), other)
    assert (late["duration"], late["labels"]) == (6, alone["labels"])
    assert [(window["start"], window["end"], window["labels"]) for window in late["windows"]] == [
        (pytest.approx(window["start"] + 2.5), pytest.approx(window["end"] + 2.5), window["labels"])
        for window in alone["windows"]
    ]


@given(samples=st.integers(1, 10**7), most=st.integers(400, 10**6))
def test_windows_are_all_of_a_recording_and_of_one_length_but_for_a_sample(samples: int, most: int) -> None:
    lengths = even_windows(samples, most)
    assert sum(lengths) == samples
    assert max(lengths) <= most
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("seconds", [0.025, 0.7, 1.28])
def test_bands_are_the_library_s(seconds: float) -> None:
    sound = a_tune(seconds, seed=6)
    extractor = ASTFeatureExtractor(num_mel_bins=64, max_length=128)
    [expected] = extractor(sound, sampling_rate=RATE_HZ, return_tensors="np")["input_values"]
    np.testing.assert_allclose(FilterBank(bands=64, frames=128)(sound), expected, atol=1e-4)


def test_a_recording_in_which_nothing_can_be_heard_is_refused(engine: BatchingEngine, tmp_path: Path) -> None:
    model = a_model(a_wav2vec2(tmp_path / "model"), processor="audio-classification")
    path = write(tmp_path / "a.wav", a_tune(0.02))
    with pytest.raises(MediaUnreadable, match=r"shorter than 0\.025 seconds"):
        classified(engine, model, path, path)


def test_another_kind_of_features_is_no_model(tmp_path: Path) -> None:
    source = a_wav2vec2(tmp_path)
    (source / "preprocessor_config.json").write_text('{"feature_extractor_type": "WhisperFeatureExtractor"}')
    with pytest.raises(ModelUnavailable, match="known are Wav2Vec2FeatureExtractor and ASTFeatureExtractor"):
        Registry.imported().processor_for(a_model(source, processor="audio-classification"))
    with pytest.raises(
        ModelUnavailable, match=r"model_type 'whisper' was not seen to answer .* reads features of its own"
    ):
        load(a_whisper(tmp_path / "whisper"), processor="audio-classification")


@pytest.mark.parametrize(("make", "window_s"), [(an_ast, 2), (a_wav2vec2, 601), (a_wav2vec2, "all")])
def test_a_window_that_the_network_cannot_hear_is_refused(tmp_path: Path, make: Make, window_s: Any) -> None:
    model = a_model(make(tmp_path), processor="audio-classification", options={"window_s": window_s})
    with pytest.raises(
        (ConfigError, ModelUnavailable), match=r"options\.window_s must be a number of seconds from 0\.1 to"
    ):
        Registry.imported().processor_for(model)


def test_what_does_not_fit_the_network_is_refused(tmp_path: Path) -> None:
    with closing(load(an_ast(tmp_path / "ast"))) as runner, pytest.raises(InvalidInput, match="128 frames of 64 bands"):
        runner.admit(Prompt({"sound": np.zeros(1000, np.float32)}))
    with closing(load(a_wav2vec2(tmp_path / "wav"))) as runner, pytest.raises(InvalidInput, match="takes samples"):
        runner.admit(Prompt({"sound": np.zeros((128, 64), np.float32)}))
