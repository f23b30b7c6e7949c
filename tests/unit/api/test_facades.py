"""Translations of the facades, without a service: errors, streams, base64, and the lines of batches."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import errors
from penstock.api.errors import error_of
from penstock.api.facades.capabilities import Capability, require_capability
from penstock.api.facades.errors import ERROR_FORMATS
from penstock.api.facades.openai import answers, forwarded
from penstock.api.facades.openai.answers import JobResult, UnsentText
from penstock.api.facades.openai.batches import CreateBatch
from penstock.api.facades.openai.forwarded import Models
from penstock.api.facades.openai.images import read_images
from penstock.api.facades.openai.lines import error_lines, job_lines, result_lines
from penstock.api.facades.openai.requests import chat_job, read_chat, read_completion, read_embedding
from penstock.api.facades.openai.stream import unchanged
from penstock.api.facades.pooling.forms import PoolingData, PoolingRequest, base64_of, in_client_terms
from penstock.errors import ErrorReport, InvalidRequest, Issue, ModelUnfit, PenstockError
from penstock.jobs import JobEvent
from penstock.json_body import validated
from penstock.models import CatalogueEntry
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.band_identity import SceneBand
from penstock.processors.geo.read.bands import select_bands

WRITER = CatalogueEntry(
    name="writer", title="Writer", revision="1", queue="q", input_schema={"type": "object"}, outputs=(),
    execution_timeout_s=1, queue_ttl_s=1, max_attempts=1, processor="text-generation",
)  # fmt: skip
EMBEDDER = WRITER.model_copy(update={"name": "embedder", "processor": "text-embedding"})
#: A plugin's processor, of which the table knows nothing.
OTHER = WRITER.model_copy(update={"name": "other", "processor": "brightness"})
CATALOGUE = {entry.name: entry for entry in (WRITER, EMBEDDER, OTHER)}


def shaped(prefix: str, report: ErrorReport, status: int) -> tuple[int, dict[str, Any], str | None]:
    answer = ERROR_FORMATS[prefix](report, status, {"Retry-After": "5"})
    assert answer.headers["retry-after"] == "5"
    return answer.status_code, json.loads(bytes(answer.body))["error"], answer.headers.get("x-should-retry")


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (InvalidRequest("no"), 422, (400, "invalid_request_error", "invalid_request", "false")),
        (errors.MediaRefused(), 422, (400, "invalid_request_error", "media_refused", "false")),
        (errors.ModelNotServed(), 422, (404, "invalid_request_error", "model_not_found", "false")),
        (errors.IdempotencyMismatch(), 422, (422, "invalid_request_error", "idempotency_mismatch", "false")),
        (errors.Unauthorized(), 401, (401, "authentication_error", "invalid_api_key", "false")),
        (errors.TooManyJobs(), 429, (429, "rate_limit_error", "rate_limit_exceeded", "true")),
        (errors.QueueFull(), 503, (503, "server_error", "queue_full", "true")),
        (errors.ProcessorFailed(), 500, (500, "server_error", "processor_failed", "false")),
        (PenstockError(), 500, (500, "server_error", "internal", "false")),
    ],
)
def test_an_error_in_openais_words(error: PenstockError, status: int, expected: tuple[Any, ...]) -> None:
    answered, body, retry = shaped("/openai", error.report(), status)
    assert (answered, body["type"], body["code"], retry) == expected
    assert body["message"] == error.detail


@pytest.mark.parametrize(
    ("pointer", "param"),
    [
        ("/messages/0/content/1", "messages[0].content[1]"),
        ("/input/max_new_tokens", "max_tokens"),
        ("/input/texts/3", "input[3]"),
        ("/input/stop/0", "stop[0]"),
        ("/input/3", "input[3]"),  # of OpenAI's own `input`
        ("/input", "input"),
        ("/input/scene", "data.data"),
        ("/model", "model"),
    ],
)
def test_a_pointer_in_the_words_of_the_interface(pointer: str, param: str) -> None:
    report = InvalidRequest("wrong", errors=[Issue("", "of the whole"), Issue(pointer, "too large")]).report()
    for prefix in ERROR_FORMATS.keys() - {"/runpod", "/ogc"}:
        _, body, _ = shaped(prefix, report, 422)
        assert (body["param"], body["message"]) == (param, f"wrong (of the whole; {param}: too large)")


def test_runpods_error_is_a_text_with_the_fields_of_the_model() -> None:
    report = InvalidRequest("wrong", errors=[Issue("/input/texts/3", "too long")]).report()
    answer = ERROR_FORMATS["/runpod"](report, 422, None)
    found = {"error": "wrong (/input/texts/3: too long)", "code": "invalid_request", "status": 400}
    assert (answer.status_code, json.loads(bytes(answer.body))) == (400, found)


def test_vllms_error_has_the_status_as_its_code() -> None:
    _, body, _ = shaped("/pooling", errors.TooManyJobs().report(), 429)
    assert (body["code"], body["type"]) == (429, "Too Many Requests")
    assert shaped("/pooling", errors.ClientLeft().report(), 499)[1]["code"] == 499
    assert [shaped("/pooling", InvalidRequest().report(), 422)[1][name] for name in ("code", "type")] == [
        400, "BadRequestError",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("indices", "param", "message"),
    [
        ([0, 9], "data.indices[1]", "`indices` has 9 (counted from 0), which is none of the scene's 3 bands."),
        ([0], "data.indices", "`indices` names 1 band, but the model needs 2: red, nir, in this order."),
        (None, None, "Give the bands in the model's order in `indices` (counted from 0)."),
    ],
)
def test_what_is_wrong_with_bands_is_said_of_indices(
    indices: list[int] | None, param: str | None, message: str
) -> None:
    needed = [Band(name=name, mean=0, std=1) for name in ("red", "nir")]
    present = [SceneBand(at, name) for at, name in enumerate(("red", "green", "blue"), 1)]
    asked = None if indices is None else [index + 1 for index in indices]
    with pytest.raises(errors.InputError) as caught:
        select_bands(needed, present, asked)
    wanted = PoolingData(data="scene", data_format="url", indices=indices)
    _, body, _ = shaped("/pooling", in_client_terms(caught.value, wanted).report(), 422)
    assert body["param"] == param
    assert message in body["message"]
    assert "`bands`" not in body["message"]


def test_a_report_is_raised_again_as_what_it_was() -> None:
    for cls in (errors.MissingBands, errors.WorkerLost, errors.TooManyJobs, PenstockError):
        again = error_of(cls("why", errors=[Issue("/a", "b")]).report())
        assert (type(again), again.detail, again.errors) == (cls, "why", (Issue("/a", "b"),))
    assert type(error_of(ErrorReport("of_a_plugin", "T", "why", retryable=False))) is PenstockError


def test_what_a_model_does_follows_from_its_processor() -> None:
    assert require_capability(CATALOGUE, "writer", Capability.CHAT) is WRITER
    with pytest.raises(ModelUnfit, match=r"embedder does not support chat; models that do: writer"):
        require_capability(CATALOGUE, "embedder", Capability.CHAT)
    with pytest.raises(ModelUnfit, match=r"other does not support pooling of scenes; models that do: none"):
        require_capability(CATALOGUE, "other", Capability.POOLING)


@given(
    st.text(min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.booleans()), max_size=20),
)
def test_each_character_is_told_once_and_in_order(text: str, pieces: list[tuple[int, int, bool]]) -> None:
    unsent, told = UnsentText(), ""
    for at, length, lost in pieces:  # attempts that begin again, pieces that were lost
        begin = min(at, len(text))
        if not lost:
            event = JobEvent("1-0", "job.text", 0.0, {"attempt": 1, "at": begin, "text": text[begin : begin + length]})
            told += unsent.delta(event)
            assert text.startswith(told)
    told += unsent.rest(text)
    assert told == text


def test_a_text_that_a_further_attempt_changed_is_an_error_and_no_mixture() -> None:
    assert unchanged("Once upon a time", "Once") == "Once upon a time"
    with pytest.raises(errors.ModelServerFailed, match="differs from what was sent"):
        unchanged("Twice upon a time", "Once")


SERVED = WRITER.model_copy(update={"name": "served", "processor": "openai-chat"})
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
CHOICES = [
    {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "A", "tool_calls": [CALL]}},
    {
        "index": 1,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "B"},
        "logprobs": {"content": []},
    },
]


def test_choices_of_a_server_are_answered_whole_and_at_the_end_of_a_stream() -> None:
    result = JobResult("1", 0.0, "served", "A", {"finish_reason": "tool_calls", "choices": CHOICES})
    choices = answers.chat(result)["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["A", "B"]
    assert choices[0]["message"]["tool_calls"] == [CALL]
    assert (choices[0]["logprobs"], choices[1]["message"]["refusal"]) == (None, None)
    rest = [answers.rest_of(choice, "chat.completion") for choice in choices]
    assert rest[0]["delta"] == {"tool_calls": [{"index": 0, **CALL}]}
    assert rest[1]["delta"] == {"role": "assistant", "content": "B"}
    completion = {"index": 1, "text": "C", "finish_reason": "length"}
    assert answers.completion(JobResult("1", 0.0, "served", "", {"choices": [completion]}))["choices"] == [
        {**completion, "logprobs": None}
    ]


def test_a_usage_that_a_server_did_not_count_is_zero() -> None:
    result = JobResult("1", 0.0, "served", "A", {"usage": {"prompt_tokens": 3, "completion_tokens": None}})
    assert answers.chat(result)["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 0}


def test_a_request_for_a_server_keeps_its_parameters_and_loses_those_of_the_facade() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    raw = {
        "model": "served", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "user": "me", "stop": None,
        "tools": tools, "n": 2, "min_p": 0.1, "metadata": {"who": "me"},
    }  # fmt: skip
    job = forwarded.forwarded_job(SERVED, raw)
    assert job.input == {"messages": raw["messages"], "tools": tools, "n": 2, "min_p": 0.1}
    assert job.metadata == {"who": "me"}
    assert forwarded.forwarded_job(SERVED, {"model": "served", "prompt": ["one"]}).input == {"prompt": "one"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"data": "AAAA", "format": "WAV"}, "data:audio/wav;base64,AAAA"),
        ({"data": "data:audio/mp3;base64,AAAA", "format": "mp3"}, "data:audio/mp3;base64,AAAA"),
        ({"data": "https://example.org/a.wav", "format": "wav"}, "https://example.org/a.wav"),
        ({"data": "AAAA"}, "AAAA"),
    ],
)
def test_a_recording_of_a_chat_for_a_server_is_a_data_url_or_a_reference(given: dict[str, str], sent: str) -> None:
    messages = [{"role": "user", "content": [{"type": "input_audio", "input_audio": given}]}]
    job = forwarded.forwarded_job(SERVED, {"model": "served", "messages": messages})
    [part] = job.input["messages"][0]["content"]
    assert part["input_audio"] == {**given, "data": sent}
    assert messages[0]["content"][0]["input_audio"] is given, "the request itself stays as it is"


@given(st.dictionaries(st.sampled_from(("messages", "prompt", "stream", "metadata", "n")), st.deferred(lambda: ANY)))
def test_whatever_is_sent_to_a_server_becomes_a_job_or_is_refused(body: Any) -> None:
    with suppress(PenstockError):
        forwarded.forwarded_job(SERVED, {**body, "model": "served"})


@given(st.lists(st.binary(max_size=10)))
def test_base64_of_chunks_is_that_of_the_whole(chunks: list[bytes]) -> None:
    assert b"".join(base64_of(chunks)) == base64.b64encode(b"".join(chunks))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = ("model", "messages", "prompt", "input", "n", "stop", "seed", "temperature", "stream", "data", "tools", "size")


@given(ANY | st.dictionaries(st.sampled_from(NAMES), ANY))
def test_whatever_is_sent_is_read_or_refused(body: Any) -> None:
    for read in (read_chat, read_completion, read_embedding, read_images, lambda body: validated(PoolingRequest, body)):
        try:
            read(body)
        except InvalidRequest:
            continue


@pytest.mark.parametrize("window", ["1d", "0h", "721h", "24", "24h\n"])
def test_a_window_that_cannot_be_is_answered_with_those_that_can(window: str) -> None:
    wanted = {"input_file_id": "file-1", "endpoint": "/v1/completions"}
    with pytest.raises(InvalidRequest) as caught:
        validated(CreateBatch, {**wanted, "completion_window": window})
    says = "must be a number of hours from 1h to 720h, such as 24h"
    assert caught.value.errors == (Issue("/completion_window", says),)
    for good in ("1h", "24h", "720h"):
        validated(CreateBatch, {**wanted, "completion_window": good})


def test_parts_of_text_are_one_text_and_pictures_are_refused() -> None:
    chat = read_chat({"model": "writer", "messages": [{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
    ]}]})  # fmt: skip
    with pytest.raises(InvalidRequest, match="writer does not accept images") as caught:
        chat_job(WRITER, chat, seed=1)
    assert caught.value.errors[0].pointer == "/messages/0/content/1"


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ({"type": "video_url", "video_url": {"url": "https://x/y.mp4"}}, "videos"),
        ({"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}}, "recordings"),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64,QQ=="}}, "files"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "files"),
    ],
)
def test_media_that_a_model_does_not_take_are_refused_by_their_kind(part: dict[str, Any], what: str) -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, part]
    chat = read_chat({"model": "a", "messages": [{"role": "user", "content": content}]})
    also = " that are no images" if what == "files" else ""
    eyes = WRITER.model_copy(update={"name": "eyes", "processor": "image-text-to-text"})
    for entry, words in ((WRITER, what), (eyes, what + also)):
        with pytest.raises(InvalidRequest, match=f"{entry.name} does not accept {words} [(]") as caught:
            chat_job(entry, chat, seed=1)
        assert caught.value.errors[0].pointer == "/messages/0/content/2"


def models() -> Models:
    return lambda name, ability: require_capability(CATALOGUE, name, ability)


def rows(*bodies: dict[str, Any], url: str = "/v1/embeddings") -> Iterator[bytes]:
    for number, body in enumerate(bodies):
        line = {"custom_id": str(number), "method": "POST", "url": url, "body": body}
        yield json.dumps(line).encode() + b"\n"


def test_a_line_becomes_a_line_of_ours() -> None:
    body = {"model": "embedder", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 3}
    [line] = job_lines(rows(body), "/v1/embeddings", models(), limit_bytes=1000)
    assert line == {
        "custom_id": "0", "model": "embedder", "input": {"texts": ["a", "b"]},
        "metadata": {"openai.model": "embedder", "openai.encoding_format": "base64", "openai.dimensions": "3"},
    }  # fmt: skip


@pytest.mark.parametrize("given", [{"prompt_name": "query"}, {"prompt": ""}])
def test_a_prompt_of_an_embedding_reaches_the_job(given: dict[str, str]) -> None:
    body = {"model": "embedder", "input": "a", **given}
    [line] = job_lines(rows(body), "/v1/embeddings", models(), limit_bytes=1000)
    assert line["input"] == {"texts": ["a"], **given}


@pytest.mark.parametrize(("wanted", "status"), [({}, 400), ({"truncate_prompt_tokens": -1}, 200)])
def test_a_line_whose_text_had_to_be_cut_is_refused_unless_it_may_be(wanted: dict[str, int], status: int) -> None:
    body = {"model": "embedder", "input": "a", **wanted}
    [line] = job_lines(rows(body), "/v1/embeddings", models(), limit_bytes=1000)
    output = {"text": None, "json": {"dimensions": 1, "embeddings": [[1.0]], "truncated": [0]}}
    done = {"custom_id": "0", "job_id": "1" * 32, "status": "succeeded", "metadata": line["metadata"], "output": output}
    [answer] = result_lines([json.dumps(done).encode()], "/v1/embeddings", 7.5)
    assert json.loads(answer)["response"]["status_code"] == status


def test_seeds_differ_from_line_to_line_and_not_from_time_to_time() -> None:
    body = {"model": "writer", "prompt": "a", "temperature": 1}

    def seeds() -> list[int]:
        lines = job_lines(rows(body, body, url="/v1/completions"), "/v1/completions", models(), limit_bytes=1000)
        return [line["input"]["seed"] for line in lines]

    assert seeds() == seeds()
    assert len(set(seeds())) == 2


@pytest.mark.parametrize(
    ("body", "raised", "said"),
    [
        (
            {"model": "nobody", "input": "a"},
            errors.ModelNotServed,
            "line 2: there is no model 'nobody' for text embedding; known models: embedder ",
        ),
        ({"model": "writer", "input": "a"}, ModelUnfit, "line 2: writer does not support text embedding"),
        ({"model": "embedder", "input": [1]}, InvalidRequest, "line 2: 'input' has token ids"),
        (
            {"model": "embedder", "input": "a" * 900},
            errors.PayloadTooLarge,
            "line 2: the line exceeds the limit of 500 bytes",
        ),
        (
            {"model": "embedder", "input": "a", "stream": True},
            InvalidRequest,
            "line 2: `stream` is not supported in a batch",
        ),
    ],
)
def test_a_wrong_line_is_named(body: dict[str, Any], raised: type[PenstockError], said: str) -> None:
    chunks = rows({"model": "embedder", "input": "a"}, body)
    with pytest.raises(raised, match=said):
        list(job_lines(chunks, "/v1/embeddings", models(), limit_bytes=500))


def test_what_became_of_lines_in_openais_words() -> None:
    head = {"line": 1, "custom_id": "a", "job_id": "11111111-1111-1111-1111-111111111111"}
    done = {**head, "status": "succeeded", "output": {"text": "b", "json": {"finish_reason": "length"}},
            "artifacts": [], "metadata": {"openai.model": "writer"}}  # fmt: skip
    [answer] = result_lines([json.dumps(done).encode()], "/v1/chat/completions", 7.5)
    said = json.loads(answer)
    assert (said["id"], said["custom_id"], said["error"]) == ("batch_req_" + "1" * 32, "a", None)
    body = said["response"]["body"]
    assert (body["object"], body["created"], body["choices"][0]["message"]["content"]) == ("chat.completion", 7, "b")

    ends = [("expired", errors.QueueExpired), ("canceled", errors.Canceled), ("failed", errors.ProcessorFailed)]
    wrong = [{**head, "status": status, "error": cls("why").report().to_json()} for status, cls in ends]
    found = [json.loads(row) for row in error_lines(json.dumps(row).encode() + b"\n" for row in wrong)]
    assert [row["error"] and row["error"]["code"] for row in found] == ["batch_expired", "batch_cancelled", None]
    assert found[2]["response"]["status_code"] == 500
    assert found[2]["response"]["body"]["error"]["message"] == "why"
