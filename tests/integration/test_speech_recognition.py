"""Recordings to text through the processor and a tiny Whisper, as the library's own pipeline writes them down."""

from __future__ import annotations

import wave
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import pre_tokenizers

from penstock.errors import MediaTooLarge, MediaUnreadable, ModelUnavailable
from penstock.models import Limits, Model
from penstock.processors.base import Output
from penstock.processors.registry import Registry
from penstock.processors.speech.passages import Loudness
from penstock.processors.testing import Finished, FolderSink, LocalFiles, check_processor
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.hub import a_model, a_whisper
from tests.support.recordings import film

RATE_HZ = 16_000
SOUNDS = Path(__file__).parents[3] / "shared" / "data" / "audio"
needs_sounds = pytest.mark.skipif(not SOUNDS.is_dir(), reason="needs ../shared/data/audio beside the checkout")


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_whisper(tmp_path_factory.mktemp("whisper"))


def check(
    engine: BatchingEngine, model: Model, request: Mapping[str, Any], other: Mapping[str, Any], **files: Path
) -> Finished:
    return check_processor(
        Registry.imported().processor_for(model),
        request,
        {f"media://{name}": path for name, path in files.items()},
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        other=other,
        limits=model.limits,
    )


def a_tune(seconds: float, *, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return sound of changing pitch and loudness, with a pause now and then."""
    random, count = np.random.default_rng(seed), int(seconds * RATE_HZ)
    pitches = np.repeat(random.uniform(100, 3000, count // 2000 + 1), 2000)[:count]
    loudness = np.repeat(random.uniform(0, 0.5, count // 1500 + 1), 1500)[:count]
    loudness[np.arange(count) % 24_000 < 6000] = 0
    noise = random.normal(size=count) * 0.05
    return ((np.sin(2 * np.pi * np.cumsum(pitches) / RATE_HZ) + noise) * loudness).astype(np.float32)


def write(path: Path, samples: np.ndarray[Any, np.dtype[np.float32]], rate_hz: int = RATE_HZ) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate_hz, len(samples), "NONE", ""))
        file.writeframes(np.rint(samples * 32767).astype("<i2").tobytes())
    return path


def pipeline_of(source: Path) -> Any:
    tokenizer = transformers.WhisperTokenizer.from_pretrained(source)
    features = transformers.WhisperFeatureExtractor.from_pretrained(source)
    return transformers.pipeline(
        "automatic-speech-recognition", model=str(source), tokenizer=tokenizer, feature_extractor=features
    )


def samples_of(path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def theirs(source: Path, path: Path) -> dict[str, Any]:
    """Return what the library's pipeline makes of German, whose own default is a search with five beams."""
    asked = {"language": "de", "task": "transcribe", "num_beams": 1, "max_new_tokens": 21}
    sound = {"raw": samples_of(path), "sampling_rate": RATE_HZ}
    found: dict[str, Any] = pipeline_of(source)(sound, return_timestamps=True, generate_kwargs=asked)
    return found


def their_words(source: Path, path: Path) -> list[tuple[str, float, float]]:
    """Return the words of the library's pipeline and their times."""
    asked = {"language": "de", "task": "transcribe", "num_beams": 1, "max_new_tokens": 21}
    sound = {"raw": samples_of(path), "sampling_rate": RATE_HZ}
    found = pipeline_of(source)(sound, return_timestamps="word", generate_kwargs=asked)
    return [(chunk["text"].strip(), *chunk["timestamp"]) for chunk in found["chunks"] if chunk["text"].strip()]


def data_of(done: Finished) -> Mapping[str, Any]:
    assert done.result.data is not None
    return done.result.data


def transcribed(engine: BatchingEngine, model: Model, path: Path, **request: Any) -> Finished:
    """Return what is made of a recording."""
    processor = Registry.imported().processor_for(model)
    wanted = processor.request.model_validate({"audio": "media://a", "language": "de", **request})
    prepared = processor.pre_process(wanted, LocalFiles({"media://a": path}, {}))
    with TemporaryDirectory() as folder:
        sink = FolderSink(Path(folder))
        outputs = engine.run(model, prepared.prompts, check=lambda: None, cost=prepared.cost)
        return Finished(processor.post_process(outputs, prepared.context, sink), sink.artifacts)


@torch.inference_mode()
def test_a_recording_is_written_down_as_by_the_library_s_pipeline(
    engine: BatchingEngine, source: Path, tmp_path: Path
) -> None:
    recording, other = write(tmp_path / "a.wav", a_tune(2)), write(tmp_path / "b.wav", a_tune(1.2, seed=1))
    model = a_model(source, processor="speech-recognition", max_batch=1)
    request = {"audio": "media://a", "language": "de", "outputs": ["json", "srt", "vtt"]}
    done = check(engine, model, request, {"audio": "media://b"}, a=recording, b=other)
    expected, found = theirs(source, recording), data_of(done)
    assert done.result.text == expected["text"]
    assert (found["language"], found["duration"]) == ("de", 2)
    assert [segment["text"] for segment in found["segments"]] == [chunk["text"].strip() for chunk in expected["chunks"]]
    times = [[min(time, 2) for time in chunk["timestamp"]] for chunk in expected["chunks"]]
    assert [[segment["start"], segment["end"]] for segment in found["segments"]] == times
    assert len(found["segments"]) > 1
    assert done.artifacts["transcript.vtt"][1].startswith(b"WEBVTT\n\n00:00:00.880 --> 00:00:01.000\n222\n")
    assert done.artifacts["transcript.srt"][1].startswith(b"1\n00:00:00,880 --> 00:00:01,000\n222\n")


@pytest.mark.breadth
@torch.inference_mode()
def test_a_passage_that_is_longer_than_a_window_goes_on_by_its_times(
    engine: BatchingEngine, source: Path, tmp_path: Path
) -> None:
    recording = write(tmp_path / "a.wav", a_tune(9.0041, seed=4))
    model = a_model(source, processor="speech-recognition", options={"passage_s": 60})
    assert transcribed(engine, model, recording).result.text == theirs(source, recording)["text"]


@pytest.mark.breadth(but=("6-5",))
@torch.inference_mode()
@pytest.mark.parametrize(("seconds", "seed"), [(2, 0), (1.7, 2), (5, 6), (6, 5)])
def test_words_are_timed_as_by_the_library_s_pipeline(
    engine: BatchingEngine, source: Path, tmp_path: Path, seconds: float, seed: int
) -> None:
    recording = write(tmp_path / "a.wav", a_tune(seconds, seed=seed))
    model = a_model(source, processor="speech-recognition", options={"passage_s": 60})
    done = transcribed(engine, model, recording, timestamps="word")
    words = [(word["text"], word["start"], word["end"]) for word in data_of(done)["words"]]
    assert words
    assert words == [
        (text, min(start, seconds), min(end, seconds)) for text, start, end in their_words(source, recording)
    ]
    without = transcribed(engine, model, recording)
    assert {name: found for name, found in data_of(done).items() if name != "words"} == data_of(without)


@pytest.mark.breadth
@torch.inference_mode()
def test_words_of_long_recordings_are_those_of_their_passages(
    engine: BatchingEngine, source: Path, tmp_path: Path
) -> None:
    samples = a_tune(7, seed=4)
    recording = write(tmp_path / "a.wav", samples)
    model = a_model(source, processor="speech-recognition", max_batch=4)
    loudness = Loudness(RATE_HZ)
    loudness.add(samples_of(recording))
    expected, at = [], 0
    for number, length in enumerate(loudness.passages(2)):
        alone = write(tmp_path / f"{number}.wav", samples[at : at + length])
        for word in data_of(transcribed(engine, model, alone, timestamps="word"))["words"]:
            times = [pytest.approx(word[name] + at / RATE_HZ, abs=0.002) for name in ("start", "end")]
            expected.append([word["text"], *times])
        at += length
    done = transcribed(engine, model, recording, timestamps="word")
    assert [[word["text"], word["start"], word["end"]] for word in data_of(done)["words"]] == expected
    assert "".join(word["text"] for word in data_of(done)["words"]) == "".join((done.result.text or "").split())


@torch.inference_mode()
def test_long_recordings_are_their_passages_one_after_another(
    engine: BatchingEngine, source: Path, tmp_path: Path
) -> None:
    samples = a_tune(7, seed=4)
    recording = write(tmp_path / "a.wav", samples)
    model = a_model(source, processor="speech-recognition", max_batch=1)
    done = transcribed(engine, model, recording)
    loudness = Loudness(RATE_HZ)
    loudness.add(samples_of(recording))
    lengths = loudness.passages(2)
    assert 4 <= len(lengths) <= 6
    expected, at = [], 0
    for number, length in enumerate(lengths):
        alone = transcribed(engine, model, write(tmp_path / f"{number}.wav", samples[at : at + length]))
        for segment in data_of(alone)["segments"]:
            times = [pytest.approx(segment[name] + at / RATE_HZ, abs=0.002) for name in ("start", "end")]
            expected.append([*times, segment["text"]])
        at += length
    found = [[segment["start"], segment["end"], segment["text"]] for segment in data_of(done)["segments"]]
    assert found == expected
    assert data_of(done)["duration"] == 7


@pytest.mark.breadth(but=("a.mp4-flac",))
@torch.inference_mode()
@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "flac"), ("a.mkv", "pcm_s16le")])
def test_a_late_sound_has_the_times_of_its_film(
    engine: BatchingEngine, source: Path, tmp_path: Path, name: str, codec: str
) -> None:
    samples = a_tune(4, seed=4)
    model = a_model(source, processor="speech-recognition", max_batch=1)
    request = {"timestamps": "word", "outputs": ["json", "srt"]}
    alone = transcribed(engine, model, write(tmp_path / "a.wav", samples), **request)
    late = transcribed(engine, model, film(tmp_path / name, codec, samples, sound_s=2.5), **request)
    assert late.result.text == alone.result.text
    assert data_of(alone)["segments"]
    assert data_of(alone)["words"]
    for part in ("segments", "words"):
        for one in data_of(alone)[part]:
            one["start"], one["end"] = pytest.approx(one["start"] + 2.5), pytest.approx(one["end"] + 2.5)
    assert data_of(late) == {**data_of(alone), "duration": 6.5}
    first = f"{data_of(late)['segments'][0]['start']:06.3f}".replace(".", ",")
    assert late.artifacts["transcript.srt"][1].decode().startswith(f"1\n00:00:{first}")


def test_words_are_told_while_they_are_written(source: Path, tmp_path: Path) -> None:
    model = a_model(source, processor="speech-recognition")
    processor = Registry.imported().processor_for(model)
    recording = write(tmp_path / "a.wav", a_tune(4))
    prepared = processor.pre_process(processor.request(audio="media://a"), LocalFiles({"media://a": recording}, {}))
    assert prepared.count == 3
    sink = FolderSink(tmp_path)
    heard: list[str] = []

    def outputs() -> Iterator[Output]:
        for passage, partials in enumerate([(1, 2), (0,), ()]):
            for count in partials:
                yield Output({"segments": segments(passage)[:count], "language": "de"}, partial=True)
                heard.append("".join(sink.said))
            yield Output({"segments": segments(passage), "language": "de"})
            heard.append("".join(sink.said))

    result = processor.post_process(outputs(), prepared.context, sink)
    assert heard == ["a", "a b", "a b", "a b", "a b a b", "a b a b a b"]
    assert result.text == "a b a b a b"


def segments(passage: int) -> list[list[Any]]:
    """Return " a", " b" as tokens of the tiny vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [[alphabet.index("Ġ"), alphabet.index(letter)] for letter in "ab"]
    return [[0.1 + passage / 100, 0.5, words[0]], [0.5, 0.9, words[1]]]


ERRORS = [
    ("absurd_header.wav", "1 channels at 1092676 Hz"),
    ("empty.wav", "it holds no samples"),
]


@needs_sounds
@pytest.mark.parametrize(("name", "words"), ERRORS)
def test_absurd_recordings_are_refused_and_the_next_one_is_written_down(
    engine: BatchingEngine, source: Path, name: str, words: str
) -> None:
    model = a_model(source, processor="speech-recognition")
    with pytest.raises(MediaUnreadable, match=words):
        transcribed(engine, model, SOUNDS / name)
    assert data_of(transcribed(engine, model, SOUNDS / "go_forward.wav"))["duration"] == pytest.approx(2.786, abs=0.01)


def test_more_seconds_than_the_model_takes_are_refused(engine: BatchingEngine, source: Path, tmp_path: Path) -> None:
    model = a_model(source, processor="speech-recognition", limits=Limits(max_seconds=2))
    with pytest.raises(MediaTooLarge, match="longer than 2 seconds"):
        transcribed(engine, model, write(tmp_path / "a.wav", a_tune(2.1)))
    assert transcribed(engine, model, write(tmp_path / "b.wav", a_tune(2))).result.text


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("preprocessor_config.json", "{}", "has no preprocessor_config.json"),
        ("preprocessor_config.json", '{"feature_extractor_type": "Wav2Vec2FeatureExtractor"}', "known is Whisper"),
        ("tokenizer.json", None, "lacks the file tokenizer.json"),
    ],
)
def test_a_directory_that_lacks_something_is_no_speech_model(
    tmp_path: Path, file: str, content: str | None, words: str
) -> None:
    source = a_whisper(tmp_path)
    (source / file).unlink() if content is None else (source / file).write_text(content)
    with pytest.raises(ModelUnavailable, match=words):
        Registry.imported().processor_for(a_model(source, processor="speech-recognition"))
