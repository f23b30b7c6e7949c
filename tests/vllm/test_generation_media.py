"""Chats with images and videos by the runner `vllm`: the tokens of vLLM itself; other media are refused."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs an environment with vLLM: make test-vllm")

import numpy as np
from PIL import Image

from penstock.errors import InvalidInput, ModelUnavailable, PenstockError
from penstock.local.library import Engine
from penstock.models import Model
from penstock.workers.engine.runners import Runners
from tests.vllm.conftest import ENVIRONMENT, own_answers, token_ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
TOKENS = 24
QUESTION = "What is this?"
ENGINE = {
    "max_model_len": 1024,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.1,
    "limit_mm_per_prompt": {"image": 2},
}
RECORD = """
[models.qwen]
title = "Qwen2-VL in vLLM"
runner = "vllm"
processor = "openai-chat"
source = "{source}"
revision = "1"
limits = {{ max_items = 3 }}

[models.qwen.options]
pass = ["ignore_eos", "return_tokens_as_token_ids"]

[models.qwen.options.engine]
max_model_len = 1024
enforce_eager = true
gpu_memory_utilization = 0.1
limit_mm_per_prompt = {{ image = 2 }}
"""
#: The media of each chat, before its question.
CHATS: Sequence[Sequence[str]] = (
    ["red.png"],
    ["ramp.png"],
    ["red.png", "ramp.png"],
    ["ramp.png", "red.png"],
    ["video.mp4"],
    ["video.mp4", "red.png"],
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a Qwen2-VL with random weights; media lie beside it."""
    folder = tmp_path_factory.mktemp("qwen") / "tiny"
    folder.mkdir()
    env = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, Path(__file__).with_name("tiny_qwen2_vl.py"), folder], check=True, env=env)
    Image.new("RGB", (40, 32), (255, 0, 0)).save(folder.parent / "red.png")
    Image.linear_gradient("L").convert("RGB").save(folder.parent / "ramp.png")
    write_video(folder.parent / "video.mp4")
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
    chats = [messages(names, lambda name: data_url(tiny.parent / name)) for names in CHATS]
    engine = {"model": str(tiny), "dtype": "float32", **ENGINE}
    return own_answers(tiny.parent, {"engine": engine, "adapter": None, "tokens": TOKENS, "chats": chats})


@pytest.fixture(scope="module")
def engine(tiny: Path, own: object) -> Iterator[Engine]:  # noqa: ARG001  (one engine at a time)
    (catalogue := tiny.parent / "models.toml").write_text(RECORD.format(source=tiny))
    with Engine(catalogue=[catalogue]) as engine:
        yield engine


def data_url(path: Path) -> str:
    kind = {".png": "image/png", ".mp4": "video/mp4"}[path.suffix]
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def messages(names: Sequence[str], url: Any) -> list[dict[str, Any]]:
    kinds = ["image_url" if name.endswith(".png") else "video_url" for name in names]
    media = [{"type": kind, kind: {"url": url(name)}} for kind, name in zip(kinds, names, strict=True)]
    return [{"role": "user", "content": [*media, {"type": "text", "text": QUESTION}]}]


def asked(tiny: Path, names: Sequence[str], **more: Any) -> Mapping[str, Any]:
    greedy = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    ids = {"logprobs": True, "return_tokens_as_token_ids": True}
    return {"messages": messages(names, lambda name: str(tiny.parent / name)), **greedy, **ids, **more}


@pytest.mark.fast
def test_tokens_about_images_and_videos_equal_vllms_own(engine: Engine, own: list[dict[str, Any]], tiny: Path) -> None:
    for names, expected in zip(CHATS, own, strict=True):
        result = engine.run("qwen", input=asked(tiny, names))
        assert result.data is not None
        assert token_ids(result.data) == expected["tokens"], names
        assert result.text == expected["text"]
        assert result.data["usage"]["prompt_tokens"] == expected["prompt_tokens"]
    assert len({tuple(answer["tokens"]) for answer in own}) == len(own), "media that change nothing prove nothing"


@pytest.mark.fast
def test_media_beyond_the_limits_and_of_other_kinds_are_refused(engine: Engine, tiny: Path) -> None:
    red = "red.png"
    with pytest.raises(InvalidInput, match=r"At most 2 image\(s\) may be provided"):
        engine.run("qwen", input=asked(tiny, [red] * 3))
    with pytest.raises(PenstockError, match="may name 3 media; this job names 4"):
        engine.run("qwen", input={"prompt": QUESTION, "images": [str(tiny.parent / red)] * 4})
    audio = {"type": "input_audio", "input_audio": {"data": str(tiny.parent / red)}}
    with pytest.raises(InvalidInput, match="expected tags: 'text', 'image_url', 'video_url'"):
        engine.run("qwen", input={"messages": [{"role": "user", "content": [audio]}]})


@pytest.mark.filterwarnings("ignore")
def test_the_check_refuses_a_kind_that_vllm_does_not_take(tiny: Path) -> None:
    def model(**most: int) -> Model:
        return Model(
            name="qwen", title="Qwen", runner="vllm", processor="openai-chat", revision="1", source=str(tiny),
            options={"media": most, "engine": {"max_model_len": 1024}},
        )  # fmt: skip

    Runners.installed().check(model(image=2))
    said = r"vLLM takes no audio for model .*, only text, image, video: set `options.media = { audio = 0 }`"
    with pytest.raises(ModelUnavailable, match=said):
        Runners.installed().check(model(audio=1))
