"""The runner `openai-server` in a real engine, before a server that misbehaves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Canceled, ConfigError, InvalidInput, ModelServerFailed, ModelUnavailable, PenstockError
from penstock.local.inspection import inspect
from penstock.local.library import Engine
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.openai_server import client
from penstock.workers.engine.openai_server.runner import check_server, load_server
from penstock.workers.engine.runners import Runners
from tests.support import openai_server as fakes
from tests.support.engine_jobs import a_model, never, numbers, run_all
from tests.support.openai_server import Behaviour, Connection, FakeServer
from tests.support.polling import wait_for
from tests.support.stack import free_port

WAIT_S = 20


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def served(url: str, **options: Any) -> Model:
    options = {"model": "tiny", "retries": 2, **options}
    return Model(
        name="llama", title="Llama", runner="openai-server", processor="openai-chat", source=url, revision="1",
        options=options,
    )  # fmt: skip


def prompt(text: str = "one two", **parameters: Any) -> Prompt:
    body = {"messages": [{"role": "user", "content": text}], **parameters}
    return Prompt({"route": "chat/completions", "body": body, "media": []})


def ask(engine: BatchingEngine, model: Model, *prompts: Prompt, check: Callable[[], None] = never) -> list[Output]:
    return list(engine.run(model, iter(prompts or [prompt()]), check=check))


def texts(outputs: list[Output]) -> list[str]:
    return [output.data["text"] for output in outputs if not output.partial]


def test_an_answer_is_put_together_with_its_usage_and_the_model_is_the_records(engine: BatchingEngine) -> None:
    with FakeServer() as server:
        [final] = [out for out in ask(engine, served(server.url), prompt("a b", temperature=0.5)) if not out.partial]
    assert final.data["text"] == "a b"
    assert final.data["answer"]["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "a b"}, "logprobs": None, "finish_reason": "stop"}
    ]
    assert final.data["answer"]["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert server.bodies == [
        {
            "messages": [{"role": "user", "content": "a b"}], "temperature": 0.5, "model": "tiny", "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]  # fmt: skip


def test_the_text_is_told_while_the_server_writes_it(engine: BatchingEngine) -> None:
    with FakeServer() as server:
        server.gate.clear()
        with closing(engine.run(served(server.url), iter([prompt()]), check=never)) as outputs:
            first = next(outputs)
            assert (first.partial, first.data["text"]) == (True, "one")
            server.gate.set()
            assert texts(list(outputs)) == ["one two"]


def test_as_many_requests_as_allowed_are_under_way_and_no_more(engine: BatchingEngine) -> None:
    with FakeServer() as server, ThreadPoolExecutor(12) as pool:
        server.gate.clear()
        model = served(server.url, concurrency=8)
        jobs = [pool.submit(ask, engine, model, prompt(f"job {number}")) for number in range(12)]
        server.wait_for_active(8)
        server.gate.set()
        assert [texts(job.result(WAIT_S)) for job in jobs] == [[f"job {number}"] for number in range(12)]
        assert server.peak == 8


def test_a_job_of_many_prompts_leaves_places_to_a_job_of_one(engine: BatchingEngine) -> None:
    with FakeServer() as server, ThreadPoolExecutor(2) as pool:
        server.gate.clear()
        model = served(server.url, concurrency=2)
        many = pool.submit(ask, engine, model, *(prompt(f"many {number}") for number in range(9)))
        server.wait_for_active(2)
        one = pool.submit(ask, engine, model, prompt("one only"))
        wait_for(lambda: waiting(engine) == 2, "the second job did not come")
        server.gate.set()
        assert texts(one.result(WAIT_S)) == ["one only"]
        assert len(texts(many.result(WAIT_S))) == 9
    order = [body["messages"][0]["content"] for body in server.bodies]
    assert order.index("one only") in (2, 3)


def waiting(engine: BatchingEngine) -> int:
    """Return the number of jobs with prompts that wait."""
    return sum(bool(run.waiting) for run in engine._runs)


def test_a_model_of_the_same_device_is_not_delayed(engine: BatchingEngine) -> None:
    with FakeServer() as server, ThreadPoolExecutor(2) as pool:
        server.gate.clear()
        slow = pool.submit(ask, engine, served(server.url))
        server.wait_for_active(1)
        assert run_all(engine, a_model(max_batch=1), numbers(range(300))) == list(range(300))
        assert not slow.done()
        server.gate.set()
        assert texts(slow.result(WAIT_S)) == ["one two"]


@pytest.mark.breadth
@pytest.mark.alone
def test_the_scheduler_rests_while_the_server_works(engine: BatchingEngine) -> None:
    with FakeServer() as server, ThreadPoolExecutor(1) as pool:
        server.gate.clear()
        job = pool.submit(ask, engine, served(server.url))
        server.wait_for_active(1)
        wait_for(lambda: all(not item.awake for run in engine._runs for item in run.waiting), "it never slept")
        before = engine._batches
        time.sleep(0.3)  # nothing happens in this time
        assert engine._batches - before <= 1
        server.gate.set()
        job.result(WAIT_S)


def canceled_when(event: threading.Event) -> Callable[[], None]:
    def check() -> None:
        if event.is_set():
            raise Canceled

    return check


def test_a_canceled_job_closes_its_stream_at_once_and_frees_its_place(engine: BatchingEngine) -> None:
    with FakeServer() as server, ThreadPoolExecutor(2) as pool:
        server.gate.clear()
        model, stop = served(server.url, concurrency=1), threading.Event()
        job = pool.submit(ask, engine, model, check=canceled_when(stop))
        server.wait_for_active(1)
        other = pool.submit(ask, engine, model, prompt("other"))
        stop.set()
        with pytest.raises(Canceled):
            job.result(WAIT_S)
        assert server.left.acquire(timeout=5)
        server.gate.set()
        assert texts(other.result(WAIT_S)) == ["other"]


@pytest.mark.breadth(every=6)
@pytest.mark.parametrize(
    "failure",
    [
        fakes.status(500), fakes.status(502), fakes.status(503), fakes.status(408), fakes.cut, fakes.quiet_end,
        fakes.malformed("{"), fakes.malformed("[]"), fakes.malformed('{"choices": 3}'),
        fakes.malformed('{"choices": [{"index": -1}]}'), fakes.malformed('{"choices": [{"delta": {"content": 5}}]}'),
        fakes.malformed('{"error": {"message": "engine died", "code": 500}}'), fakes.malformed("[DONE]"),
        fakes.whole({"error": {"message": "no room", "code": 503}}), fakes.whole({"object": "chat.completion"}),
        fakes.whole({"choices": [{"message": None}]}), fakes.whole({"choices": [{"text": "x"}], "usage": 3}),
    ],
)  # fmt: skip
def test_a_failure_of_the_server_is_tried_again(engine: BatchingEngine, failure: Behaviour) -> None:
    with FakeServer(failure, failure) as server:
        assert texts(ask(engine, served(server.url))) == ["one two"]
        assert len(server.bodies) == 3


def test_a_stalled_stream_is_closed_and_asked_again(engine: BatchingEngine) -> None:
    with FakeServer(fakes.stall) as server:
        assert texts(ask(engine, served(server.url, timeout_s=0.2))) == ["one two"]
        assert server.left.acquire(timeout=5)


def test_after_the_last_try_the_error_is_one_of_ours_and_retryable(engine: BatchingEngine) -> None:
    with FakeServer(fakes.status(500, "engine is dead"), fakes.cut) as server:
        with pytest.raises(ModelServerFailed) as caught:
            ask(engine, served(server.url, retries=1))
        assert caught.value.retryable
        assert "asked 2 times" in caught.value.detail
    with pytest.raises(ModelServerFailed, match="does not answer"):
        ask(engine, served(f"http://127.0.0.1:{free_port()}/v1", retries=0))


@pytest.mark.parametrize(("code", "error"), [(400, InvalidInput), (404, InvalidInput), (422, InvalidInput)])
def test_a_refused_request_fails_at_once_with_the_servers_words(
    engine: BatchingEngine, code: int, error: type[PenstockError]
) -> None:
    with FakeServer(fakes.status(code, "maximum context\nlength is 4 tokens")) as server:
        with pytest.raises(error, match=f"answered {code}: maximum context length is 4 tokens") as caught:
            ask(engine, served(server.url))
        assert not caught.value.retryable
        assert len(server.bodies) == 1


def test_a_busy_server_is_waited_for_and_other_jobs_go_on(engine: BatchingEngine) -> None:
    with FakeServer(fakes.status(429, retry_after="1")) as server, ThreadPoolExecutor(2) as pool:
        model, begun = served(server.url, retries=0), time.monotonic()
        first = pool.submit(ask, engine, model, prompt("first"))
        wait_for(lambda: len(server.bodies) == 1, "it was not asked")
        assert texts(ask(engine, model, prompt("second"))) == ["second"]
        assert not first.done()
        assert texts(first.result(WAIT_S)) == ["first"]
        assert time.monotonic() - begun >= 1


def test_waits_for_a_busy_server_do_not_count_as_failures(engine: BatchingEngine) -> None:
    with FakeServer(*(fakes.status(503, retry_after="0") for _ in range(3))) as server:
        assert texts(ask(engine, served(server.url, retries=0))) == ["one two"]


def test_an_error_of_one_request_leaves_the_others_alone(engine: BatchingEngine) -> None:
    with FakeServer() as server, ThreadPoolExecutor(4) as pool:
        server.gate.clear()
        model = served(server.url)
        good: list[Future[list[Output]]] = [pool.submit(ask, engine, model, prompt(f"good {n}")) for n in range(3)]
        server.wait_for_active(3)
        server.plans.append(fakes.status(400, "bad"))
        with pytest.raises(InvalidInput, match="bad"):
            ask(engine, model)
        server.gate.set()
        assert [texts(job.result(WAIT_S)) for job in good] == [["good 0"], ["good 1"], ["good 2"]]


def test_an_answer_without_an_end_is_bounded(engine: BatchingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BYTES", 8 * 2**20)
    with FakeServer(fakes.endless) as server:
        with pytest.raises(InvalidInput, match="exceeds 8,388,608 bytes"):
            ask(engine, served(server.url))
        assert server.left.acquire(timeout=5)


def test_a_key_comes_from_the_environment_and_never_stands_in_an_error(
    engine: BatchingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_KEY", "sk-secret")
    with FakeServer(fakes.status(401, "the key sk-secret is not known"), key="sk-other") as server:
        model = served(server.url, api_key_variable="LLAMA_KEY")
        with pytest.raises(ModelUnavailable, match=r"the key \[key\] is not known: check `options.api_key_variable`"):
            ask(engine, model)
        assert server.headers[0]["authorization"] == "Bearer sk-secret"
        with pytest.raises(ModelUnavailable) as caught:
            check_server(model)
        assert "sk-secret" not in caught.value.detail
    monkeypatch.setenv("LLAMA_KEY", "sk-\nsecret")
    with pytest.raises(ModelUnavailable, match="has characters that no key has"):
        check_server(model)
    monkeypatch.delenv("LLAMA_KEY")
    for look in (check_server, load_server):
        with pytest.raises(ModelUnavailable, match=r"LLAMA_KEY .* is not set here"):
            look(model)


def test_a_key_at_the_cut_of_a_servers_words_is_hidden(engine: BatchingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_KEY", "sk-secret")
    with FakeServer(fakes.status(401, f"{'x' * 494} sk-secret is not known")) as server:
        with pytest.raises(ModelUnavailable) as cut:
            ask(engine, served(server.url, api_key_variable="LLAMA_KEY"))
        assert "sk-" not in cut.value.detail


def test_redirects_are_not_followed(engine: BatchingEngine) -> None:
    with FakeServer() as other, FakeServer(fakes.status(307, location=f"{other.url}/chat/completions")) as server:
        with pytest.raises(ModelUnavailable, match=r"redirects \(307\)"):
            ask(engine, served(server.url))
        assert other.bodies == []


def test_tools_choices_and_log_probabilities_come_whole(engine: BatchingEngine) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    with FakeServer(fakes.call_tool) as server:
        model = served(server.url)
        called = ask(engine, model, prompt(tools=tools))[-1].data["answer"]["choices"]
        several = ask(engine, model, prompt("a b", n=2, logprobs=True))[-1].data["answer"]["choices"]
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert called[0]["message"] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert called[0]["finish_reason"] == "tool_calls"
    assert [choice["message"]["content"] for choice in several] == ["a b", "A B"]
    assert [entry["token"] for entry in several[1]["logprobs"]["content"]] == ["A", " B"]


def test_a_server_that_does_not_stream_is_understood(engine: BatchingEngine) -> None:
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
    with FakeServer(lambda connection: connection.answer(200, whole)) as server:
        assert texts(ask(engine, served(server.url))) == ["hi"]


def test_a_stream_is_utf_8_whatever_charset_the_server_names(engine: BatchingEngine) -> None:
    def stream(connection: Connection) -> None:
        connection.begin("punycode")
        connection.send({"choices": [{"index": 0, "delta": {"content": "caf\u00e9"}, "finish_reason": "stop"}]})
        connection.send("[DONE]")
        connection.raw(b"")

    with FakeServer(stream) as server:
        assert texts(ask(engine, served(server.url))) == ["caf\u00e9"]


def test_the_check_asks_the_server_for_the_model() -> None:
    with FakeServer(models=("tiny", "phi:latest")) as server:
        check_server(served(server.url))
        check_server(served(server.url, model="phi"))
        with pytest.raises(ModelUnavailable, match=r"has no model 'huge'.*it has: tiny, phi:latest"):
            check_server(served(server.url, model="huge"))
    with pytest.raises(ModelUnavailable, match="does not answer"):
        check_server(served(server.url))


def test_a_server_that_lists_its_models_byte_by_byte_is_away_in_time() -> None:
    with FakeServer(drips=True) as server:
        with pytest.raises(ModelUnavailable, match="does not answer"):
            check_server(served(server.url))
        assert server.left.acquire(timeout=5)


@pytest.mark.parametrize(
    "source", ["llama", "ftp://host/v1", "http://", "http://me:secret@host/v1", "http://host/v1?k=1"]
)
def test_a_source_that_is_no_plain_address_is_refused(source: str) -> None:
    with pytest.raises(ModelUnavailable, match="is not the address of a server"):
        check_server(served(source))


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(ModelUnavailable, match=r"options: .*conkurrency"):
        check_server(served("http://127.0.0.1:1/v1", conkurrency=2))


def test_a_closed_engine_closes_its_streams() -> None:
    with FakeServer() as server, ThreadPoolExecutor(1) as pool:
        server.gate.clear()
        engine = BatchingEngine(Runners.installed())
        job = pool.submit(ask, engine, served(server.url))
        server.wait_for_active(1)
        engine.close()
        assert server.left.acquire(timeout=5)
        assert job.exception(WAIT_S) is not None


def test_bodies_are_json_of_the_protocol() -> None:
    with FakeServer() as server, closing(load_server(served(server.url))) as runner:
        image = {"type": "image_url", "image_url": {"url": ""}}
        body = {"messages": [{"role": "user", "content": [image]}]}
        import numpy as np

        at = ["messages", 0, "content", 0, "image_url", "url"]
        data = {"medium_0": np.frombuffer(b"abc", np.uint8), "media": [[at, "data:image/png;base64,"]]}
        asked = runner.admit(Prompt({"route": "chat/completions", "body": body, **data})).asked
    url = json.loads(asked.body)["messages"][0]["content"][0]["image_url"]["url"]
    assert url == "data:image/png;base64,YWJj"
    assert image["image_url"]["url"] == ""


def test_a_model_at_a_server_has_no_files_to_fetch_or_pin(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(
        '[models.llama]\ntitle = "Llama"\nrunner = "openai-server"\nprocessor = "openai-chat"\nrevision = "1"\n'
        'source = "http://127.0.0.1:9/v1"\n'
    )
    with Engine(catalogue=[tmp_path / "models.toml"]) as engine:
        [found] = inspect(engine, ["llama"], warm_up=False)
        assert found.source == "http://127.0.0.1:9/v1"
        assert [problem for problem in found.problems if "does not answer" in problem] == list(found.problems)
        assert found.notes == ()
        for ask in (engine.installation.fetch, engine.installation.pins):
            with pytest.raises(ConfigError, match=r"llama has no files: the server at .* computes"):
                ask("llama")
