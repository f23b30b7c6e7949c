"""Drop rules take field and suffixes from the schemas of the shipped processors."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from penstock.config_tables import DropRule
from penstock.errors import ConfigError, InvalidInput
from penstock.intake.drop_inputs import document_input, field_for, field_value, fitted, is_document
from penstock.storage.drop_rules import ignored, wanted

ROOT = Path(__file__).parents[3]
POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["penstock.io_processors"]
PHOTO, SCENE, SOUND, CLIP = "photo.JPG", "scene.tif", "speech.wav", "clip.mp4"
#: Field, a file as people name it, and the input's value; None: the model takes no file alone.
TAKEN: Mapping[str, tuple[str, str, Any] | None] = {
    "audio-classification": ("audio", SOUND, "media://a/b"),
    "depth-estimation": ("image", PHOTO, "media://a/b"),
    "image-classification": ("images", PHOTO, "media://a/b"),
    "image-embedding": ("images", PHOTO, "media://a/b"),
    "image-generation": ("image", PHOTO, "media://a/b"),
    "image-segmentation": ("image", PHOTO, "media://a/b"),
    "image-text-to-text": ("images", PHOTO, "media://a/b"),
    "instance-segmentation": ("image", PHOTO, "media://a/b"),
    "layout-detection": ("images", PHOTO, "media://a/b"),
    "mask-generation": ("image", PHOTO, "media://a/b"),
    "object-detection": ("image", PHOTO, "media://a/b"),
    "openai-chat": ("images", PHOTO, "media://a/b"),
    "openai-completion": None,
    "openai-embedding": None,
    "optical-character-recognition": ("images", PHOTO, "media://a/b"),
    "raster-detection": ("scene", SCENE, "media://a/b"),
    "raster-embedding": ("scene", SCENE, "media://a/b"),
    "raster-mask-generation": ("scene", SCENE, "media://a/b"),
    "raster-regression": ("scene", SCENE, "media://a/b"),
    "raster-segmentation": ("scene", SCENE, "media://a/b"),
    "raster-zero-shot-detection": ("scene", SCENE, "media://a/b"),
    "speech-recognition": ("audio", SOUND, "media://a/b"),
    "tabular": ("table", "plots.csv", "media://a/b"),
    "tensor": ("file", "rows.npy", "media://a/b"),
    "text-classification": None,
    "text-embedding": ("files", "letter.txt", ["media://a/b"]),
    "text-generation": ("prompt_embeds", "prompt.npy", "media://a/b"),
    "text-image-embedding": ("images", PHOTO, "media://a/b"),
    "text-ranking": None,
    "video-classification": ("video", CLIP, "media://a/b"),
    "video-segmentation": ("video", CLIP, "media://a/b"),
    "function": None,  # its fields are those of its signature
    "vllm-plugin": None,  # its fields stand in the model's record
    "zero-shot-classification": ("images", PHOTO, "media://a/b"),
    "zero-shot-object-detection": ("image", PHOTO, "media://a/b"),
}


def readme_rule(**changes: Any) -> DropRule:
    """Return the rule that the README shows, with changes."""
    text = (ROOT / "README.md").read_text().partition("```toml\n[[drops]]")[2].partition("```")[0]
    return DropRule(**(tomllib.loads("[[drops]]" + text)["drops"][0] | changes))


def schema_of(processor: str) -> dict[str, Any]:
    module, _, name = POINTS[processor].partition(":")
    schema: dict[str, Any] = getattr(import_module(module), name).request.model_json_schema()
    return schema


def test_every_shipped_processor_is_looked_at() -> None:
    assert set(TAKEN) == set(POINTS)


@pytest.mark.parametrize("processor", sorted(TAKEN))
def test_the_readmes_rule_takes_the_file_of_every_model_that_takes_one(processor: str) -> None:
    rule, schema = (
        readme_rule(model="any"),
        schema_of(processor) if processor not in ("function", "vllm-plugin") else {},
    )
    expected = TAKEN[processor]
    if expected is None:
        with pytest.raises(ConfigError, match=r'does not take one file alone.*`suffixes = \["\.json"\]`'):
            field_for(rule, schema)
        return
    field, name, value = expected
    assert field_for(rule, schema) == field
    assert field_value(schema, field, "media://a/b") == value
    found = fitted(rule, schema)
    assert wanted(found, f"in/{name}")
    assert not wanted(found, f"in/{name}.json")
    for other in ("notes.docx", "setup.exe"):
        assert not wanted(found, f"in/{other}")
        assert ignored(found, f"in/{other}")


def test_a_field_without_suffixes_takes_every_name_that_is_not_hidden() -> None:
    schema = {"properties": {"report": {"type": "string", "format": "media"}}, "required": ["report"]}
    found = fitted(readme_rule(model="own"), schema)
    keys = ("in/a.docx", "in/a", "in/.gitkeep", "in/a.docx.json")
    assert [wanted(found, key) for key in keys] == [True, True, False, False]


def test_the_rules_own_words_win() -> None:
    schema = schema_of("image-classification")
    rule = readme_rule(model="vit", field="images", suffixes=[".png"])
    assert (fitted(rule, schema).suffixes, field_for(rule, schema)) == ((".png",), "images")


def test_a_field_that_the_model_lacks_is_named_with_those_it_has() -> None:
    with pytest.raises(ConfigError, match=r"vit has no field 'scene'; its files are: images\. Remove `field`"):
        field_for(readme_rule(model="vit", field="scene"), schema_of("image-classification"))


def test_a_model_of_several_files_takes_documents() -> None:
    media = {"type": "string", "format": "media"}
    schema = {"properties": {"before": media, "after": media}, "required": ["before", "after"]}
    with pytest.raises(ConfigError, match="its files are: before, after"):
        field_for(readme_rule(model="pair"), schema)
    assert field_for(readme_rule(model="pair", input={"before": "media://a/b"}), schema) == "after"


def test_json_files_are_documents_only_where_the_rule_names_no_field() -> None:
    rule = readme_rule(suffixes=[".json"])
    assert is_document(rule, "in/a.JSON")
    assert not is_document(readme_rule(suffixes=[".json"], field="table"), "in/a.json")
    assert not is_document(rule, "in/a.tif")


def test_a_stac_item_goes_to_the_field_for_it() -> None:
    item = {"type": "Feature", "assets": {}}
    assert document_input(item, schema_of("raster-segmentation"), "in/a.json") == {"stac": item}
    assert document_input({"images": []}, schema_of("image-embedding"), "in/a.json") == {"images": []}
    with pytest.raises(InvalidInput, match=r"in/a\.json is a STAC item, and the model takes none"):
        document_input(item, schema_of("image-embedding"), "in/a.json")
