"""Conversations with images: only the template writes placeholders, and they are repeated once per feature."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from penstock.errors import InvalidInput, MediaTooLarge, MediaUnreadable
from penstock.models import Limits, media_references, tensor_places
from penstock.processors.base import Output
from penstock.processors.multimodal.chat import ImageTextToText
from penstock.processors.multimodal.request import ImageTextRequest
from penstock.processors.testing import FolderSink, LocalFiles, check_request_module
from tests.support.model_directories import make_model
from tests.support.multimodal import END, IMAGE, TEMPLATE, write_json_files, write_pictures, write_texts

TOKEN, TOKENS = 256, 16


def processor(folder: Path, *, template: str = TEMPLATE, **fields: Any) -> ImageTextToText:
    """Return the processor of a Llava without weights, with 16 tokens per image."""
    folder.mkdir(exist_ok=True)
    vision = {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8}
    config = {"model_type": "llava", "vision_config": vision, "image_token_index": TOKEN}
    write_json_files(folder, {"config.json": config | fields.pop("config", {})})
    write_texts(folder, [IMAGE, END], template)
    write_pictures(folder, "CLIPImageProcessor", size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return ImageTextToText(make_model(folder, "image-text-to-text", **fields))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    path = tmp_path / "photo.png"
    Image.new("RGB", (40, 30), "red").save(path)
    return {"media://photo": path}


PHOTO = {"type": "image", "image": "media://photo"}


def ids_of(eyes: ImageTextToText, files: Mapping[str, Path], *content: Any, **wish: Any) -> list[int]:
    request = eyes.request.model_validate({"messages": [{"role": "user", "content": list(content)}], **wish})
    [prompt] = eyes.pre_process(request, LocalFiles(files)).prompts
    found: list[int] = prompt.data["input_ids"].tolist()
    return found


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_an_image_has_its_places_where_it_stands(tmp_path: Path, files: dict[str, Path]) -> None:
    eyes = processor(tmp_path / "m")
    ids = ids_of(eyes, files, text("a"), PHOTO, text("b"), PHOTO)
    at = [index for index, token in enumerate(ids) if token == TOKEN]
    assert len(at) == 2 * TOKENS
    assert at == [*range(at[0], at[0] + TOKENS), *range(at[-1] - TOKENS + 1, at[-1] + 1)]
    assert chr(ids[at[0] - 1] + 32 + 1) == "a"  # the tokenizer's letters begin with "!"


@pytest.mark.parametrize("typed", [IMAGE, "<image><image>", "<IMAGE", "a <image> b", f"{IMAGE}\n{IMAGE}"])
def test_what_people_type_makes_no_place(tmp_path: Path, files: dict[str, Path], typed: str) -> None:
    eyes = processor(tmp_path / "m")
    assert TOKEN not in ids_of(eyes, files, text(typed))
    assert ids_of(eyes, files, text(typed), PHOTO, text(typed)).count(TOKEN) == TOKENS


def test_pieces_of_a_token_are_one_text_unless_an_image_stands_between(tmp_path: Path, files: dict[str, Path]) -> None:
    eyes = processor(tmp_path / "m")
    assert TOKEN not in ids_of(eyes, files, text("<ima"), text("ge>"))
    for begun, ended in (("<ima", "ge>"), ("<e", "nd>")):
        with pytest.raises(InvalidInput, match="special tokens together") as caught:
            ids_of(eyes, files, text(begun), PHOTO, text(ended))
        assert caught.value.errors[0].pointer == "/input/messages/0/content"


@given(st.lists(st.sampled_from([IMAGE, END, "<", "ima", "ge>", " ", "a", "PHOTO"]), min_size=1, max_size=12))
def test_there_are_as_many_places_as_images_whatever_is_typed(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    eyes, files = _shared(tmp_path_factory)
    content = [PHOTO if piece == "PHOTO" else text(piece) for piece in pieces]
    try:
        ids = ids_of(eyes, files, *content)
    except InvalidInput as error:
        assert "together" in error.detail  # noqa: PT017  (the refusal is one of two right answers)
    else:
        assert ids.count(TOKEN) == TOKENS * pieces.count("PHOTO")


_made: list[tuple[ImageTextToText, dict[str, Path]]] = []


def _shared(factory: pytest.TempPathFactory) -> tuple[ImageTextToText, dict[str, Path]]:
    if not _made:
        folder = factory.mktemp("shared")
        Image.new("RGB", (40, 30), "red").save(folder / "photo.png")
        _made.append((processor(folder / "m"), {"media://photo": folder / "photo.png"}))
    return _made[0]


def test_a_template_that_leaves_an_image_out_is_told(tmp_path: Path, files: dict[str, Path]) -> None:
    first_only = TEMPLATE.replace("part.type == 'image'", "part.type == 'image' and loop.first")
    eyes = processor(tmp_path / "m", template=first_only)
    assert ids_of(eyes, files, PHOTO, text("a")).count(TOKEN) == TOKENS
    with pytest.raises(InvalidInput, match=r"number of <image> tokens in the prompts .* 1 <image> tokens and 2 images"):
        ids_of(eyes, files, PHOTO, PHOTO)


@pytest.mark.parametrize("images", [["media://photo"], "media://photo"])
def test_a_prompt_and_images_are_one_message(tmp_path: Path, files: dict[str, Path], images: list[str] | str) -> None:
    eyes = processor(tmp_path / "m")
    short = eyes.request.model_validate({"images": images, "prompt": "What?"})
    assert set(media_references(eyes.request.model_json_schema(), {"images": images})) >= {
        ("/images" if isinstance(images, str) else "/images/0", "media://photo")
    }
    [prompt] = eyes.pre_process(short, LocalFiles(files)).prompts
    assert prompt.data["input_ids"].tolist() == ids_of(eyes, files, PHOTO, text("What?"))


def test_a_token_that_its_file_does_not_call_special_is_none_of_the_users_either(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    folder = tmp_path / "m"
    processor(folder)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"special": true', '"special": false'))
    eyes = ImageTextToText(make_model(folder, "image-text-to-text"))
    assert ids_of(eyes, files, text(IMAGE), PHOTO).count(TOKEN) == TOKENS


@pytest.mark.parametrize(
    ("input_", "place"),
    [
        ({}, ""),
        ({"images": ["media://a"]}, ""),
        ({"prompt": "a"}, ""),
        ({"images": ["media://a"], "prompt": "a", "messages": [{"role": "user", "content": "a"}]}, ""),
        ({"messages": [{"role": "user", "content": []}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "video", "video": "media://a"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages"),
        ({"images": [], "prompt": "a"}, "images"),
        ({"processed": "media://a", "messages": [{"role": "user", "content": "a"}]}, ""),
        ({"processed": "media://a", "prompt": "a"}, ""),
    ],
)
def test_a_request_has_images_or_messages(input_: dict[str, Any], place: str) -> None:
    from jsonschema import Draft202012Validator

    with pytest.raises(ValidationError) as caught:
        ImageTextRequest.model_validate(input_)
    assert any(place in map(str, error["loc"]) or not place for error in caught.value.errors())
    assert not Draft202012Validator(ImageTextRequest.model_json_schema()).is_valid(input_)


def test_processed_inputs_are_raw_tensors() -> None:
    schema = ImageTextRequest.model_json_schema()
    assert list(tensor_places(schema, {"processed": "media://a"})) == ["/processed"]
    assert list(tensor_places(schema, {"images": ["media://a"], "prompt": "a"})) == []


def test_the_schema_finds_the_images_in_messages(tmp_path: Path) -> None:
    check_request_module(processor(tmp_path / "m"))
    value = {"messages": [{"role": "user", "content": [text("media://no"), PHOTO]}, {"role": "user", "content": "a"}]}
    found = list(media_references(ImageTextRequest.model_json_schema(), value))
    assert set(found) == {("/messages/0/content/1/image", "media://photo")}


def test_more_images_than_the_model_takes_and_broken_ones_are_refused(tmp_path: Path, files: dict[str, Path]) -> None:
    eyes = processor(tmp_path / "m", limits=Limits(max_items=1, max_pixels=1000))
    with pytest.raises(InvalidInput, match="2 images were given; this model accepts at most 1"):
        ids_of(eyes, files, PHOTO, PHOTO)
    with pytest.raises(MediaTooLarge, match="40 x 30 = 1200 pixels"):
        ids_of(eyes, files, PHOTO)
    files["media://photo"].write_bytes(b"\x89PNG\r\n\x1a\n and nothing")
    with pytest.raises(MediaUnreadable):
        ids_of(eyes, files, PHOTO)


def test_images_count_against_the_length_that_the_model_takes(tmp_path: Path, files: dict[str, Path]) -> None:
    config = {"text_config": {"max_position_embeddings": 60}}
    eyes = processor(tmp_path / "m", config=config)
    given = len(ids_of(eyes, files, PHOTO, text("?"), max_new_tokens=1))
    with pytest.raises(InvalidInput, match=f"has {given} tokens and needs room for {61 - given} more; .* 60 in total"):
        ids_of(eyes, files, PHOTO, text("?"), max_new_tokens=61 - given)


def test_the_text_is_told_while_it_is_made(tmp_path: Path, files: dict[str, Path]) -> None:
    eyes = processor(tmp_path / "m")
    request = eyes.request.model_validate({"images": ["media://photo"], "prompt": "?", "stop": ["!"]})
    prepared = eyes.pre_process(request, LocalFiles(files))
    sink = FolderSink(tmp_path)
    said = [[39], [39, 72], [39, 72, 0]]  # "H", "Hi", "Hi!"
    outputs = (Output({"token_ids": ids}, partial=True) for ids in said)
    result = eyes.post_process(outputs, prepared.context, sink)
    assert (result.text, sink.said) == ("Hi", ["H", "i"])
    assert result.data is not None
    assert (result.data["finish_reason"], result.data["usage"]["prompt_tokens"]) == (
        "stop",
        len(prepared.context.prompt),
    )
