"""Recordings cut off at any byte: the rest is rejected, unless its format declares no end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import MediaUnreadable
from penstock.models import Limits
from penstock.processors.speech.recording import read_audio
from tests.support.recordings import RATE_HZ, a_tone, encode, piped

SECONDS, SOUND_HZ = 6, 48_000


def a_file(suffix: str, codec: str, **options: str) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        return encode(path, codec, a_tone(SECONDS, SOUND_HZ), SOUND_HZ, container_options=options).read_bytes()


def a_piped(form: str, codec: str) -> bytes:
    return piped(codec, a_tone(SECONDS, SOUND_HZ), SOUND_HZ, form)


def a_bw64() -> bytes:
    return b"BW64" + a_file(".wav", "pcm_s16le", rf64="always")[4:]


#: Formats whose header declares the length.
DECLARING: Mapping[str, Callable[[], bytes]] = {
    "wav": lambda: a_file(".wav", "pcm_s16le"),
    "rf64": lambda: a_file(".wav", "pcm_s16le", rf64="always"),
    "bw64": a_bw64,
    "flac": lambda: a_file(".flac", "flac"),
    "mp3": lambda: a_file(".mp3", "libmp3lame"),
    "matroska": lambda: a_file(".mka", "libopus"),
}
#: A block, a cluster, cues, and tags.
ELEMENTS = (b"\xa3", b"\x1f\x43\xb6\x75", b"\x1c\x53\xbb\x6b", b"\x12\x54\xc3\x67")
PARTS: Mapping[str, tuple[Callable[[], bytes], int, tuple[bytes, ...]]] = {
    "opus": (lambda: a_file(".ogg", "libopus"), 0, (b"OggS",)),
    "vorbis": (lambda: a_file(".ogg", "vorbis"), 0, (b"OggS",)),
    "m4a": (lambda: a_file(".m4a", "aac"), 4, ()),
    "m4a-in-fragments": (
        lambda: a_file(".m4a", "aac", movflags="empty_moov+default_base_moof", frag_duration="500000"), 4,
        (b"moof", b"mfra"),
    ),
    "webm-live": (lambda: a_file(".webm", "libopus", live="1"), 0, ELEMENTS),
    "matroska-piped": (lambda: a_piped("matroska", "libopus"), 0, ELEMENTS),
}  # fmt: skip
#: Files without any declared end.
UNDECLARED: Mapping[str, Callable[[], bytes]] = {
    "wav-piped": lambda: a_piped("wav", "pcm_s16le"),
    "flac-piped": lambda: a_piped("flac", "flac"),
    "mp3-without-note": lambda: a_file(".mp3", "libmp3lame", write_xing="0"),
}


def is_between_parts(kind: str, at: int) -> bool:
    """Return True for a cut that looks like an end: the zeros of a box's size may be padding."""
    file, (_, place, beginnings) = whole(kind), PARTS[kind]
    zeros = next((number for number in range(place) if file[at - number - 1]), place)
    return any(file[at - number + place :].startswith(beginnings) for number in range(min(zeros, at) + 1))


@cache
def whole(kind: str) -> bytes:
    return PARTS[kind][0]() if kind in PARTS else {**DECLARING, **UNDECLARED}[kind]()


def heard_s(data: bytes) -> float | None:
    """Return the seconds that are decoded; None for a file that is rejected."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        path.write_bytes(data)
        try:
            return sum(map(len, read_audio(path, Limits(), RATE_HZ))) / RATE_HZ
        except MediaUnreadable:
            return None


@pytest.mark.parametrize("kind", [*DECLARING, *PARTS, *UNDECLARED])
def test_what_is_whole_is_heard(kind: str) -> None:
    assert heard_s(whole(kind)) == pytest.approx(SECONDS, abs=0.1)


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize("kind", DECLARING)
@settings(deadline=None)
@given(data=st.data())
def test_less_than_the_beginning_says_is_refused(kind: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(whole(kind)) - 1))
    seconds = heard_s(whole(kind)[:at])
    assert seconds is None or seconds >= SECONDS - 1.1, "a second may be lacking"


@pytest.mark.parametrize("kind", PARTS)
@settings(deadline=None)
@given(data=st.data())
def test_a_part_that_is_not_whole_is_refused(kind: str, data: st.DataObject) -> None:
    file = whole(kind)
    at = data.draw(st.integers(0, len(file) - 1))
    assert is_between_parts(kind, at) or heard_s(file[:at]) is None


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize("kind", UNDECLARED)
@settings(deadline=None)
@given(data=st.data())
def test_what_says_nothing_of_its_end_is_heard_as_far_as_it_goes(kind: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(whole(kind)) - 1))
    seconds = heard_s(whole(kind)[:at])
    assert seconds is None or seconds <= SECONDS + 0.1


@pytest.mark.parametrize("kind", ["opus", "m4a-in-fragments", "webm-live"])
def test_a_live_recording_that_stops_between_two_parts_is_heard(kind: str) -> None:
    file, (_, place, beginnings) = whole(kind), PARTS[kind]
    cuts = (at for at in range(len(file) // 2, len(file)) if file[at + place :].startswith(beginnings[:2]))
    at = next(at for at in cuts if heard_s(file[:at]))
    assert 2 < (heard_s(file[:at]) or 0) < SECONDS


def test_a_fragment_without_its_samples_is_refused() -> None:
    file = whole("m4a-in-fragments")
    samples = [at for at in range(len(file)) if file[at + 4 :].startswith(b"mdat")]
    assert len(samples) > 5
    assert [heard_s(file[: at + more]) for at in (samples[0], samples[-1]) for more in range(4)] == 8 * [None]


def test_what_stands_behind_the_last_page_is_nothing() -> None:
    assert heard_s(whole("opus") + b"TAG" + bytes(125)) == heard_s(whole("opus"))


def test_padding_behind_the_last_box_is_nothing() -> None:
    assert heard_s(whole("m4a") + bytes(6)) == heard_s(whole("m4a"))
    assert heard_s(whole("webm-live") + bytes(6)) == heard_s(whole("webm-live"))


def test_an_element_of_an_impossible_size_is_refused() -> None:
    file = whole("matroska")
    assert file[:4] == b"\x1a\x45\xdf\xa3"
    assert heard_s(file[:4] + b"\x01\xfe" + b"\xff" * 6 + file[5:]) is None
