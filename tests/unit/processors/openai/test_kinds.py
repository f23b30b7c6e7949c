"""Kinds of media that chats may have: those of the record, or those that the model's directory speaks of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.openai.kinds import kinds_of
from penstock.processors.openai.options import options_of
from penstock.processors.openai.text import OpenAIChat
from penstock.workers.engine.vllm.arguments import check_kinds

LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "text": "image video audio"}
LLAMA_FILES = {"config.json": LLAMA}
PARTS = {
    "image": {"type": "image_url", "image_url": {"url": "media://a"}},
    "video": {"type": "video_url", "video_url": {"url": "media://a"}},
    "audio": {"type": "input_audio", "input_audio": {"data": "media://a"}},
    "file": {"type": "file", "file": {"file_data": "media://a"}},
}


def a_model(folder: Path, files: dict[str, Any], runner: str = "vllm", **options: Any) -> Model:
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data))
    return Model(
        name="m", title="M", runner=runner, processor="openai-chat", source=str(folder), revision="1", options=options
    )


@pytest.mark.parametrize(
    ("files", "kinds"),
    [
        ({"config.json": LLAMA}, ()),
        ({"config.json": {"vision_config": {}}}, ("image",)),
        ({"config.json": {"vision_config": {}, "video_token_id": 1}}, ("image", "video")),
        ({"config.json": {"sub": [{"audio_config": {}}]}}, ("audio",)),
        ({"config.json": LLAMA, "preprocessor_config.json": {"image_processor_type": "x"}}, ("image",)),
        ({"params.json": {"dim": 1, "vision_encoder": {}}}, ("image",)),
        ({}, None),
    ],
    ids=str,
)
def test_a_directory_takes_the_kinds_of_which_it_speaks(
    files: dict[str, Any], kinds: tuple[str, ...] | None, tmp_path: Path
) -> None:
    model = a_model(tmp_path, files)
    assert kinds_of(model, options_of(model)) == kinds


def test_the_record_has_the_last_word_and_other_servers_take_what_they_like(tmp_path: Path) -> None:
    files = {"config.json": {"vision_config": {}}}
    model = a_model(tmp_path, files, media={"image": 0, "audio": 1})
    assert kinds_of(model, options_of(model)) == ("audio",)
    for most, kinds in (({}, None), ({"image": 4}, None), ({"audio": 0}, ("image", "video", "file"))):
        server = a_model(tmp_path, files, runner="openai-server", media=most)
        assert kinds_of(server, options_of(server)) == kinds
    with pytest.raises(ModelUnavailable, match="media"):
        options_of(a_model(tmp_path, files, media={"smell": 1}))


@pytest.mark.parametrize(
    "kinds", [[], ["image"], ["image", "video"], ["audio"], ["image", "video", "audio"]], ids=" ".join
)
def test_a_request_has_media_of_these_kinds_only(kinds: list[str], tmp_path: Path) -> None:
    most = {kind: int(kind in kinds) for kind in ("image", "video", "audio")}
    request = OpenAIChat(a_model(tmp_path, LLAMA_FILES, media=most)).request
    schema = Draft202012Validator(request.model_json_schema())
    for kind, part in PARTS.items():
        asked = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "a"}]}]}
        assert schema.is_valid(asked) == (kind in kinds), kind
        assert _valid(request, asked) == (kind in kinds), kind
    prompted = {"prompt": "a", "images": ["media://a"]}
    assert schema.is_valid(prompted) == _valid(request, prompted) == ("image" in kinds)
    assert _valid(request, {"messages": [{"role": "user", "content": "a"}]})


def _valid(request: Any, asked: Any) -> bool:
    try:
        request.model_validate(asked)
    except ValueError:
        return False
    return True


def test_the_check_names_the_kinds_that_vllm_takes(tmp_path: Path) -> None:
    model = a_model(tmp_path, {})
    for kinds in (None, (), ("image",)):
        check_kinds(model, kinds, ["image", "vision_chunk"])
    said = "takes no video and no audio for model 'm', only text, image: set `options.media = { video = 0, audio = 0 }`"
    with pytest.raises(ModelUnavailable, match=said):
        check_kinds(model, ("image", "video", "audio"), ["image"])
