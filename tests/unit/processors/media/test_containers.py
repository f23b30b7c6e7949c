"""Recordings cut off at any byte: the rest is rejected if the file declares its duration."""

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
from penstock.processors.media.containers import opened, packets
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


def a_vbri() -> bytes:
    """Return an MP3 file whose first frame holds Fraunhofer's header in place of LAME's."""
    data = bytearray(a_file(".mp3", "libmp3lame", id3v2_version="0"))
    frames = data.index(b"Info") + 8
    count = data[frames : frames + 4]
    data[4 : frames + 112] = bytes(frames + 108)
    data[36:62] = b"VBRI\0\1" + bytes(4) + len(data).to_bytes(4) + count + bytes(8)
    return bytes(data)


#: Formats whose header declares the length.
DECLARING: Mapping[str, Callable[[], bytes]] = {
    "wav": lambda: a_file(".wav", "pcm_s16le"),
    "rf64": lambda: a_file(".wav", "pcm_s16le", rf64="always"),
    "bw64": a_bw64,
    "flac": lambda: a_file(".flac", "flac"),
    "m4a": lambda: a_file(".m4a", "aac"),
    "matroska": lambda: a_file(".mka", "libopus"),
    "mp3": lambda: a_file(".mp3", "libmp3lame"),
    "mp3-tagged": lambda: b"ID3\x04\0\0\0\0\x10\0" + bytes(2048) + a_file(".mp3", "libmp3lame", id3v2_version="0"),
    "mp3-vbri": a_vbri,
}
#: Files that declare no duration. FFmpeg estimates that of the MP3 file.
UNDECLARED: Mapping[str, Callable[[], bytes]] = {
    "opus": lambda: a_file(".ogg", "libopus"),
    "vorbis": lambda: a_file(".ogg", "vorbis"),
    "webm-live": lambda: a_file(".webm", "libopus", live="1"),
    "matroska-piped": lambda: a_piped("matroska", "libopus"),
    "wav-piped": lambda: a_piped("wav", "pcm_s16le"),
    "flac-piped": lambda: a_piped("flac", "flac"),
    "mp3-without-note": lambda: a_file(".mp3", "libmp3lame", write_xing="0"),
    "m4a-in-fragments": lambda: a_file(".m4a", "aac", movflags="empty_moov+default_base_moof", frag_duration="500000"),
}


@cache
def whole(kind: str) -> bytes:
    return {**DECLARING, **UNDECLARED}[kind]()


def heard_s(data: bytes) -> float | None:
    """Return the seconds that are decoded; None for a file that is rejected."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        path.write_bytes(data)
        try:
            return sum(map(len, read_audio(path, Limits(), RATE_HZ))) / RATE_HZ
        except MediaUnreadable:
            return None


@pytest.mark.parametrize("kind", [*DECLARING, *UNDECLARED])
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


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize("kind", UNDECLARED)
@settings(deadline=None)
@given(data=st.data())
def test_what_says_nothing_of_its_end_is_heard_as_far_as_it_goes(kind: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(whole(kind)) - 1))
    seconds = heard_s(whole(kind)[:at])
    assert seconds is None or seconds <= SECONDS + 0.1


def test_a_fragment_that_ends_within_a_packet_is_refused() -> None:
    file = whole("m4a-in-fragments")
    assert heard_s(file[: file.rindex(b"moof") - 4]) == pytest.approx(SECONDS, abs=0.6), "it declares no duration"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        path.write_bytes(file[: file.rindex(b"mdat") + 40])
        with (
            opened(path, "recording", "any") as container,
            pytest.raises(MediaUnreadable, match="The recording is cut off: its last packet is incomplete"),
        ):
            list(packets(container, path, "recording"))


def test_an_mp3_file_is_as_long_as_its_frames_and_not_as_its_longest_tag() -> None:
    file = whole("mp3-without-note")
    assert heard_s(b"ID3\x04\0\0\0\0\x08\0" + b"Xing\0\0\0\1\0\1\0\0".ljust(1024, b"\0") + file) == heard_s(file)


def test_what_stands_behind_the_last_page_is_nothing() -> None:
    assert heard_s(whole("opus") + b"TAG" + bytes(125)) == heard_s(whole("opus"))


def test_padding_behind_the_last_box_is_nothing() -> None:
    assert heard_s(whole("m4a") + bytes(6)) == heard_s(whole("m4a"))
    assert heard_s(whole("webm-live") + bytes(6)) == heard_s(whole("webm-live"))


def test_an_element_of_an_impossible_size_is_refused() -> None:
    file = whole("matroska")
    assert file[:4] == b"\x1a\x45\xdf\xa3"
    assert heard_s(file[:4] + b"\x01\xfe" + b"\xff" * 6 + file[5:]) is None
