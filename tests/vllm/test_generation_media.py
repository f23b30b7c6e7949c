"""Chats with images, videos and recordings by the runner `vllm`: the tokens of vLLM itself; others are refused."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs an environment with vLLM: make test-vllm")

import numpy as np
from PIL import Image

from penstock.errors import InvalidInput, MediaUnreadable, ModelUnavailable, PenstockError
from penstock.local.library import Engine
from penstock.models import Model
from penstock.workers.engine.runners import Runners
from tests.support.recordings import a_tone, encode
from tests.vllm.conftest import ENVIRONMENT, own_answers, own_json, token_ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
TOKENS = 24
QUESTION = "What is this?"
ENGINE = {
    "max_model_len": 2048,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.1,
    "limit_mm_per_prompt": {"image": 2, "audio": 2},
}
RECORDS = """
[models.omni]
title = "Qwen2.5-Omni in vLLM"
runner = "vllm"
processor = "openai-chat"
source = "{omni}"
revision = "1"
limits = {{ max_items = 4 }}

[models.omni.options]
pass = ["ignore_eos", "return_tokens_as_token_ids"]

[models.omni.options.engine]
max_model_len = 2048
enforce_eager = true
gpu_memory_utilization = 0.1
limit_mm_per_prompt = {{ image = 2, audio = 2 }}

[models.qwen]
title = "Qwen2-VL, which takes no audio"
runner = "vllm"
processor = "openai-chat"
source = "{qwen}"
revision = "1"

[models.qwen.options]
pass = ["ignore_eos", "return_tokens_as_token_ids"]

[models.qwen.options.engine]
max_model_len = 1024
enforce_eager = true
gpu_memory_utilization = 0.1
enable_mm_embeds = true
limit_mm_per_prompt = {{ image = 2 }}
"""
#: Sounds by the names of their files, for both of vLLM's decoders: codec, seconds, samples a second, pitch, channels.
SOUNDS = {
    "tone.wav": ("pcm_s16le", 1.0, 16_000, 440, "mono"),
    "high.mp3": ("libmp3lame", 1.5, 24_000, 2000, "mono"),
    "stereo.flac": ("flac", 0.7, 44_100, 900, "stereo"),
    "low.m4a": ("aac", 0.5, 16_000, 200, "mono"),
}
#: The media of each chat, before its question.
CHATS: Sequence[Sequence[str]] = (
    ["red.png"],
    ["ramp.png"],
    ["red.png", "ramp.png"],
    ["ramp.png", "red.png"],
    ["video.mp4"],
    ["video.mp4", "red.png"],
    *([name] for name in SOUNDS),
    ["tone.wav", "high.mp3"],
    ["high.mp3", "tone.wav"],
    ["video.mp4", "tone.wav", "red.png", "stereo.flac"],
)
#: Chats with embeddings of images, and the mark of an image in the template of the Qwen2-VL.
EMBEDDED: Sequence[Sequence[str]] = (["red"], ["ramp"], ["red", "ramp"], ["ramp", "red"])
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN = {
    "max_model_len": 1024, "enforce_eager": True, "gpu_memory_utilization": 0.1, "enable_mm_embeds": True,
    "limit_mm_per_prompt": {"image": 2},
}  # fmt: skip
#: The part of a message for each kind of file, and the name of the file in it.
PARTS = {
    ".png": ("image_url", "url"), ".mp4": ("video_url", "url"), ".safetensors": ("image_embeds", "data"),
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a Qwen2.5-Omni with random weights; media lie beside it."""
    parent = tmp_path_factory.mktemp("omni")
    Image.new("RGB", (40, 32), (255, 0, 0)).save(parent / "red.png")
    Image.linear_gradient("L").convert("RGB").save(parent / "ramp.png")
    write_video(parent / "video.mp4")
    for name, (codec, seconds, rate_hz, pitch_hz, layout) in SOUNDS.items():
        encode(parent / name, codec, a_tone(seconds, rate_hz, pitch_hz), rate_hz, layout)
    return made("tiny_qwen_omni.py", parent)


@pytest.fixture(scope="module")
def deaf(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a Qwen2-VL, which takes images and videos; embeddings of images lie beside these."""
    images = [tiny.parent / name for name in ("red.png", "ramp.png")]
    return made("tiny_qwen2_vl.py", tmp_path_factory.mktemp("qwen"), *images)


def made(script: str, parent: Path, *more: Path) -> Path:
    (folder := parent / "tiny").mkdir()
    env = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, Path(__file__).with_name(script), folder, *more], check=True, env=env)
    return folder


def write_video(path: Path) -> None:
    import cv2

    made = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 4, (64, 48))
    for number in range(8):
        made.write(np.full((48, 64, 3), number * 30, np.uint8))
    made.release()


@pytest.fixture(scope="module")
def own(tiny: Path) -> list[dict[str, Any]]:
    """Return vLLM's own answers to the chats; its engine has ended then."""
    chats = [messages(names, lambda name: data(tiny.parent / name), own=True) for names in CHATS]
    engine = {"model": str(tiny), "dtype": "float32", **ENGINE}
    return own_answers(tiny.parent, {"engine": engine, "adapter": None, "tokens": TOKENS, "chats": chats})


@pytest.fixture(scope="module")
def own_embeds(tiny: Path, deaf: Path, own: object) -> list[dict[str, Any]]:  # noqa: ARG001  (one engine at a time)
    """Return vLLM's own answers to chats with embeddings of images, whose files hold those of the library."""
    prompts = [
        (IMAGE * len(names) + QUESTION, [str(tiny.parent / f"{name}.safetensors") for name in names])
        for names in EMBEDDED
    ]
    engine = {"model": str(deaf), "dtype": "float32", **QWEN}
    found: list[dict[str, Any]] = own_json(
        "own_embeds.py", deaf.parent, {"engine": engine, "tokens": TOKENS, "prompts": prompts}
    )
    return found


@pytest.fixture(scope="module")
def engine(tiny: Path, deaf: Path, own_embeds: object) -> Iterator[Engine]:  # noqa: ARG001  (one engine at a time)
    (catalogue := tiny.parent / "models.toml").write_text(RECORDS.format(omni=tiny, qwen=deaf))
    with Engine(catalogue=[catalogue]) as engine:
        yield engine


def data(path: Path) -> str:
    """Return a file as a request to vLLM itself has it."""
    kind = {".png": "data:image/png;base64,", ".mp4": "data:video/mp4;base64,"}.get(path.suffix, "")
    return kind + base64.b64encode(path.read_bytes()).decode()


def messages(names: Sequence[str], text_of: Callable[[str], str], *, own: bool = False) -> list[dict[str, Any]]:
    """Return a chat about files. vLLM's own requests say the formats of recordings, ours leave them out."""
    parts = []
    for name in names:
        kind, field = PARTS.get(Path(name).suffix, ("input_audio", "data"))
        more = {"format": Path(name).suffix[1:]} if own and kind == "input_audio" else {}
        parts.append({"type": kind, kind: {field: text_of(name), **more}})
    return [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]


def asked(tiny: Path, names: Sequence[str], **more: Any) -> Mapping[str, Any]:
    greedy = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    ids = {"logprobs": True, "return_tokens_as_token_ids": True}
    return {"messages": messages(names, lambda name: str(tiny.parent / name)), **greedy, **ids, **more}


@pytest.mark.fast
def test_tokens_about_images_videos_and_recordings_equal_vllms_own(
    engine: Engine, own: list[dict[str, Any]], tiny: Path
) -> None:
    for names, expected in zip(CHATS, own, strict=True):
        result = engine.run("omni", input=asked(tiny, names))
        assert result.data is not None
        assert token_ids(result.data) == expected["tokens"], names
        assert result.text == expected["text"]
        assert result.data["usage"]["prompt_tokens"] == expected["prompt_tokens"]
    assert len({tuple(answer["tokens"]) for answer in own}) == len(own), "media that change nothing prove nothing"


@pytest.mark.fast
def test_a_recording_alone_is_a_message_in_every_format(engine: Engine, tiny: Path) -> None:
    for name in SOUNDS:
        chat = asked(tiny, [name])
        [message] = chat["messages"]
        result = engine.run("omni", input={**chat, "messages": [{**message, "content": message["content"][:1]}]})
        assert result.data is not None
        assert result.data["usage"]["completion_tokens"] == TOKENS


@pytest.mark.fast
def test_media_beyond_the_limits_are_refused(engine: Engine, tiny: Path) -> None:
    with pytest.raises(InvalidInput, match=r"At most 2 image\(s\) may be provided"):
        engine.run("omni", input=asked(tiny, ["red.png"] * 3))
    with pytest.raises(InvalidInput, match=r"At most 2 audio\(s\) may be provided"):
        engine.run("omni", input=asked(tiny, ["tone.wav"] * 3))
    with pytest.raises(PenstockError, match="may name 4 media; this job names 5"):
        engine.run("omni", input={"prompt": QUESTION, "images": [str(tiny.parent / "red.png")] * 5})


@pytest.mark.fast
def test_recordings_that_none_can_read_are_refused_and_the_next_is_answered(
    engine: Engine, own: list[dict[str, Any]], tiny: Path
) -> None:
    whole = (tiny.parent / "tone.wav").read_bytes()
    (tiny.parent / "torn.wav").write_bytes(whole[:12] + b"\xff" * 500)
    (tiny.parent / "text.wav").write_bytes(b"no sound at all")
    encode(tiny.parent / "short.wav", "pcm_s16le", a_tone(0.001), 16_000, "mono")
    with pytest.raises(MediaUnreadable, match="The recording cannot be decoded"):
        engine.run("omni", input=asked(tiny, ["torn.wav"]))
    with pytest.raises(InvalidInput, match="too short to be represented"):
        engine.run("omni", input=asked(tiny, ["short.wav"]))
    with pytest.raises(MediaUnreadable, match="The file is no audio of a known type"):
        engine.run("omni", input=asked(tiny, ["text.wav"]))
    result = engine.run("omni", input=asked(tiny, ["tone.wav"]))
    assert result.data is not None
    assert token_ids(result.data) == own[CHATS.index(["tone.wav"])]["tokens"]


@pytest.mark.fast
def test_a_recording_for_a_model_that_takes_none_is_refused_before_vllm_starts(engine: Engine, tiny: Path) -> None:
    with pytest.raises(InvalidInput, match="expected tags: 'text', 'image_url', 'video_url'"):
        engine.run("qwen", input={"messages": asked(tiny, ["tone.wav"])["messages"]})


def test_tokens_about_embeddings_of_images_equal_vllms_own_about_the_same_embeddings(
    engine: Engine, own_embeds: list[dict[str, Any]], tiny: Path
) -> None:
    for names, expected in zip(EMBEDDED, own_embeds, strict=True):
        result = engine.run("qwen", input=asked(tiny, [f"{name}.safetensors" for name in names]))
        assert result.data is not None
        assert token_ids(result.data) == expected["tokens"], names
        assert result.data["usage"]["prompt_tokens"] == expected["prompt_tokens"]
    assert len({tuple(answer["tokens"]) for answer in own_embeds}) == len(own_embeds), "they change nothing"
    with pytest.raises(InvalidInput, match="Mixing raw image and embedding inputs is not allowed"):
        engine.run("qwen", input=asked(tiny, ["red.png", "ramp.safetensors"]))


@pytest.mark.filterwarnings("ignore")
def test_the_check_refuses_recordings_where_nothing_reads_them(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(
        name="omni", title="Omni", runner="vllm", processor="openai-chat", revision="1", source=str(tiny),
        options={"engine": {"max_model_len": 1024}},
    )  # fmt: skip
    Runners.installed().check(model)
    monkeypatch.setitem(sys.modules, "av", None)
    said = r"vLLM cannot read recordings for model 'omni' here .*: `pip install 'vllm\[audio\]'`, or set `options.media"
    with pytest.raises(ModelUnavailable, match=said):
        Runners.installed().check(model)
    Runners.installed().check(model.model_copy(update={"options": {**model.options, "media": {"audio": 0}}}))


@pytest.mark.filterwarnings("ignore")
def test_the_check_refuses_a_kind_that_vllm_does_not_take(deaf: Path) -> None:
    def model(**most: int) -> Model:
        return Model(
            name="qwen", title="Qwen", runner="vllm", processor="openai-chat", revision="1", source=str(deaf),
            options={"media": most, "engine": {"max_model_len": 1024}},
        )  # fmt: skip

    Runners.installed().check(model(image=2))
    said = r"vLLM takes no audio for model .*, only text, image, video: set `options.media = { audio = 0 }`"
    with pytest.raises(ModelUnavailable, match=said):
        Runners.installed().check(model(audio=1))
