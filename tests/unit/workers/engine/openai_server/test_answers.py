from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput, ModelServerFailed, ModelUnavailable
from penstock.workers.engine.openai_server.answers import Answer, Malformed, parsed
from penstock.workers.engine.openai_server.failures import (
    MAX_WORDS,
    Busy,
    Failed,
    Tries,
    refusal,
    words_of,
)


def delta(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields}]}


@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_a_text_is_the_same_however_it_is_cut(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(text)]
    answer = Answer()
    for start, end in itertools.pairwise(edges):
        answer.add(delta(content=text[start:end]))
    assert answer.text == text[: max(edges)]


def test_thoughts_refusals_and_completions_are_put_together() -> None:
    answer = Answer()
    for chunk in (
        delta(role="assistant", reasoning_content="I "),
        delta(reasoning_content="think"),
        delta(refusal="No"),
    ):
        answer.add(chunk)
    message = {"role": "assistant", "content": None, "reasoning_content": "I think", "refusal": "No"}
    assert answer.whole()["choices"][0]["message"] == message
    completion = Answer()
    for text in ("a", "b"):
        completion.add({"choices": [{"index": 0, "text": text, "logprobs": {"tokens": [text], "text_offset": [0]}}]})
    assert completion.whole()["choices"][0]["logprobs"] == {"tokens": ["a", "b"], "text_offset": [0, 0]}
    assert completion.text == "ab"


def test_an_answer_is_complete_with_all_reasons_and_the_usage() -> None:
    answer = Answer()
    assert not answer.complete
    answer.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}, {"index": 1, "delta": {}}]})
    answer.add({"choices": [], "usage": {"prompt_tokens": 1}})
    assert not answer.complete
    answer.add({"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]})
    assert answer.complete


json_ = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "index", "delta", "content", "tool_calls", "function", "usage", "logprobs"]),
            inner,
        )
    ),
    max_leaves=20,
)


@given(st.lists(json_, max_size=4))
def test_whatever_a_server_sends_is_taken_or_refused(chunks: list[Any]) -> None:
    answer = Answer()
    before = copy.deepcopy(chunks)
    try:
        for chunk in chunks:
            answer.add(chunk)
        answer.whole()
    except Malformed:
        pass
    assert chunks == before


@pytest.mark.parametrize("text", ["", "{", "nan nan", "[" * 100_000])
def test_what_is_no_json_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        parsed(text)


def test_a_server_is_asked_again_after_five_minutes_whatever_it_says() -> None:
    busy = refusal(429, {"retry-after": "86400"}, "later", server="http://host/v1")
    assert isinstance(busy, Busy)
    assert busy.after_s == 300


@pytest.mark.parametrize(
    ("status", "header", "kind"),
    [
        (429, None, Busy), (503, "3", Busy), (503, None, Failed), (500, "3", Failed), (408, None, Failed),
        (400, None, InvalidInput), (413, None, InvalidInput), (422, None, InvalidInput), (401, None, ModelUnavailable),
        (302, None, ModelUnavailable),
    ],
)  # fmt: skip
def test_a_status_decides_what_happens(status: int, header: str | None, kind: type[Exception]) -> None:
    headers = {} if header is None else {"retry-after": header}
    assert type(refusal(status, headers, "words", server="http://host/v1")) is kind


def test_failures_are_counted_and_waits_are_not() -> None:
    tries = Tries(retries=2)
    for _ in range(50):
        tries = tries.waited()
    assert tries.pause_s == 30
    tries = tries.failed(Failed("x")).failed(Failed("x"))
    with pytest.raises(ModelServerFailed, match="it fell over; asked 3 times"):
        tries.failed(Failed("it fell over"))
    assert [Tries(9, failures=count).pause_s for count in (1, 2, 3)] == [0.5, 1, 2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "too long", "code": 400}}, "too long"), ({"error": "no model"}, "no model"),
        ({"object": "error", "message": "bad"}, "bad"), ({"detail": "gone"}, "gone"), ("plain\n text", "plain text"),
        ([1], "[1]"), ("x" * 999, "x" * MAX_WORDS + "..."),
    ],
)  # fmt: skip
def test_a_servers_words_are_found_in_its_errors(body: Any, words: str) -> None:
    assert words_of(body) == words
