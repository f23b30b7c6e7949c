"""The runner `vllm` for OpenAI's requests, with a double of the command `vllm` whose processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.errors import ModelServerFailed, ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.openai.options import EngineOptions
from penstock.processors.openai.text import OpenAIChat
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.memory import device_memory
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.vllm.arguments import arguments_of, check_names, serve_words
from penstock.workers.engine.vllm.generation import expected_bytes
from penstock.workers.engine.vllm.served import environment, not_started, reason_in
from tests.support.engine_jobs import never
from tests.support.polling import wait_for
from tests.support.vllm_command import FAILS, LONG, vllm_command

GIB = 2**30


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Path]:
    with vllm_command(tmp_path / "bin") as started:
        yield started


@pytest.fixture
def engine(started: Path) -> Iterator[BatchingEngine]:  # noqa: ARG001  (the command is found)
    with closing(BatchingEngine(Runners.installed(), memory_bytes=GIB)) as engine:
        yield engine


@pytest.fixture
def source(tmp_path: Path) -> Path:
    adapter = tmp_path / "model" / "pirate"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    return tmp_path / "model"


def a_model(source: Path, **options: Any) -> Model:
    engine = {"kv_cache_memory_bytes": 2**20, **options.pop("engine", {})}
    return Model(
        name="llama", title="Llama", runner="vllm", processor="openai-chat", source=str(source), revision="1",
        options={"engine": engine, **options},
    )  # fmt: skip


def ask(engine: BatchingEngine, model: Model, text: str, **parameters: Any) -> list[Output]:
    return list(engine.run(model, iter([prompt(text, **parameters)]), check=never))


def prompt(text: str, **parameters: Any) -> Prompt:
    body = {"messages": [{"role": "user", "content": text}], **parameters}
    return Prompt({"route": "chat/completions", "body": body, "media": []})


def processes() -> Mapping[str, psutil.Process]:
    """Return the processes of the server that this process has started: `server` and `engine`."""
    children = psutil.Process().children()
    [server] = [child for child in children if "--uds" in child.cmdline()]
    [core] = [child for child in server.children() if "spawn_main" in " ".join(child.cmdline())]
    return {"server": server, "engine": core}


def ended(process: psutil.Process) -> bool:
    """Return True for a process that has ended, although nobody may have taken note yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_arguments_become_words_of_the_command_line() -> None:
    arguments = {
        "model": "/m", "runner": "generate", "enforce_eager": True, "enable_prefix_caching": False, "seed": None,
        "max_model_len": 128, "limit_mm_per_prompt": {"image": 2}, "allowed_media_domains": ["a", "b"],
    }  # fmt: skip
    words = serve_words(arguments, {"pirate": Path("/m/pirate")}, name="llama", socket=Path("/s"))
    assert words == [
        "/m", "--served-model-name", "llama", "--uds", "/s", "--disable-uvicorn-access-log",
        "--uvicorn-log-level", "warning", "--runner", "generate", "--enforce-eager", "--no-enable-prefix-caching",
        "--max-model-len", "128", "--limit-mm-per-prompt", '{"image": 2}', "--allowed-media-domains", "a", "b",
        "--lora-modules", "pirate=/m/pirate",
    ]  # fmt: skip


def test_a_record_sets_arguments_and_its_engine_table_goes_before(source: Path) -> None:
    model = a_model(source, concurrency=5, adapters={"pirate": "pirate"}, engine={"max_loras": 4, "dtype": "bfloat16"})
    assert arguments_of(model, EngineOptions.of(model), memory_share=0.9) == {
        "model": str(source), "runner": "generate", "dtype": "bfloat16", "max_num_seqs": 5,
        "gpu_memory_utilization": 0.9, "enable_lora": True, "max_loras": 4, "kv_cache_memory_bytes": 2**20,
    }  # fmt: skip


def test_the_limits_of_media_are_those_of_vllm(source: Path) -> None:
    def limits(**options: Any) -> Any:
        model = a_model(source, **options)
        return arguments_of(model, EngineOptions.of(model), memory_share=0.9).get("limit_mm_per_prompt")

    assert limits() is None
    assert limits(media={"video": 0, "image": 2, "file": 0}) == {"video": 0, "image": 2}
    assert limits(media={"video": 0, "image": 2}, engine={"limit_mm_per_prompt": {"image": 4}}) == {
        "video": 0,
        "image": 4,
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("max_modellen", r"vLLM has no engine argument 'max_modellen' \(did you mean max_model_len\?\)"),
        ("qqq", r"vLLM has no engine argument 'qqq'$"),
        ("served_model_name", r"options\.engine\.served_model_name is set by the record's name"),
    ],
)
def test_an_engine_argument_that_is_not_known_is_refused_with_the_nearest(source: Path, name: str, said: str) -> None:
    with pytest.raises(ModelUnavailable, match=said):
        check_names(a_model(source), {name: 1}, {"max_model_len", "dtype"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "(Worker pid=1) ValueError: No memory\nException: See for root cause.\nError: See root cause above. {}\n",
            "ValueError: No memory",
        ),
        ("usage: vllm\nvllm: error: unrecognized arguments: --x\n", "error: unrecognized arguments: --x"),
        ("Killed\n\n", "Killed"),
        ("", "it ended without a word"),
    ],
)
def test_the_reason_of_an_end_is_its_latest_cause(text: str, reason: str) -> None:
    assert reason_in(text) == reason


def test_the_server_gets_no_settings_and_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://:secret@h")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    given = environment(0.5, Path(sys.executable))
    assert "secret" not in " ".join(given.values())
    assert (given["CUDA_VISIBLE_DEVICES"], given["VLLM_ENGINE_READY_TIMEOUT_S"]) == ("1", "1")


def test_memory_counts_what_the_engine_reserves(source: Path) -> None:
    (source / "model.safetensors").write_bytes(bytes(1000))
    assert expected_bytes(a_model(source)) == 1000 + 2**20
    share, total = device_memory()
    plain = a_model(source).model_copy(update={"options": {}})
    assert expected_bytes(plain) == int(share * total)
    quarter = plain.model_copy(update={"options": {"engine": {"gpu_memory_utilization": 0.25}}})
    assert expected_bytes(quarter) == total // 4


def test_a_request_is_answered_and_the_processes_end_with_the_model(
    engine: BatchingEngine, source: Path, started: Path
) -> None:
    outputs = ask(engine, a_model(source), "one two")
    assert [output.data["text"] for output in outputs][-1] == "one two"
    assert outputs[-1].data["answer"]["usage"]["completion_tokens"] == 2
    found = processes()
    socket = Path(found["server"].cmdline()[found["server"].cmdline().index("--uds") + 1])
    assert socket.parent.stat().st_mode & 0o077 == 0
    engine.close()
    assert all(map(ended, found.values()))
    assert not socket.parent.exists()
    assert len(started.read_text().splitlines()) == 1


def test_the_server_has_the_workers_session_and_a_group_of_its_own(engine: BatchingEngine, source: Path) -> None:
    ask(engine, a_model(source), "a")
    server = processes()["server"].pid
    assert (os.getsid(server), os.getpgid(server)) == (os.getsid(0), server)


def test_a_request_may_name_an_adapter_of_the_record_and_no_other(engine: BatchingEngine, source: Path) -> None:
    model = a_model(source, adapters={"pirate": "pirate"})
    assert ask(engine, model, "one", adapter="pirate")[-1].data["answer"]["model"] == "pirate"
    assert ask(engine, model, "one")[-1].data["answer"]["model"] == "llama"
    request = OpenAIChat(model).request
    assert request.model_validate({"prompt": "a", "adapter": "pirate"})
    with pytest.raises(ValueError, match="'pirate'"):
        request.model_validate({"prompt": "a", "adapter": "parrot"})
    with pytest.raises(ValueError, match="adapter"):
        OpenAIChat(a_model(source)).request.model_validate({"prompt": "a", "adapter": "pirate"})


@pytest.mark.parametrize("killed", ["engine", "server"])
def test_a_killed_process_fails_its_requests_and_the_next_one_starts_another(
    engine: BatchingEngine, source: Path, started: Path, killed: str
) -> None:
    model = a_model(source)
    ask(engine, model, "one")
    before = processes()
    outputs = engine.run(model, iter([prompt(LONG)]), check=never)
    assert next(outputs).data["text"] == LONG
    before[killed].kill()
    with pytest.raises(ModelServerFailed, match=r"^vLLM ") as raised:
        next(outputs)
    assert raised.value.retryable
    assert ask(engine, model, "one two")[-1].data["text"] == "one two"
    assert all(map(ended, before.values()))
    assert len(started.read_text().splitlines()) == 2


def test_a_request_that_failed_ends_no_server_that_is_well(engine: BatchingEngine, source: Path, started: Path) -> None:
    model = a_model(source, concurrency=1)
    with pytest.raises(ModelServerFailed, match="vLLM answered 500: Error in WAV file"):
        ask(engine, model, FAILS)
    assert ask(engine, model, "one two")[-1].data["text"] == "one two"
    assert len(started.read_text().splitlines()) == 1


def test_a_server_that_does_not_start_is_told_in_its_words(engine: BatchingEngine, source: Path) -> None:
    with pytest.raises(ModelUnavailable, match="vLLM does not start: error: unrecognized arguments: --not-known"):
        ask(engine, a_model(source, engine={"not_known": True}), "one")


@pytest.mark.parametrize(
    ("text", "wrote"),
    [
        ("Starting\nLoading weights ...\n\n", "the last that it wrote: Loading weights ..."),
        ("\n", "it wrote nothing"),
    ],
)
def test_a_start_that_took_too_long_is_told_with_the_last_line(text: str, wrote: str) -> None:
    assert not_started(60, text) == f"vLLM did not start within 60 s (`options.start_timeout_s`) and was ended; {wrote}"


def children() -> set[psutil.Process]:
    """Return the processes that this one has started, itself or through others."""
    return set(psutil.Process().children(recursive=True))


def test_a_start_that_hangs_is_ended_and_other_models_run(engine: BatchingEngine, source: Path) -> None:
    before = children()
    hung = a_model(source, start_timeout_s=1, engine={"hang_from": 1})
    with pytest.raises(ModelUnavailable, match=r"within 1 s \(`options.start_timeout_s`\) and was ended; "):
        ask(engine, hung, "one")
    assert not children() - before
    other = a_model(source).model_copy(update={"name": "other"})
    assert ask(engine, other, "one two")[-1].data["text"] == "one two"


@pytest.mark.breadth
def test_a_restart_that_hangs_fails_the_attempt(engine: BatchingEngine, source: Path, started: Path) -> None:
    before = children()
    model = a_model(source, start_timeout_s=20, engine={"hang_from": 2})
    outputs = engine.run(model, iter([prompt(LONG)]), check=never)
    assert next(outputs).data["text"] == LONG
    processes()["engine"].kill()
    with pytest.raises(ModelServerFailed, match=r"^vLLM "):
        next(outputs)
    with pytest.raises(ModelServerFailed, match="vLLM did not start within") as raised:
        ask(engine, model, "one")
    assert raised.value.retryable
    assert len(started.read_text().splitlines()) == 2
    assert not children() - before


def test_a_machine_without_vllm_is_told_so(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for act in (Runners.installed().check_here, Runners.installed().load):
        with pytest.raises(ModelUnavailable, match="vLLM is not installed where model 'llama' runs"):
            act(a_model(source))


def test_an_adapter_that_is_not_there_is_refused(started: Path, source: Path) -> None:  # noqa: ARG001
    with pytest.raises(ModelUnavailable, match=r"the adapter 'parrot' lacks the file .*/model/no/adapter_config.json"):
        Runners.installed().load(a_model(source, adapters={"parrot": "no"}))


#: A worker that starts a server, says the numbers of its processes, and waits.
WORKER = """
import sys
from pathlib import Path
import psutil
from tests.unit.workers.engine.vllm.test_generation import a_model
from penstock.workers.engine.runners import Runners

Runners.installed().load(a_model(Path(sys.argv[1])))
print("started", *(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
sys.stdin.read()
"""


def test_the_server_ends_with_a_worker_that_is_killed(started: Path, source: Path) -> None:  # noqa: ARG001
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    with worker.stdin, worker.stdout:
        line = next(line for line in worker.stdout if line.startswith("started"))
        children = [psutil.Process(pid) for pid in map(int, line.split()[1:]) if psutil.pid_exists(pid)]
        assert len(children) >= 2
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        wait_for(lambda: all(map(ended, children)), "the server outlives its worker")
