"""What recordings are to the speech processor: samples of any file, passages between pauses, features, subtitles."""

from __future__ import annotations

import tracemalloc
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import WhisperFeatureExtractor

from penstock.errors import MediaUnreadable
from penstock.models import Limits
from penstock.processors.speech.features import LogMel
from penstock.processors.speech.passages import Loudness, joined
from penstock.processors.speech.recording import read_sound
from penstock.subtitles import srt, vtt
from tests.recordings import RATE_HZ, a_tone, encode


def cut(path: Path, share: float) -> Path:
    """Keep so much of a file."""
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    return path


def read(path: Path) -> int:
    """Return how many samples a recording has."""
    return sum(map(len, read_sound(path, Limits(), RATE_HZ)))


@pytest.mark.parametrize(("name", "codec"), [("a.wav", "pcm_s16le"), ("a.mp3", "libmp3lame"), ("a.mkv", "libopus")])
def test_half_a_recording_is_no_shorter_recording(tmp_path: Path, name: str, codec: str) -> None:
    path = cut(encode(tmp_path / name, codec, a_tone(6, 48_000), 48_000), 0.5)
    with pytest.raises(MediaUnreadable, match=r"The recording is cut off: it says 6\.0 s and has about [23]\.\d s\."):
        read(path)


def test_a_header_that_is_a_little_wrong_is_nothing(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.wav", "pcm_s16le", a_tone(60, 16_000), 16_000)
    assert read(cut(path, 0.985)) == pytest.approx(59.1 * RATE_HZ, rel=0.001)
    with pytest.raises(MediaUnreadable, match="is cut off"):
        read(cut(path, 0.98))


@pytest.mark.parametrize("told", [0, 2**31 - 37, 2**32 - 1])
def test_what_is_written_to_a_pipe_ends_where_it_ends(tmp_path: Path, told: int) -> None:
    path = encode(tmp_path / "a.wav", "pcm_s16le", a_tone(3, 16_000), 16_000)
    whole = path.read_bytes()
    place = whole.index(b"data") + 4
    path.write_bytes(whole[:place] + told.to_bytes(4, "little") + whole[place + 4 :])
    assert read(path) == pytest.approx(3 * RATE_HZ, abs=100)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.wav", "pcm_s24le"), ("a.flac", "flac"), ("a.mp3", "libmp3lame"), ("a.ogg", "libopus"), ("a.m4a", "aac")],
)
def test_every_kind_of_file_sounds_the_same(tmp_path: Path, name: str, codec: str) -> None:
    path = encode(tmp_path / name, codec, a_tone(2, 48_000), 48_000)
    sound = np.concatenate(list(read_sound(path, Limits(), RATE_HZ)))
    assert len(sound) == pytest.approx(2 * RATE_HZ, abs=2000), "encoders fill up their last block"
    spectrum = np.abs(np.fft.rfft(sound[4000:20_000]))
    assert spectrum.argmax() == 440
    assert np.sqrt(np.mean(np.square(sound[4000:20_000]))) == pytest.approx(0.5 / np.sqrt(2), rel=0.06), (
        "LAME makes it softer"
    )


def test_what_is_no_recording_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "list.m3u8").write_bytes(b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")
    with pytest.raises(MediaUnreadable, match="The file is no recording that is taken here: WAV, FLAC, MP3"):
        next(read_sound(tmp_path / "list.m3u8", Limits(), RATE_HZ))


def test_samples_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    data = np.full(1600, np.nan, "<f4").tobytes()
    head = b"WAVEfmt \x10\0\0\0\x03\0\x01\0" + (16_000).to_bytes(4, "little") + (64_000).to_bytes(4, "little")
    body = head + b"\x04\0\x20\0data" + len(data).to_bytes(4, "little") + data
    (tmp_path / "nan.wav").write_bytes(b"RIFF" + len(body).to_bytes(4, "little") + body)
    with pytest.raises(MediaUnreadable, match="samples that are no numbers"):
        list(read_sound(tmp_path / "nan.wav", Limits(), RATE_HZ))


def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        for _ in range(6):
            file.writeframes(bytes(8000 * 2 * 60))
    tracemalloc.start()
    try:
        loudness = Loudness(RATE_HZ)
        for block in read_sound(path, Limits(), RATE_HZ):
            loudness.hear(block)
        lengths = loudness.passages(30)
        biggest = max(len(passage) for passage in joined(read_sound(path, Limits(), RATE_HZ), lengths))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (sum(lengths), biggest) == (6 * 60 * RATE_HZ, 30 * RATE_HZ)
    assert peak < 10 * 2**20 < sum(lengths) * 4


@settings(deadline=None)
@given(
    seconds=st.floats(0.001, 120),
    longest=st.sampled_from([1, 5, 30]),
    seed=st.integers(0, 5),
    block=st.integers(100, 40_000),
)
def test_passages_are_the_whole_recording_and_none_is_too_long(
    seconds: float, longest: int, seed: int, block: int
) -> None:
    rate_hz = 1000
    samples = np.random.default_rng(seed).normal(size=max(1, int(seconds * rate_hz))).astype(np.float32)
    blocks = [samples[at : at + block] for at in range(0, len(samples), block)]
    loudness = Loudness(rate_hz)
    for part in blocks:
        loudness.hear(part)
    lengths = loudness.passages(longest)
    assert sum(lengths) == len(samples)
    assert all(0 < length <= longest * rate_hz for length in lengths)
    assert all(length >= longest * rate_hz * 0.6 for length in lengths[:-1])
    np.testing.assert_array_equal(np.concatenate(list(joined(blocks, lengths))), samples)


def test_passages_end_in_pauses() -> None:
    samples = np.random.default_rng(0).normal(size=60 * RATE_HZ).astype(np.float32)
    for pause_s in (10, 23, 41, 55):
        samples[pause_s * RATE_HZ : int((pause_s + 0.5) * RATE_HZ)] *= 0.001
    loudness = Loudness(RATE_HZ)
    loudness.hear(samples)
    ends = np.cumsum(loudness.passages(30)) / RATE_HZ
    assert [round(end, 1) for end in ends[:2]] == [
        pytest.approx(23.3, abs=0.2),
        pytest.approx(pytest.approx(50, abs=4)),
    ]


@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("seconds", [3.01, 30, 43.7])
def test_features_are_the_library_s(seconds: float, bands: int) -> None:
    random, count = np.random.default_rng(0), int(seconds * RATE_HZ)
    sound = (random.normal(size=count) * np.repeat(random.uniform(0, 0.3, count // 999 + 1), 999)[:count]).astype(
        np.float32
    )
    theirs = WhisperFeatureExtractor(feature_size=bands)
    longer = {} if seconds <= 30 else {"truncation": False, "padding": "longest"}
    [expected] = theirs(sound, sampling_rate=RATE_HZ, return_tensors="np", **longer)["input_features"]
    np.testing.assert_allclose(LogMel(bands)(sound), expected, atol=5e-5)


SEGMENTS = [
    {"start": 0.0, "end": 1.5, "text": "One & <two>"},
    {"start": 3661.25, "end": 3662.999, "text": "three -->\n\nfour"},
]


def test_subtitles_as_subrip() -> None:
    assert srt(SEGMENTS) == (
        "1\n00:00:00,000 --> 00:00:01,500\nOne & <two>\n\n2\n01:01:01,250 --> 01:01:02,999\nthree -> four\n"
    )


def test_subtitles_as_webvtt() -> None:
    assert vtt(SEGMENTS) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne &amp; &lt;two>\n\n01:01:01.250 --> 01:01:02.999\nthree -> four\n"
    )
