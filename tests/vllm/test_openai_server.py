"""The queue before vLLM's own server: the same texts as without it, all prompts in vLLM's batches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs an environment with vLLM: make test-vllm")

from penstock.errors import InvalidInput
from penstock.local.library import Engine
from tests.vllm.conftest import ENVIRONMENT, serving

PROMPTS = [f"Once upon a time, number {number}" for number in range(8)]
TOKENS = 48
RECORD = """
[models.llama]
title = "Llama at vLLM"
runner = "openai-server"
processor = "openai-chat"
source = "{url}/v1"
revision = "1"
options = {{ model = "tiny", concurrency = 8, pass = ["ignore_eos"] }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of vLLM's server with a tiny Llama."""
    folder = tmp_path_factory.mktemp("llama")
    script = Path(__file__).with_name("tiny_llama.py")
    subprocess.run([sys.executable, script, folder / "tiny"], check=True, env=os.environ | ENVIRONMENT)
    options = [
        "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--max-model-len", "128",
        "--gpu-memory-utilization", "0.1", "--max-num-seqs", "8",
    ]  # fmt: skip
    with serving(folder / "tiny", folder / "serve.log", options) as url:
        yield url


@pytest.fixture(scope="module")
def engine(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    (catalogue := tmp_path_factory.mktemp("records") / "models.toml").write_text(RECORD.format(url=server))
    with Engine(catalogue=[catalogue]) as engine:
        yield engine


def asked(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


def direct(url: str, text: str) -> dict[str, Any]:
    """Return the answer of the server without Penstock."""
    body = json.dumps({"model": "tiny", **asked(text)}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_greedy_texts_and_usage_equal_vllms_own(server: str, engine: Engine) -> None:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        results = list(pool.map(lambda text: engine.run("llama", input=asked(text)), PROMPTS))
    for text, result in zip(PROMPTS, results, strict=True):
        own = direct(server, text)
        assert result.text == own["choices"][0]["message"]["content"]
        assert result.data is not None
        assert result.data["finish_reason"] == own["choices"][0]["finish_reason"] == "length"
        used = {name: result.data["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
        assert used == {name: own["usage"][name] for name in used}


def test_prompts_of_several_jobs_share_vllms_batches(server: str, engine: Engine) -> None:
    before = iterations(server)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        list(pool.map(lambda text: engine.run("llama", input=asked(text)), PROMPTS))
    steps = iterations(server) - before
    assert TOKENS <= steps < len(PROMPTS) * TOKENS / 2


def iterations(url: str) -> int:
    """Return the number of steps that vLLM's engine has made."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return int(float(re.findall(r"^vllm:iteration_tokens_total_count\{.*\} (\S+)$", text, re.MULTILINE)[0]))


def test_a_text_is_streamed(engine: Engine) -> None:
    parts = list(stream := engine.stream("llama", input=asked(PROMPTS[0])))
    assert len(parts) > 1
    assert "".join(parts) == stream.result.text


def test_a_prompt_that_is_too_long_is_refused_in_vllms_words(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="maximum context length is 128 tokens"):
        engine.run("llama", input=asked("a" * 200))


def test_several_answers_log_probabilities_and_json_come_whole(engine: Engine) -> None:
    schema = {"type": "string", "enum": ["yes", "no"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    request = {"messages": asked("Yes?")["messages"], "max_tokens": 60, "temperature": 0, "response_format": wanted}
    result = engine.run("llama", input=request)
    assert json.loads(result.text or "") in ("yes", "no")
    several = engine.run("llama", input={**asked("a"), "n": 2, "temperature": 1, "seed": 1, "logprobs": True}).data
    assert several is not None
    assert [choice["index"] for choice in several["choices"]] == [0, 1]
    assert all(len(choice["logprobs"]["content"]) == TOKENS for choice in several["choices"])
