"""Values after --param, and the assignment of files to fields."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.params import assign_texts, is_reference, means_texts, parse_params, take_options, text_field
from penstock.client.local_files import UsageProblem
from penstock.processors.geo.request import SegmentationRequest

SEGMENTATION = SegmentationRequest.model_json_schema()
MEDIA = {"type": "string", "format": "media"}
MIXED: dict[str, Any] = {
    "properties": {
        "text": {"type": "string"},
        "n": {"type": "integer"},
        "half": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "size": {"$ref": "#/$defs/Size"},
        "how": {"enum": ["fast", "good"]},
        "anything": {},
    },
    "$defs": {"Size": {"type": "object", "properties": {"w": {"type": "number"}}}},
}


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("outputs=classes,stats", {"outputs": ["classes", "stats"]}),
        ('outputs=["classes"]', {"outputs": ["classes"]}),
        ("radiometry.scale=0.0001", {"radiometry": {"scale": 0.0001}}),
        ("radiometry.scale=1e-4", {"radiometry": {"scale": 0.0001}}),
        ('radiometry={"scale": 2, "offset": -0.1}', {"radiometry": {"scale": 2, "offset": -0.1}}),
        ("bands=1,2,3", {"bands": [1, 2, 3]}),
        ("bands=blue, 2", {"bands": ["blue", 2]}),
        ("scene=media://1/a.tif", {"scene": "media://1/a.tif"}),
    ],
)
def test_values_of_a_real_model(pair: str, value: dict[str, Any]) -> None:
    assert parse_params([pair], SEGMENTATION) == value
    SegmentationRequest.model_validate({"scene": "media://1/x.tif", **value})


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("text=1", {"text": "1"}),
        ("text=a=b", {"text": "a=b"}),
        ("text=", {"text": ""}),
        ('text="quoted"', {"text": "quoted"}),
        ("n=1", {"n": 1}),
        ("half=true", {"half": True}),
        ("maybe=null", {"maybe": None}),
        ("maybe=3", {"maybe": 3}),
        ("size.w=3", {"size": {"w": 3}}),
        ("how=fast", {"how": "fast"}),
        ("anything=[1]", {"anything": [1]}),
        ("anything=word", {"anything": "word"}),
    ],
)
def test_values_by_their_type(pair: str, value: dict[str, Any]) -> None:
    assert parse_params([pair], MIXED) == value


def test_parts_of_one_object_come_together() -> None:
    pairs = ["radiometry.scale=2", "radiometry.nodata=0", "outputs=stats"]
    assert parse_params(pairs, SEGMENTATION) == {"radiometry": {"scale": 2, "nodata": 0}, "outputs": ["stats"]}


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("outputs", "write it as key=value"),
        ("colour=1", "known fields: text, n, half, maybe, size, how, anything"),
        ("n=1.5", "'1.5' is not a whole number"),
        ("n=true", "'true' is not a whole number"),
        ("half=1", "'1' is not true or false"),
        ("size.h=1", "there is no field 'h'; known fields: w"),
        ("size={", "'{' is not a JSON object"),
        ("n.x=1", "there is no field 'x'"),
    ],
)
def test_what_does_not_fit_is_said(pair: str, sentence: str) -> None:
    with pytest.raises(UsageProblem, match="--param") as caught:
        parse_params([pair], MIXED)
    assert sentence in str(caught.value)


def test_words_after_two_dashes_are_no_options() -> None:
    assert take_options(["a", "--n", "1", "-b", "--c"], MIXED, plain=2) == (["a", "-b", "--c"], ["n=1"])
    with pytest.raises(UsageProblem, match="--n needs a value"):
        take_options(["--n", "1"], MIXED, plain=1)
    with pytest.raises(UsageProblem, match=r"'-5'.*stand after --"):
        take_options(["-5"], MIXED)


def test_references_are_told_from_files() -> None:
    assert [is_reference(t) for t in ("media://1/a", "s3://b/k", "https://h/x", "a.tif", "c:/a")] == [True] * 3 + [
        False
    ] * 2


TEXT = {"type": "string"}
LIST = {"type": "array", "items": TEXT}


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"prompt": TEXT}, "prompt"),
        ({"texts": {"anyOf": [TEXT, LIST, {"type": "null"}]}, "more": TEXT}, "texts"),
        ({"many": LIST}, "many"),
        ({"how": {"enum": ["fast"], "type": "string"}, "scene": MEDIA, "text": TEXT}, "text"),
        ({"scene": MEDIA, "n": {"type": "integer"}}, None),
    ],
)
def test_the_first_field_for_a_text_of_ones_own_takes_it(properties: dict[str, Any], field: str | None) -> None:
    assert text_field({"properties": properties}) == field


@pytest.mark.parametrize(
    ("arguments", "properties", "required", "texts"),
    [
        (["Hello"], {"text": TEXT}, [], True),
        ([], {"text": TEXT}, ["text"], True),
        (["a.txt"], {"text": TEXT}, [], True),
        (["a.txt"], {"text": TEXT, "files": MEDIA}, [], False),
        (["s3://b/k"], {"text": TEXT, "files": MEDIA}, [], False),
        (["a.txt", "Hello"], {"text": TEXT, "files": MEDIA}, [], True),
        ([], {"text": TEXT, "files": MEDIA}, [], True),
        (["Hello"], {"text": TEXT, "scene": MEDIA}, ["scene"], False),
        (["Hello"], {"scene": MEDIA}, [], False),
    ],
)
def test_arguments_are_files_or_texts(
    arguments: list[str], properties: dict[str, Any], required: list[str], texts: bool
) -> None:
    schema = {"properties": properties, "required": required}
    assert means_texts(arguments, schema, lambda name: name.endswith(".txt")) is texts


@pytest.mark.parametrize(
    ("part", "texts", "value"),
    [
        (TEXT, ["one"], "one"),
        (TEXT, ["two", "words"], "two words"),
        (LIST, ["one"], ["one"]),
        ({"anyOf": [TEXT, LIST]}, ["one"], "one"),
        ({"anyOf": [TEXT, LIST]}, ["one", "two"], ["one", "two"]),
    ],
)
def test_several_texts_are_a_list_where_there_may_be_one(part: dict[str, Any], texts: list[str], value: Any) -> None:
    assert assign_texts(texts, {"properties": {"t": part}}) == {"t": value}
    assert assign_texts([], {"properties": {"t": part}}) == {}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["photo.jpg", "--grey"], (["photo.jpg"], ["grey=true"])),
        (["--grey", "photo.jpg"], (["photo.jpg"], ["grey=true"])),
        (["--grey", "false", "photo.jpg"], (["photo.jpg"], ["grey=false"])),
        (["--grey=false"], ([], ["grey=false"])),
        (["--no-grey", "photo.jpg"], (["photo.jpg"], ["grey=false"])),
        (["--no-wait"], ([], ["no_wait=true"])),
        (["--maybe"], ([], ["maybe=true"])),
    ],
)
def test_what_is_true_or_false_stands_alone(arguments: list[str], expected: tuple[list[str], list[str]]) -> None:
    boolean = {"type": "boolean"}
    optional = {"anyOf": [boolean, {"type": "null"}]}
    schema = {"properties": {"grey": boolean, "wait": boolean, "no_wait": boolean, "maybe": optional}}
    assert take_options(arguments, schema) == expected
    with pytest.raises(UsageProblem, match="there is no option '--no-size'"):
        take_options(["--no-size"], {"properties": {"size": {"type": "integer"}}})
