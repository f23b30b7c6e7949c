"""The runner `vllm` generates: the texts of vLLM itself, in its batches, by a server that the worker starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs an environment with vLLM: make test-vllm")

import httpx2
import psutil

from penstock.errors import InvalidInput, ModelServerFailed, ModelUnavailable
from penstock.local.library import Engine
from penstock.models import Model
from penstock.workers.engine.runners import Runners
from tests.support.polling import wait_for
from tests.support.stack import running
from tests.vllm.conftest import ENVIRONMENT, START_S, own_answers, token_ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PROMPTS = [f"Once upon a time, number {number}" for number in range(8)]
TOKENS = 48
#: Tokens of a text that arrives in parts; of one that lasts while seven other jobs begin, also on a fast machine; and
#: of one whose job ends before the text does. A text during which a test kills the engine has ten times `MANY`.
MANY, TOGETHER, LONG = 600, 4000, 16000
ENGINE = {"dtype": "float32", "max_model_len": 16384, "enforce_eager": True, "gpu_memory_utilization": 0.1}
RECORDS = """
[models.llama]
title = "Llama in vLLM"
runner = "vllm"
processor = "openai-chat"
source = "{source}"
revision = "1"
queue = "llama"

[models.llama.options]
concurrency = 8
pass = ["ignore_eos", "return_tokens_as_token_ids"]
adapters = {{ pirate = "pirate" }}

[models.llama.options.engine]
tool_call_parser = "hermes"
enable_auto_tool_choice = true
max_model_len = 16384
enforce_eager = true
gpu_memory_utilization = 0.1
"""
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"sign": {"enum": ["+", "-"]}},
            "required": ["sign"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a Llama with random weights and an adapter."""
    folder = tmp_path_factory.mktemp("llama") / "tiny"
    script = Path(__file__).with_name("tiny_llama.py")
    subprocess.run([sys.executable, script, folder], check=True, env=os.environ | ENVIRONMENT)
    return folder


@pytest.fixture(scope="module")
def own(tiny: Path) -> Mapping[str | None, list[dict[str, Any]]]:
    """Return vLLM's own answers to the prompts, by the adapter; its engine has ended then."""
    chats = [[{"role": "user", "content": text}] for text in PROMPTS]
    found = own_answers(
        tiny.parent,
        {
            "engine": {"model": str(tiny), "max_num_seqs": 8, **ENGINE},
            "adapter": str(tiny / "pirate"),
            "tokens": TOKENS,
            "chats": chats,
        },
    )
    return {None: found[: len(PROMPTS)], "pirate": found[len(PROMPTS) :]}


@pytest.fixture(scope="module")
def catalogue(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "models.toml"
    path.write_text(RECORDS.format(source=tiny))
    return path


@pytest.fixture(scope="module")
def engine(catalogue: Path, own: object) -> Iterator[Engine]:  # noqa: ARG001  (one engine at a time)
    with Engine(catalogue=[catalogue]) as engine:
        engine.run("llama", input=asked("a"))
        yield engine


def asked(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, **more}


def run_all(engine: Engine, *requests: dict[str, Any]) -> list[Any]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: engine.run("llama", input=request), requests))


@pytest.mark.fast
@pytest.mark.parametrize("adapter", [None, "pirate"])
def test_greedy_tokens_texts_and_counts_equal_vllms_own(
    engine: Engine, own: Mapping[str | None, list[dict[str, Any]]], adapter: str | None
) -> None:
    more = {"logprobs": True, "return_tokens_as_token_ids": True} | ({"adapter": adapter} if adapter else {})
    for result, expected in zip(run_all(engine, *(asked(t, **more) for t in PROMPTS)), own[adapter], strict=True):
        assert token_ids(result.data) == expected["tokens"]
        assert result.text == expected["text"]
        assert result.data["finish_reason"] == "length"
        assert result.data["usage"]["prompt_tokens"] == expected["prompt_tokens"]
        assert result.data["usage"]["completion_tokens"] == len(expected["tokens"]) == TOKENS
    assert own["pirate"] != own[None], "an adapter that changes nothing proves nothing"


@pytest.mark.fast
def test_prompts_of_several_jobs_share_vllms_batches(engine: Engine) -> None:
    before = metric("iteration_tokens_total_count")
    run_all(engine, *(asked(text, max_tokens=TOGETHER) for text in PROMPTS))
    steps = metric("iteration_tokens_total_count") - before
    assert TOGETHER <= steps < len(PROMPTS) * TOGETHER / 2


@pytest.mark.fast
def test_a_text_is_streamed_and_a_canceled_job_ends_in_the_engine(engine: Engine) -> None:
    before = metric("generation_tokens_total")
    with engine.stream("llama", input=asked(PROMPTS[0], max_tokens=LONG)) as stream:
        first = next(stream)
    assert first
    wait_for(lambda: metric("num_requests_running") == 0, "vLLM goes on with a request that nobody waits for")
    assert 0 < metric("generation_tokens_total") - before < LONG
    parts = list(stream := engine.stream("llama", input=asked(PROMPTS[0], max_tokens=MANY)))
    assert len(parts) > 1
    assert "".join(parts) == stream.result.text


def test_json_schema_log_probabilities_several_answers_and_calls_come_whole(engine: Engine) -> None:
    schema = {"type": "string", "enum": ["yes", "no"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    short = {"messages": asked("Yes?")["messages"], "max_tokens": 60, "temperature": 0}
    assert json.loads(engine.run("llama", input={**short, "response_format": wanted}).text or "") in ("yes", "no")
    several = engine.run("llama", input=asked("a", n=2, temperature=1, seed=1, logprobs=True, top_logprobs=2)).data
    assert several is not None
    assert [choice["index"] for choice in several["choices"]] == [0, 1]
    for choice in several["choices"]:
        assert [len(token["top_logprobs"]) >= 2 for token in choice["logprobs"]["content"]] == [True] * TOKENS
    named = {"type": "function", "function": {"name": "add"}}
    called = engine.run("llama", input={**short, "tools": [TOOL], "tool_choice": named}).data
    assert called is not None
    function = called["choices"][0]["message"]["tool_calls"][0]["function"]
    assert function["name"] == "add"
    # A network with random weights may write blanks from there to its last token.
    assert function["arguments"].startswith("{")
    plain = engine.run("llama", input=short).data
    assert plain is not None
    # The template writes the tools before the messages.
    assert called["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + len("parameters")


def test_what_does_not_fit_is_refused_in_words(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="maximum context length is 16384 tokens"):
        engine.run("llama", input=asked("a" * 17000))
    with pytest.raises(InvalidInput, match="/input/adapter: must be 'pirate'"):
        engine.run("llama", input=asked("a", adapter="parrot"))
    assert engine.run("llama", input=asked("a")).text


def test_an_engine_that_is_killed_fails_its_requests_and_is_started_for_the_next(engine: Engine) -> None:
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(engine.run, "llama", input=asked("a", max_tokens=LONG))
        wait_for(lambda: metric("num_requests_running") == 1, "the request does not begin")
        core_of(psutil.Process()).kill()
        with pytest.raises(ModelServerFailed, match="vLLM"):
            job.result()
    assert engine.run("llama", input=asked("a")).text


def test_no_job_is_lost_with_the_engine(engine: Engine, catalogue: Path, tmp_path: Path) -> None:
    engine.close()
    assert not [child for child in psutil.Process().children(recursive=True) if "vllm" in named(child).lower()]
    config = f'models = ["{catalogue}"]\nqueues = ["default", "llama"]\nslots = 8\n'
    with running(tmp_path / "up", config=config, start_s=START_S, model="llama") as stack, stack.client() as client:
        wait_for(lambda: client.model("llama").ready, "the model does not become ready", timeout_s=START_S)
        jobs = [client.submit("llama", asked(text, max_tokens=10 * MANY)).id for text in PROMPTS[:4]]
        wait_for(lambda: {client.job(job).status for job in jobs} == {"running"}, "the jobs do not begin")
        core_of(psutil.Process(stack.pid("worker"))).kill()
        ended = [client.wait(job) for job in jobs]
    assert [job.status for job in ended] == ["succeeded"] * len(jobs)
    assert max(job.attempt for job in ended) == 2
    assert {job.data["usage"]["completion_tokens"] for job in ended if job.data} == {10 * MANY}


def test_greedy_tokens_of_two_tensor_parallel_processes_equal_those_of_one(
    engine: Engine, own: Mapping[str | None, list[dict[str, Any]]], catalogue: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    engine.close()
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")  # by itself vLLM wants two NUMA nodes
    (tmp_path / "models.toml").write_text(catalogue.read_text() + "tensor_parallel_size = 2\n")
    with Engine(catalogue=[tmp_path / "models.toml"]) as parallel:
        more = {"logprobs": True, "return_tokens_as_token_ids": True}
        results = run_all(parallel, *(asked(text, **more) for text in PROMPTS))
        assert len([child for child in psutil.Process().children(recursive=True) if "Worker_TP" in named(child)]) == 2
    assert [token_ids(result.data) for result in results] == [expected["tokens"] for expected in own[None]]


def core_of(process: psutil.Process) -> psutil.Process:
    """Return the process of vLLM's engine below a process."""
    [core] = [child for child in process.children(recursive=True) if "EngineCore" in named(child)]
    return core


def named(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def metric(name: str) -> float:
    """Return a metric of the server that this process has started."""
    words = next(child.cmdline() for child in psutil.Process().children() if "--uds" in named(child))
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=words[words.index("--uds") + 1])) as client:
        text = client.get("http://vllm/metrics", timeout=60).text
    return float(re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", text, re.MULTILINE)[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"engine": {"max_modellen": 1}}, r"vLLM has no engine argument 'max_modellen' \(did you mean max_model_len"),
        ({"engine": {"max_model_len": 10**9}}, r"vLLM rejects model 'llama': .*max_model_len"),
        ({"source": "bert"}, r"vLLM rejects model 'llama': .*do not support `--runner generate`"),
    ],
    ids=str,
)
def test_the_check_asks_vllm_without_reading_weights(
    tiny: Path, tmp_path: Path, change: dict[str, Any], said: str | None
) -> None:
    shutil.copytree(tiny, tmp_path / "llama", ignore=shutil.ignore_patterns("model.safetensors"))
    shutil.copytree(tmp_path / "llama", tmp_path / "bert")
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"architectures": ["BertModel"], "model_type": "bert"}))
    model = Model(
        name="llama", title="Llama", runner="vllm", processor="openai-chat", revision="1",
        source=str(tmp_path / change.get("source", "llama")), options={"engine": change.get("engine", {})},
    )  # fmt: skip
    with nullcontext() if said is None else pytest.raises(ModelUnavailable, match=said):
        Runners.installed().check(model)
