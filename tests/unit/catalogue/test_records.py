"""`models.toml`: what a record may say, and how models are found by name."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

import pytest

from penstock.catalogue.records import read_catalogue
from penstock.errors import ConfigError
from penstock.local.ready import append
from penstock.models import Limits, find, known_names
from penstock.workers.provenance import record_sha256

RECORD = """
[models.{name}]
title = "A model"
runner = "fake"
processor = "echo"
source = "{source}"
revision = "1"
aliases = {aliases}
"""


def written(
    path: Path, name: str = "mine", source: str = "weights", aliases: tuple[str, ...] = (), more: str = ""
) -> Path:
    path.write_text(RECORD.format(name=name, source=source, aliases=list(aliases)) + more)
    return path


def test_the_shipped_catalogue_can_be_read() -> None:
    assert "csmask" in read_catalogue()


def test_a_model_is_found_by_its_name_and_its_aliases(tmp_path: Path) -> None:
    catalogue = read_catalogue(written(tmp_path / "a.toml", aliases=("clouds", "my.model")))
    assert all(find(catalogue, name) is catalogue["mine"] for name in ("mine", "clouds", "my.model"))
    assert find(catalogue, "other") is None
    assert known_names(catalogue) == "csmask, mine (clouds, my.model)"


def test_a_name_with_two_revisions_is_no_name(tmp_path: Path) -> None:
    catalogue = read_catalogue(written(tmp_path / "a.toml"))
    revision = catalogue["mine"].revision
    assert find(catalogue, f"mine@{revision}") is catalogue["mine"]
    promoted = {"mine": catalogue["mine"].model_copy(update={"aliases": ("feel", f"feel@{revision}")})}
    assert find(promoted, f"feel@{revision}") is promoted["mine"]
    assert find(promoted, f"feel@{revision}@{revision}") is None


@pytest.mark.parametrize("alias", ["csmask", "taken", "other"])
def test_a_name_belongs_to_one_model_and_a_later_claim_is_wrong(tmp_path: Path, alias: str) -> None:
    other = written(tmp_path / "other.toml", name="other", aliases=("taken",))
    mine = written(tmp_path / "mine.toml", aliases=(alias, "free"))
    catalogue = read_catalogue(other, mine)
    assert set(catalogue) == {"csmask", "other"}
    owner = "csmask" if alias == "csmask" else "other"
    problem = f"{mine}: model 'mine': aliases: '{alias}' already is a name of model '{owner}'"
    assert catalogue.wrong["mine"].problem == problem
    assert (find(catalogue, alias), catalogue.wrong["mine"].aliases) == (catalogue[owner], ())


def test_of_two_claims_that_is_wrong_which_was_read_later_though_it_replaces_an_earlier_record(tmp_path: Path) -> None:
    first = written(tmp_path / "first.toml")
    other = written(tmp_path / "other.toml", name="other", aliases=("clouds",))
    last = written(tmp_path / "last.toml", aliases=("clouds",))
    assert set(read_catalogue(first, other, last).wrong) == {"mine"}


def test_a_later_record_replaces_one_of_its_name_with_its_aliases(tmp_path: Path) -> None:
    first = written(tmp_path / "first.toml", aliases=("old",))
    second = written(tmp_path / "second.toml", aliases=("new",))
    catalogue = read_catalogue(first, second)
    assert catalogue["mine"].aliases == ("new",)
    assert find(catalogue, "old") is None


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("weights", "{folder}/weights"),
        ("../weights/model.onnx", "{folder}/../weights/model.onnx"),
        ("/srv/weights", "/srv/weights"),
        ("package:ukis_csmask/model.onnx", "package:ukis_csmask/model.onnx"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("hf://google/vit", "hf://google/vit"),
    ],
)
def test_a_relative_source_starts_at_its_catalogue(tmp_path: Path, source: str, meant: str) -> None:
    folder = tmp_path / "catalogues"
    folder.mkdir()
    catalogue = read_catalogue(written(folder / "models.toml", source=source))
    assert catalogue["mine"].source == meant.format(folder=folder)


@pytest.mark.parametrize(
    ("source", "more", "address"),
    [
        ("weights", "", None),
        ("s3://bucket/prefix", "", None),
        ("package:ukis_csmask/model.onnx", "", None),
        ("hf://google/vit", "", "https://huggingface.co/google/vit/tree/1"),
        ("hf://google/vit/v1.5/a b.ckpt", "", "https://huggingface.co/google/vit/blob/1/v1.5/a%20b.ckpt"),
        ("hf://gpt2", "", "https://huggingface.co/gpt2/tree/1"),
        ("hf://google/vit", "weights_url = 'https://a.example/w'", "https://a.example/w"),
        ("weights", "weights_url = 'https://a.example/w%20x.pt'", "https://a.example/w%20x.pt"),
    ],
)
def test_weights_are_published_at_the_records_address_or_on_the_hub(
    source: str, more: str, address: str | None, tmp_path: Path
) -> None:
    model = read_catalogue(written(tmp_path / "models.toml", source=source, more=more))["mine"]
    assert model.published_at == address


def test_every_limit_is_read(tmp_path: Path) -> None:
    more = "limits = { max_bytes = 1, max_pixels = 2, max_tiles = 3, max_items = 4, max_tokens = 5 }"
    catalogue = read_catalogue(written(tmp_path / "models.toml", more=more))
    assert catalogue["mine"].limits == Limits(max_bytes=1, max_pixels=2, max_tiles=3, max_items=4, max_tokens=5)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("colour = 1", "colour: is not known"),
        ("max_batch = 0", "max_batch: must be greater than 0"),
        ("limits = { max_bites = 1 }", "limits.max_bites: is not known"),
        ("files = { 'a.json' = 'beef' }", "files.a.json: must match pattern '^[0-9a-f]{64}$'"),
        ("name = 'mine'", "name: unknown field: the table's name is the model's name"),
        ("weights_url = 'https://a.example/w?sig=secret'", "weights_url: must match pattern"),
        ("weights_url = 'https://me:secret@a.example/w'", "weights_url: must match pattern"),
        ("weights_url = '/srv/w'", "weights_url: must match pattern"),
        ("max_batch = 0\ncolour = 1", "max_batch: must be greater than 0; colour: is not known"),
    ],
)
def test_a_wrong_field_is_the_trouble_of_its_own_model(tmp_path: Path, more: str, said: str) -> None:
    wrong = written(tmp_path / "wrong.toml", name="wrong", aliases=("clouds",), more=f"queue = 'slow'\n{more}")
    catalogue = read_catalogue(wrong, written(tmp_path / "right.toml"))
    assert set(catalogue) == {"csmask", "mine"}
    found = catalogue.wrong["wrong"]
    assert found.problem is not None
    assert found.problem.startswith(f"{wrong}: model 'wrong': {said}")
    assert (found.rest.queue, found.rest.title) == ("slow", "A model"), "what is right of it is told"
    assert find(catalogue.wrong, "clouds") is found


def test_what_a_record_lacks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text("models = { bare = {}, none = 3 }")
    wrong = read_catalogue(path).wrong
    assert wrong["none"].problem == f"{path}: model 'none' is not a table of a model's fields"
    needed = ("title", "runner", "processor", "source", "revision")
    assert wrong["bare"].problem == f"{path}: model 'bare': " + "; ".join(f"{field}: is required" for field in needed)
    assert (wrong["bare"].rest.title, wrong["bare"].rest.queue) == ("bare", "default")


def test_a_wrong_record_takes_the_place_of_an_earlier_one_and_a_right_one_its(tmp_path: Path) -> None:
    right = written(tmp_path / "right.toml", name="csmask")
    wrong = written(tmp_path / "wrong.toml", name="csmask", more="colour = 1")
    assert set(read_catalogue(wrong).wrong) == {"csmask"}
    assert "csmask" not in read_catalogue(right, wrong)
    assert read_catalogue(wrong, right)["csmask"].runner == "fake"
    assert not read_catalogue(wrong, right).wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"=", "models.toml is not TOML: "),
        (b"[models.a]\n[models.a]\n", "models.toml is not TOML: Cannot declare"),
        (b"# \xff", "models.toml is not UTF-8"),
        (b"models = 3", "models.toml: models is not a table of records"),
        (b"[models.'My Model']", "models.toml: model 'My Model': name: must match pattern"),
    ],
)
def test_a_file_without_records_is_a_config_error(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "models.toml").write_bytes(text)
    with pytest.raises(ConfigError, match=said):
        read_catalogue(tmp_path / "models.toml")


def test_a_byte_order_mark_before_a_catalogue_is_no_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", name="mine")
    path.write_bytes(BOM_UTF8 + path.read_bytes())
    assert read_catalogue(path)["mine"].name == "mine"
    append(path, "other", '[models.other]\ntitle = "Zweite für Größe"\n')
    assert BOM_UTF8 not in path.read_bytes()
    assert '[models.other]\ntitle = "Zweite für Größe"' in path.read_text(encoding="utf-8")


def test_a_file_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the catalogue .*models.toml: No such file"):
        read_catalogue(tmp_path / "models.toml")


def test_a_catalogue_may_lie_in_a_package() -> None:
    assert read_catalogue(Path("package:penstock/catalogue/csmask-onnx.toml"))["csmask"].runner == "onnx"


@pytest.mark.parametrize("name", ["package:", "package:/a.toml", "package:no_such/a.toml", "package:a.b/c.toml"])
def test_a_catalogue_in_a_package_that_is_not_installed_stops_the_start(name: str) -> None:
    with pytest.raises(ConfigError, match="is not installed"):
        read_catalogue(Path(name))


def test_a_catalogue_that_a_package_lacks_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the catalogue .*none\.toml: No such file"):
        read_catalogue(Path("package:penstock/catalogue/none.toml"))


FUNCTION = '''
import penstock

@penstock.model(max_batch=4, cache=True)
class Lines:
    """Count lines."""

    def __init__(self, language: str = "en") -> None: ...

    def predict(self, words: list[str]) -> list[int]: ...
'''


def of_function(folder: Path, more: str = "", *, function: str = "lines.py:Lines") -> Path:
    (folder / "lines.py").write_text(FUNCTION)
    path = folder / "models.toml"
    path.write_text(f'[models.mine]\nfunction = "{function}"\nsource = "words.txt"\nrevision = "1"\n{more}')
    return path


def test_a_record_of_a_function_has_its_signature_and_its_own_source(tmp_path: Path) -> None:
    model = read_catalogue(of_function(tmp_path, 'max_batch = 2\noptions = { language = "de" }'))["mine"]
    assert (model.runner, model.processor) == ("function", "function")
    assert (model.title, model.max_batch, model.cache) == ("Count lines", 2, True)
    assert model.source == str(tmp_path / "words.txt")
    assert model.options["file"] == str(tmp_path / "lines.py")
    assert model.options["arguments"] == {"language": "de"}
    assert model.options["signature"]["attribute"] == "Lines"
    assert model.function == "lines.py:Lines"


def test_a_record_of_a_function_is_another_one_when_the_file_changes_and_not_when_it_moves(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "words.txt").touch()
    models = [read_catalogue(of_function(folder))["mine"] for folder in folders]
    assert record_sha256(models[0]) == record_sha256(models[1])
    changed = of_function(folders[1])
    with (folders[1] / "lines.py").open("a") as file:
        file.write("# more\n")
    assert record_sha256(read_catalogue(changed)["mine"]) != record_sha256(models[0])


@pytest.mark.parametrize(
    ("function", "more", "problem"),
    [
        ("lines.py:Other", "", "lines.py has no function 'Other'; it has Lines"),
        ("none.py:Lines", "", "cannot read the models in"),
        ("no-such-kind", "", "there is no function 'no-such-kind'; known: text-to-speech, token-classification, or"),
        ("lines.py:Lines", "options = { colour = 1 }", "Lines of lines.py takes language, not colour"),
        ("lines.py:Lines", 'runner = "torch"', "runner: a record with `function` has none"),
    ],
)
def test_a_wrong_function_concerns_its_own_record_only(tmp_path: Path, function: str, more: str, problem: str) -> None:
    catalogue = read_catalogue(of_function(tmp_path, more, function=function))
    assert set(catalogue) == {"csmask"}
    assert problem in catalogue.wrong["mine"].problem
