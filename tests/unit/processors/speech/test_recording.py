"""Recordings in the speech processor: samples of any file, passages between pauses, features, subtitles."""

from __future__ import annotations

import tracemalloc
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import WhisperFeatureExtractor

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.limits import MAX_SECONDS
from penstock.processors.speech.log_mel import LogMel
from penstock.processors.speech.passages import Loudness, joined
from penstock.processors.speech.recording import read_audio, sound_begin_s
from penstock.processors.speech.subtitles import srt, vtt
from tests.support.recordings import RATE_HZ, a_tone, encode, film


def cut(path: Path, share: float) -> Path:
    """Truncate a file."""
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    return path


def read(path: Path) -> int:
    """Return the number of a recording's samples."""
    return sum(map(len, read_audio(path, Limits(), RATE_HZ)))


@pytest.mark.parametrize(("name", "codec"), [("a.wav", "pcm_s16le"), ("a.mkv", "libopus")])
def test_half_a_recording_is_no_shorter_recording(tmp_path: Path, name: str, codec: str) -> None:
    path = cut(encode(tmp_path / name, codec, a_tone(6, 48_000), 48_000), 0.5)
    with pytest.raises(
        MediaUnreadable,
        match=r"The recording is cut off: its header declares 6\.0 s and the file holds about [23]\.\d s\.",
    ):
        read(path)


def test_a_recording_has_a_longest_length_in_every_model(tmp_path: Path) -> None:
    path, rate_hz, part = tmp_path / "a.mkv", 1000, np.zeros((1, 600_000), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_u8", rate=rate_hz, layout="mono")
        for number in range(MAX_SECONDS * rate_hz // part.shape[1] + 1):  # packets of ten minutes
            frame = av.AudioFrame.from_ndarray(part, format="u8", layout="mono")
            frame.rate, frame.pts = rate_hz, number * part.shape[1]
            container.mux(stream.encode(frame))
    with pytest.raises(MediaTooLarge, match=r"longer than 14400 seconds, .* without `limits\.max_seconds`"):
        sum(map(len, read_audio(path, Limits(), rate_hz)))
    assert sum(map(len, read_audio(path, Limits(max_seconds=2 * MAX_SECONDS), rate_hz))) == 15_000 * rate_hz


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
    sound = np.concatenate(list(read_audio(path, Limits(), RATE_HZ)))
    assert len(sound) == pytest.approx(2 * RATE_HZ, abs=2000), "encoders fill up their last block"
    spectrum = np.abs(np.fft.rfft(sound[4000:20_000]))
    assert spectrum.argmax() == 440
    assert np.sqrt(np.mean(np.square(sound[4000:20_000]))) == pytest.approx(0.5 / np.sqrt(2), rel=0.06), (
        "LAME makes it softer"
    )


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "aac"), ("a.mkv", "libopus"), ("a.mkv", "aac")])
@pytest.mark.parametrize("pictures_s", [0, 1000])
def test_a_late_sound_is_timed_from_the_beginning_of_its_film(
    tmp_path: Path, name: str, codec: str, pictures_s: float
) -> None:
    path = film(tmp_path / name, codec, a_tone(3, 48_000), 48_000, sound_s=pictures_s + 2.5, pictures_s=pictures_s)
    sound = np.concatenate(list(read_audio(path, Limits(), RATE_HZ)))
    silence_s = np.argmax(np.abs(sound) > 0.1) / RATE_HZ  # encoders begin with some silence
    assert sound_begin_s(path) + silence_s == pytest.approx(2.5, abs=0.01)


def test_a_sound_that_is_not_late_begins_with_its_file(tmp_path: Path) -> None:
    sound = a_tone(3, 48_000)
    assert sound_begin_s(film(tmp_path / "a.mp4", "aac", sound, 48_000)) == 0
    assert sound_begin_s(film(tmp_path / "b.mkv", "aac", sound, 48_000, pictures_s=2.5)) == 0
    for name, codec in (("a.wav", "pcm_s16le"), ("a.mp3", "libmp3lame"), ("a.m4a", "aac"), ("a.ogg", "libopus")):
        assert sound_begin_s(encode(tmp_path / name, codec, sound, 48_000)) == 0


def with_cover(path: Path, plain: Path) -> Path:
    """Copy a recording and add a picture, which becomes its second track."""
    cover = Image.new("RGB", (8, 8))
    with av.open(str(plain)) as source, av.open(str(path), "w") as container:
        track = container.add_stream_from_template(source.streams.audio[0])
        picture: Any = container.add_stream("png", width=8, height=8, pix_fmt="rgb24")
        picture.disposition = Disposition.attached_pic
        container.mux(picture.encode(av.VideoFrame.from_image(cover)))
        for packet in source.demux(source.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = track
                container.mux(packet)
    return path


@pytest.mark.parametrize(("name", "codec"), [("a.mp3", "libmp3lame"), ("a.mp4", "aac"), ("a.flac", "flac")])
def test_a_cover_is_not_heard(tmp_path: Path, name: str, codec: str) -> None:
    plain = encode(tmp_path / f"plain-{name}", codec, a_tone(6), RATE_HZ)
    assert read(with_cover(tmp_path / name, plain)) == pytest.approx(6 * RATE_HZ, abs=2000)


@pytest.mark.parametrize("name", ["a.mka", "a.m4a"])
def test_of_two_tracks_the_first_is_heard(tmp_path: Path, name: str) -> None:
    plain = encode(tmp_path / "plain.m4a", "aac", a_tone(6), RATE_HZ)
    other = encode(tmp_path / "other.m4a", "aac", a_tone(3, pitch_hz=880), RATE_HZ)
    path = tmp_path / name
    with av.open(str(path), "w") as container, av.open(str(plain)) as first, av.open(str(other)) as second:
        sources = [(source, container.add_stream_from_template(source.streams.audio[0])) for source in (first, second)]
        for source, track in sources:
            for packet in source.demux():
                if packet.dts is not None:
                    packet.stream = track
                    container.mux(packet)
    sound = np.concatenate(list(read_audio(path, Limits(), RATE_HZ)))
    assert len(sound) == pytest.approx(6 * RATE_HZ, abs=2000)
    assert np.abs(np.fft.rfft(sound[4000:20_000])).argmax() == 440


def test_a_cover_is_no_beginning(tmp_path: Path) -> None:
    plain = encode(tmp_path / "b.mp3", "libmp3lame", a_tone(1), RATE_HZ)
    path = with_cover(tmp_path / "a.mp3", plain)
    with av.open(str(path)) as written:
        assert written.streams.video[0].disposition & Disposition.attached_pic
        assert written.streams.audio[0].start_time
    assert sound_begin_s(path) == 0


def test_what_is_no_recording_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "list.m3u8").write_bytes(b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")
    with pytest.raises(MediaUnreadable, match="The file is not a supported recording: supported are WAV, FLAC, MP3"):
        next(read_audio(tmp_path / "list.m3u8", Limits(), RATE_HZ))


def test_samples_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    data = np.full(1600, np.nan, "<f4").tobytes()
    head = b"WAVEfmt \x10\0\0\0\x03\0\x01\0" + (16_000).to_bytes(4, "little") + (64_000).to_bytes(4, "little")
    body = head + b"\x04\0\x20\0data" + len(data).to_bytes(4, "little") + data
    (tmp_path / "nan.wav").write_bytes(b"RIFF" + len(body).to_bytes(4, "little") + body)
    with pytest.raises(MediaUnreadable, match="samples that are not finite numbers"):
        list(read_audio(tmp_path / "nan.wav", Limits(), RATE_HZ))


@pytest.mark.breadth
def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        for _ in range(6):
            file.writeframes(bytes(8000 * 2 * 60))
    tracemalloc.start()
    try:
        loudness = Loudness(RATE_HZ)
        for block in read_audio(path, Limits(), RATE_HZ):
            loudness.add(block)
        lengths = loudness.passages(30)
        biggest = max(len(passage) for passage in joined(read_audio(path, Limits(), RATE_HZ), lengths))
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
        loudness.add(part)
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
    loudness.add(samples)
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
