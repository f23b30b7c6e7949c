"""Recordings of chats in vLLM: decoded once in the job's own process, and passed on as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits, Model
from penstock.processors.base import Prompt
from penstock.processors.openai.text import OpenAIChat
from penstock.processors.testing import LocalFiles
from tests.support.recordings import a_tone, encode

Prepare = Callable[..., Prompt]


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    """Return a function that prepares a chat with a recording for a model in vLLM."""
    (tmp_path / "config.json").write_text(json.dumps({"audio_config": {}}))
    model = Model(
        name="omni", title="Omni", runner="vllm", processor="openai-chat", source=str(tmp_path), revision="1",
        limits=Limits(max_seconds=2),
    )  # fmt: skip
    processor = OpenAIChat(model)

    def prepared(path: Path, **more: str) -> Prompt:
        part = {"type": "input_audio", "input_audio": {"data": "media://a", **more}}
        request = processor.request.model_validate({"messages": [{"role": "user", "content": [part]}]})
        [prompt] = processor.pre_process(request, LocalFiles({"media://a": path})).prompts
        return prompt

    return prepared


@pytest.mark.parametrize(
    ("name", "codec", "given", "sent"),
    [
        ("a.wav", "pcm_s16le", {}, "wav"),
        ("a.mp3", "libmp3lame", {}, "mp3"),
        ("a.flac", "flac", {}, "wav"),
        ("a.m4a", "aac", {}, "wav"),
        ("a.flac", "flac", {"format": "flac"}, "wav"),
    ],
)
def test_a_recording_goes_on_as_it_is_with_a_format_that_vllm_takes(
    prepare: Prepare, tmp_path: Path, name: str, codec: str, given: dict[str, str], sent: str
) -> None:
    path = encode(tmp_path / name, codec, a_tone(0.5), 16_000, "mono")
    prompt = prepare(path, **given)
    assert prompt.data["medium_0"].tobytes() == path.read_bytes()
    [message] = prompt.data["body"]["messages"]
    assert message["content"] == [{"type": "input_audio", "input_audio": {"data": "", "format": sent}}]


def test_what_cannot_be_decoded_or_is_too_long_does_not_reach_vllm(prepare: Prepare, tmp_path: Path) -> None:
    whole = encode(tmp_path / "a.flac", "flac", a_tone(0.5), 16_000, "mono").read_bytes()
    (cut := tmp_path / "cut.flac").write_bytes(whole[: len(whole) // 2])
    (torn := tmp_path / "torn.wav").write_bytes(b"RIFF\0\0\0\0WAVE" + b"\xff" * 500)
    for path in (cut, torn):
        with pytest.raises(MediaUnreadable, match=r"The recording (cannot be decoded|is cut off)"):
            prepare(path)
    with pytest.raises(MediaTooLarge, match="longer than 2 seconds"):
        prepare(encode(tmp_path / "long.wav", "pcm_s16le", a_tone(3), 16_000, "mono"))
