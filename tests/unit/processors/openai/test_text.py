from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.errors import InvalidInput, MediaTooLarge, MediaUnreadable, ModelUnavailable
from penstock.models import Limits, Model, media_references
from penstock.processors.base import Output, Prompt
from penstock.processors.openai import text
from penstock.processors.openai.embedding import OpenAIEmbedding
from penstock.processors.openai.text import OpenAIChat, OpenAICompletion, answered
from penstock.processors.testing import FolderSink, LocalFiles, check_processor, check_request_module

PNG = b"\x89PNG\r\n\x1a\nrest"
WAV = b"RIFF\0\0\0\0WAVErest"


def model(**options: Any) -> Model:
    return Model(
        name="llama", title="Llama", runner="openai-server", processor="openai-chat", source="http://127.0.0.1:1/v1",
        revision="1", options=options,
    )  # fmt: skip


def echo(prompts: Iterator[Prompt]) -> Iterator[Output]:
    """Answer as a server that repeats what it was asked."""
    for prompt in prompts:
        said = str(prompt.data["body"].get("prompt") or prompt.data["body"].get("messages"))
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "length"}
        yield Output({"text": said, "answer": {"choices": [choice], "usage": {"prompt_tokens": 1}}})


def test_a_chat_keeps_the_contract(tmp_path: Path) -> None:
    (photo := tmp_path / "photo.png").write_bytes(PNG)
    chat = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0.5}
    made = check_processor(
        OpenAIChat(model()), chat, {"media://photo": photo}, engine=echo,
        other={"prompt": "Hi", "images": "media://photo"},
    )  # fmt: skip
    assert made.result.data == {"finish_reason": "length", "usage": {"prompt_tokens": 1}}
    check_processor(OpenAICompletion(model()), {"prompt": "a"}, {}, engine=echo, other={"prompt": "b"})
    for processor in (OpenAIChat(model()), OpenAICompletion(model()), OpenAIEmbedding(model())):
        check_request_module(processor)


def test_embeddings_come_in_the_order_of_the_texts() -> None:
    def lengths(prompts: Iterator[Prompt]) -> Iterator[Output]:
        for prompt in prompts:
            rows = [{"index": at, "embedding": [len(one), 1]} for at, one in enumerate(prompt.data["body"]["input"])]
            yield Output({"text": "", "answer": {"data": rows[::-1], "usage": {"prompt_tokens": len(rows)}}})

    texts = ["a" * number for number in range(1, 71)]
    made = check_processor(OpenAIEmbedding(model()), {"texts": texts}, {}, engine=lengths, other={"texts": "a"})
    assert made.result.data is not None
    assert [row[0] for row in made.result.data["embeddings"]] == list(range(1, 71))
    assert made.result.data["usage"] == {"prompt_tokens": 70}


def test_media_of_all_kinds_come_in_any_order_within_the_limits_of_their_kinds(tmp_path: Path) -> None:
    names = {"p.png": PNG, "w.wav": WAV, "v.mp4": b"\0\0\0\x18ftypmp42", "d.pdf": b"%PDF-1.7"}
    paths = {f"media://{name}": tmp_path / name for name in names}
    for reference, path in paths.items():
        path.write_bytes(names[reference.removeprefix("media://")])
    image = {"type": "image_url", "image_url": {"url": "media://p.png"}}
    audio = {"type": "input_audio", "input_audio": {"data": "media://w.wav"}}
    video = {"type": "video_url", "video_url": {"url": "media://v.mp4"}}
    file = {"type": "file", "file": {"file_data": "media://d.pdf"}}
    parts = [audio, {"type": "text", "text": "a"}, video, image, file, image, {"type": "text", "text": "b"}, audio]
    said = {"messages": [{"role": "user", "content": parts}, {"role": "user", "content": [video]}]}

    def media_of(**most: int) -> int:
        processor = OpenAIChat(model(media=most))
        prepared = processor.pre_process(processor.request.model_validate(said), LocalFiles(paths))
        [prompt] = prepared.prompts
        return len(prompt.data["media"])

    assert media_of() == media_of(image=2, video=2, audio=2, file=1) == 7
    with pytest.raises(InvalidInput, match="2 recordings were given; this model accepts at most 1 per job") as caught:
        media_of(audio=1)
    assert caught.value.errors[0].pointer == "/input/messages/0/content/7/input_audio/data"
    with pytest.raises(ValidationError, match="'video_url' found using 'type' does not match"):
        media_of(video=0)
    with pytest.raises(ModelUnavailable, match="media"):
        media_of(sound=1)


def test_media_leave_their_places_and_go_beside_the_body(tmp_path: Path) -> None:
    files = {"media://p": PNG, "media://w": WAV, "media://d": b"%PDF-1.7"}
    paths = {name: tmp_path / f"media{number}" for number, name in enumerate(files)}
    for name, path in paths.items():
        path.write_bytes(files[name])
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "media://p", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "media://w"}},
        {"type": "file", "file": {"file_data": "media://d", "filename": "a.pdf"}},
    ]
    request = {"messages": [{"role": "user", "content": parts}]}
    processor = OpenAIChat(model())
    schema = processor.request.model_json_schema()
    assert sorted(reference for _, reference in media_references(schema, request)) == sorted(files)
    prepared = processor.pre_process(processor.request.model_validate(request), LocalFiles(paths))
    [prompt] = prepared.prompts
    assert prompt.data["body"]["messages"][0]["content"] == [
        parts[0],
        {"type": "image_url", "image_url": {"url": "", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_data": "", "filename": "a.pdf"}},
    ]
    assert prompt.data["media"] == [
        [["messages", 0, "content", 1, "image_url", "url"], "data:image/png;base64,"],
        [["messages", 0, "content", 2, "input_audio", "data"], ""],
        [["messages", 0, "content", 3, "file", "file_data"], "data:application/pdf;base64,"],
    ]
    assert [prompt.data[f"medium_{number}"].tobytes() for number in range(3)] == list(files.values())


def test_files_of_another_kind_and_too_many_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "media").write_bytes(b"#!/bin/sh\n")
    processor, media = OpenAIChat(model()), LocalFiles({"media://p": path})
    request = processor.request.model_validate({"prompt": "Look", "images": "media://p"})
    with pytest.raises(MediaUnreadable, match="no image of a known type"):
        processor.pre_process(request, media)
    path.write_bytes(PNG)
    monkeypatch.setattr(text, "MAX_MEDIA_BYTES", 11)
    with pytest.raises(MediaTooLarge, match="these have 12"):
        processor.pre_process(request, media)


WRONG: Mapping[str, Any] = {
    "nothing": {},
    "both": {"prompt": "a", "messages": [{"role": "user", "content": "a"}]},
    "images of a conversation": {"images": "media://p", "messages": [{"role": "user", "content": "a"}]},
    "an unknown parameter": {"prompt": "a", "top_k": 3},
    "an unknown part": {"messages": [{"role": "user", "content": [{"type": "point", "text": "a"}]}]},
    "a message without content": {"messages": [{"role": "user"}]},
    "a tool's answer to no call": {"messages": [{"role": "tool", "content": "3"}]},
    "no tokens": {"prompt": "a", "max_tokens": 0},
}


@pytest.mark.parametrize("request_", WRONG.values(), ids=WRONG)
def test_wrong_requests_are_refused(request_: Any) -> None:
    with pytest.raises(ValidationError):
        OpenAIChat(model()).request.model_validate(request_)


def test_parameters_pass_that_the_record_names() -> None:
    named, any_ = OpenAIChat(model(**{"pass": ["top_k"]})), OpenAIChat(model(**{"pass": True}))
    assert "top_k" in named.request.model_json_schema()["properties"]
    for processor in (named, any_):
        request = processor.request.model_validate({"prompt": "a", "top_k": {"x": None}})
        [prompt] = processor.pre_process(request, LocalFiles({})).prompts
        assert prompt.data["body"]["top_k"] == {"x": None}
    assert any_.request.model_json_schema()["additionalProperties"] is True
    with pytest.raises(ValidationError):
        named.request.model_validate({"prompt": "a", "min_p": 3})
    with pytest.raises(ModelUnavailable, match="concurrency"):
        OpenAIChat(model(concurrency=0))


@pytest.mark.parametrize(
    ("parameters", "repeatable"), [({}, False), ({"temperature": 0}, True), ({"temperature": 1, "seed": 3}, True)]
)
def test_a_result_is_kept_only_if_it_would_come_again(parameters: Any, repeatable: bool) -> None:
    processor = OpenAIChat(model())
    request = processor.request.model_validate({"prompt": "a", **parameters})
    assert processor.pre_process(request, LocalFiles({})).repeatable is repeatable


def test_a_text_that_was_begun_anew_is_whole_in_the_result(tmp_path: Path) -> None:
    def outputs(*texts: str) -> Iterator[Output]:
        yield from (Output({"text": one}, partial=True) for one in texts[:-1])
        yield Output({"text": texts[-1], "answer": {"choices": [{"message": {"content": texts[-1]}}]}})

    same, other = FolderSink(tmp_path), FolderSink(tmp_path)
    assert answered(outputs("one", "one two", "one", "one two three"), same).text == "one two three"
    assert same.said == ["one", " two", " three"]
    assert answered(outputs("one", "on", "a new text"), other).text == "a new text"
    assert other.said == ["one"]


def test_answers_with_more_than_a_text_stand_whole_in_the_data(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": None, "tool_calls": [call]},
        "finish_reason": "tool_calls",
    }
    made = answered(iter([Output({"text": "", "answer": {"choices": [choice], "usage": None}})]), FolderSink(tmp_path))
    assert made.data == {"finish_reason": "tool_calls", "usage": {}, "choices": [choice]}


def test_a_model_has_a_warm_up_of_one_token(tmp_path: Path) -> None:
    assert OpenAIChat(model()).dummy(Limits(), tmp_path).request == {"prompt": "Hello", "max_tokens": 1}
