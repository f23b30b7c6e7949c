"""Chats with images by the runner `vllm`: the texts of vLLM itself, and images that change them."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs an environment with vLLM: make test-vllm")

from PIL import Image

from penstock.errors import InvalidInput
from penstock.local.library import Engine
from tests.vllm.conftest import ENVIRONMENT, own_answers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
TOKENS = 24
QUESTION = "What is this?"
ENGINE = {"max_model_len": 512, "enforce_eager": True, "gpu_memory_utilization": 0.1}
RECORD = """
[models.llava]
title = "Llava in vLLM"
runner = "vllm"
processor = "openai-chat"
source = "{source}"
revision = "1"

[models.llava.options]
pass = ["ignore_eos"]

[models.llava.options.engine]
max_model_len = 512
enforce_eager = true
gpu_memory_utilization = 0.1
limit_mm_per_prompt = {{ image = 2 }}
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a Llava with random weights."""
    folder = tmp_path_factory.mktemp("llava") / "tiny"
    folder.mkdir()
    env = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, Path(__file__).with_name("tiny_llava.py"), folder], check=True, env=env)
    return folder


@pytest.fixture(scope="module")
def images(tiny: Path) -> list[Path]:
    paths = [tiny.parent / "red.png", tiny.parent / "ramp.png"]
    Image.new("RGB", (40, 32), (255, 0, 0)).save(paths[0])
    Image.linear_gradient("L").convert("RGB").save(paths[1])
    return paths


@pytest.fixture(scope="module")
def own(tiny: Path, images: list[Path]) -> list[dict[str, Any]]:
    """Return vLLM's own answers about each image and about both; its engine has ended then."""
    chats = [[{"role": "user", "content": content(*paths)}] for paths in asked_about(images)]
    engine = {"model": str(tiny), "dtype": "float32", "limit_mm_per_prompt": {"image": 2}, **ENGINE}
    return own_answers(tiny.parent, {"engine": engine, "adapter": None, "tokens": TOKENS, "chats": chats})


@pytest.fixture(scope="module")
def engine(tiny: Path, own: object) -> Iterator[Engine]:  # noqa: ARG001  (one engine at a time)
    (catalogue := tiny.parent / "models.toml").write_text(RECORD.format(source=tiny))
    with Engine(catalogue=[catalogue]) as engine:
        yield engine


def asked_about(images: list[Path]) -> list[list[Path]]:
    return [images[:1], images[1:], images]


def content(*images: Path) -> list[dict[str, Any]]:
    urls = [f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}" for path in images]
    return [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": QUESTION}]


def test_texts_about_images_equal_vllms_own(engine: Engine, own: list[dict[str, Any]], images: list[Path]) -> None:
    for paths, expected in zip(asked_about(images), own, strict=True):
        said = {"prompt": QUESTION, "images": [str(path) for path in paths]}
        result = engine.run("llava", input={**said, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True})
        assert result.text == expected["text"]
        assert result.data is not None
        assert result.data["usage"]["prompt_tokens"] == expected["prompt_tokens"]
    assert len({answer["text"] for answer in own}) == len(own), "images that change nothing prove nothing"


def test_more_images_than_the_record_allows_are_refused_in_vllms_words(engine: Engine, images: list[Path]) -> None:
    with pytest.raises(InvalidInput, match=r"At most 2 image\(s\) may be provided"):
        engine.run("llava", input={"prompt": QUESTION, "images": [str(images[0])] * 3, "max_tokens": 1})
