"""Fields and an example of the request of each shipped processor, as the page's own JavaScript makes them."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from penstock.models import Limits, limited
from tests.support.node import answer_of

#: Prints the kinds of the fields of schemas: those that the form shows first, and the others.
SCRIPT = """
const { kindOf, leading, resolve } = page;
const kind = (schema, root, depth) => {
  const found = resolve(schema, root);
  const whole = found.items ? { ...found, items: resolve(found.items, root) } : found;
  const own = kindOf(whole, depth);
  const several = whole.type === "array" ? (whole.one ? "one or more " : "several ") : "";
  return own === "list" ? `${several}${kind(whole.items, root, depth + 1)}` : own === "media" ? several + own : own;
};
const fields = (root) => {
  const schema = resolve(root, root);
  const first = leading(schema, root);
  const all = Object.entries(schema.properties).map(([name, part]) => [name, kind(part, root, 0)]);
  return { first: Object.fromEntries(all.filter(([name]) => first.has(name))), all: Object.fromEntries(all) };
};
console.log(JSON.stringify(Object.fromEntries(Object.entries(given).map(([name, root]) => [name, fields(root)]))));
"""
EXAMPLES = """
const all = Object.entries(given).map(([name, root]) => [name, page.example(root)]);
console.log(JSON.stringify(Object.fromEntries(all)));
"""
PHASES = "console.log(JSON.stringify([...page.phaseTimes(given)]));"
IMAGE, IMAGES, TEXTS = {"image": "media"}, {"images": "one or more media"}, {"texts": "one or more text"}
SCENE, VIDEO, LABELS = {"scene": "media"}, {"video": "media"}, {"labels": "several text"}
#: The fields that come first, by processor: the file or the text that a person gives.
FIRST: dict[str, dict[str, str]] = {
    "audio-classification": {"audio": "media"},
    "depth-estimation": IMAGE,
    "image-classification": IMAGES,
    "image-embedding": IMAGES,
    "image-generation": {"prompt": "text"},
    "image-segmentation": IMAGE,
    "image-text-to-text": IMAGES | {"prompt": "text"},
    "instance-segmentation": IMAGE,
    "layout-detection": IMAGES,
    "mask-generation": IMAGE | {"objects": "several group"},
    "object-detection": IMAGE,
    "openai-chat": {"prompt": "text"},
    "openai-completion": {"prompt": "text"},
    "openai-embedding": TEXTS,
    "optical-character-recognition": IMAGES,
    "raster-detection": SCENE,
    "raster-embedding": SCENE,
    "raster-mask-generation": SCENE | {"objects": "several group"},
    "raster-regression": SCENE,
    "raster-segmentation": SCENE,
    "raster-zero-shot-detection": SCENE | LABELS,
    "speech-recognition": {"audio": "media"},
    "tabular": {"table": "media"},
    "tensor": {"file": "media"},
    "text-classification": TEXTS,
    "text-embedding": TEXTS | {"files": "several media"},
    "text-generation": {"prompt": "text"},
    "text-image-embedding": TEXTS | IMAGES,
    "text-ranking": {"documents": "one or more text", "queries": "one or more text"},
    "video-classification": VIDEO,
    "video-segmentation": VIDEO,
    "function": {},  # the fields are those of its signature
    "vllm-plugin": {},  # the fields are those that a model's record declares
    "zero-shot-classification": IMAGES | LABELS,
    "zero-shot-object-detection": IMAGE | LABELS,
}
#: Fields without a form of their own: a person writes JSON.
AS_JSON = {
    "bands", "logit_bias", "response_format", "tools", "tool_choice",
}  # fmt: skip


def fields_of(schemas: dict[str, Any]) -> dict[str, dict[str, dict[str, str]]]:
    """Return the kinds of fields of schemas, as the page decides them."""
    found: dict[str, dict[str, dict[str, str]]] = answer_of(SCRIPT, "submit/schema.js", schemas)
    return found


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    """Return the schemas of the requests of all shipped processors."""
    shipped = entry_points(group="penstock.io_processors")
    own = [each for each in shipped if each.value.startswith("penstock.")]
    return {each.name: limited(each.load().request.model_json_schema(), Limits(max_items=4)) for each in own}


@pytest.fixture(scope="module")
def fields(schemas: dict[str, Any]) -> dict[str, dict[str, dict[str, str]]]:
    return fields_of(schemas)


def test_every_processor_has_fields_for_its_file_or_its_text_first(
    fields: dict[str, dict[str, dict[str, str]]],
) -> None:
    assert {name: found["first"] for name, found in fields.items()} == FIRST


def test_few_fields_want_json(fields: dict[str, dict[str, dict[str, str]]]) -> None:
    wanting = {field for found in fields.values() for field, kind in found["all"].items() if "json" in kind}
    assert wanting == AS_JSON


def test_a_form_shows_unions_as_one_field() -> None:
    text, media, none = {"type": "string"}, {"type": "string", "format": "media"}, {"type": "null"}
    properties = {
        "optional": {"anyOf": [{"type": "integer"}, none]},
        "texts": {"anyOf": [text, {"type": "array", "items": text}, none]},
        "by_name": {"anyOf": [{"$ref": "#/$defs/File"}, {"type": "array", "items": {"$ref": "#/$defs/File"}}]},
        "item": {"anyOf": [media, {"type": "object"}]},
        "crs": {"anyOf": [{"type": "string", "enum": ["scene"]}, {"type": "string", "pattern": "^EPSG"}]},
        "outputs": {"type": "array", "items": {"const": "annotated", "type": "string"}},
        "mixed": {"anyOf": [{"type": "integer"}, {"type": "array", "items": text}]},
    }
    schema = {"type": "object", "properties": properties, "required": ["texts"], "$defs": {"File": media}}
    assert fields_of({"made": schema})["made"] == {
        "first": {"texts": "one or more text"},
        "all": {
            "optional": "number", "texts": "one or more text", "by_name": "one or more media", "item": "media",
            "crs": "text", "outputs": "choices", "mixed": "json",
        },
    }  # fmt: skip


def test_every_processor_has_an_example_that_its_schema_accepts(schemas: dict[str, Any]) -> None:
    examples = answer_of(EXAMPLES, "models/example.js", schemas)
    without = {"mask-generation", "raster-mask-generation"}  # points on an object need a look at the picture
    assert {name for name, found in examples.items() if found is None} == without
    for name in schemas.keys() - without:
        files = {
            field: [f"media://one/{each}" for each in value] if isinstance(value, list) else f"media://one/{value}"
            for field, value in examples[name]["files"].items()
        }
        Draft202012Validator(schemas[name]).validate({**examples[name]["input"], **files})
    assert examples["image-text-to-text"]["files"].keys() == {"images"}
    assert examples["text-ranking"]["files"] == {}
    assert examples["text-ranking"]["input"]["queries"] == "Where is the lagoon?"
    assert examples["zero-shot-classification"]["input"]["labels"] == ["a house", "a cat"]


def test_a_file_of_an_example_has_an_ending_that_the_model_reads() -> None:
    media = {"type": "string", "format": "media"}
    made = {
        "image": {**media, "x-suffixes": [".jpg", ".png"]}, "scene": {**media, "x-suffixes": [".tif", ".jp2"]},
        "images": {"anyOf": [media, {"type": "array", "items": media}], "x-suffixes": [".png"]},
        "files": {"type": "array", "items": media, "x-suffixes": [".txt"]},
    }  # fmt: skip
    schema = {"type": "object", "properties": made, "required": list(made)}
    assert answer_of(EXAMPLES, "models/example.js", {"made": schema})["made"]["files"] == {
        "image": "image.png", "scene": "scene.tif", "images": "images.png", "files": ["file.txt"],
    }  # fmt: skip


def test_a_phase_that_an_attempt_enters_twice_is_one_sum() -> None:
    given = [["loading", 0, 5], ["preprocessing", 5, 9], ["inferring", 9, 20], ["preprocessing", 20, 21]]
    given += [["inferring", 21, 31], ["uploading", 31, 33]]
    found = answer_of(PHASES, "jobs/timeline.js", given)
    assert found == [["loading", 5], ["preprocessing", 5], ["inferring", 21], ["uploading", 2]]
