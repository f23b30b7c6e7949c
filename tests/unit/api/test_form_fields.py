"""The fields that the page's form shows for the request of each shipped processor, by its own JavaScript."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from penstock.models import Limits, limited

SCHEMA_JS = Path(__file__).parents[3] / "api" / "ui" / "src" / "submit" / "schema.js"
#: Prints the kinds of the fields of schemas: those that the form shows first, and the others.
SCRIPT = """
import { readFileSync } from "node:fs";
const { kindOf, leading, resolve } = await import(process.argv[1]);
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
const schemas = JSON.parse(readFileSync(0));
console.log(JSON.stringify(Object.fromEntries(Object.entries(schemas).map(([name, root]) => [name, fields(root)]))));
"""
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
    "vllm-plugin": {},  # the fields are those that a model's record declares
    "zero-shot-classification": IMAGES | LABELS,
    "zero-shot-object-detection": IMAGE | LABELS,
}
#: Fields without a form of their own: a person writes JSON.
AS_JSON = {
    "bands", "logit_bias", "response_format", "tools", "tool_choice",
}  # fmt: skip


def fields_of(schemas: dict[str, Any]) -> dict[str, dict[str, dict[str, str]]]:
    """Return the kinds of fields of schemas, as the page decides them; skip without Node.js, and fail in CI."""
    node = shutil.which("node")
    if node is None:
        reason = "needs Node.js 18 or newer: apt-get install nodejs"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    command = [node, "--input-type=module", "-e", SCRIPT, SCHEMA_JS.as_uri()]
    done = subprocess.run(command, input=json.dumps(schemas), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, dict[str, str]]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def fields() -> dict[str, dict[str, dict[str, str]]]:
    shipped = entry_points(group="penstock.io_processors")
    own = [each for each in shipped if each.value.startswith("penstock.")]
    limits = Limits(max_items=4)
    return fields_of({each.name: limited(each.load().request.model_json_schema(), limits) for each in own})


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
