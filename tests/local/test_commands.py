"""`penstock run` and `penstock models` as a shell meets them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.sample import write_sample
from tests.support.catalogues import broken, penstock, stories, toy
from tests.support.geo.scenes import write_scene
from tests.support.hub import STORIES, needs_stories

pytestmark = pytest.mark.breadth

#: A model that says the second part of its text when the first was seen.
TALK = '''
import time
from collections.abc import Iterator
from pathlib import Path

import penstock


@penstock.model
def talk(seen: str) -> Iterator[penstock.Text]:
    """Talk."""
    yield penstock.Text("Once upon ")
    while not Path(seen).exists():
        time.sleep(0.01)
    yield penstock.Text("a time")
'''
NOWHERE = ("--url", "http://127.0.0.1:9")


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "scene.tif"
    write_sample(path, size_px=64)
    toy(tmp_path)
    return path


def test_a_scene_is_run_and_its_files_are_named(tmp_path: Path, scene: Path) -> None:
    done = penstock(
        tmp_path, "run", "toy", scene.name, "--catalogue", "toy.toml", "--param", "outputs=classes,stats", "--json"
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"]["json"]["pixels"] == 64 * 64
    assert sorted(path.name for path in (tmp_path / "toy-result").iterdir()) == [
        "classes.qml", "classes.tif", "classes.tif.aux.xml", "stats.json",
    ]  # fmt: skip
    assert (tmp_path / "toy-result" / "classes.tif").is_file()


def test_json_alone_stands_on_standard_output(tmp_path: Path, scene: Path) -> None:
    words = ("run", "plaything", str(scene), "--catalogue", "toy.toml", "--out", "here", "--json")
    done = penstock(tmp_path, *words, "--input", '{"outputs": ["stats"]}')

    result = json.loads(done.stdout)
    assert (result["model"], result["output"]["text"], result["output"]["json"]["pixels"]) == ("toy", None, 64 * 64)
    (artifact,) = result["artifacts"]
    assert (artifact["name"], artifact["content_type"]) == ("stats.json", "application/json")
    assert (tmp_path / artifact["path"]).stat().st_size == artifact["size_bytes"]


def test_notes_of_a_result_are_seen_beside_redirected_statistics(tmp_path: Path, scene: Path) -> None:
    with rasterio.open(scene) as file:
        numbers = file.read().astype(np.float32) / 10_000
        names = file.descriptions
    numbers[:, :, :24] = 0
    write_scene(tmp_path / "filled.tif", numbers, descriptions=names)
    words = ("run", "toy", "filled.tif", "--catalogue", "toy.toml", "--param", "outputs=stats")
    words = (*words, "--param", "radiometry.scale=1", "--json")
    done = penstock(tmp_path, *words)
    (note,) = json.loads(done.stdout)["output"]["json"]["notes"]
    assert f"note: {note}" in done.stderr
    assert 'give "radiometry": {"nodata": 0}' in note


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["run", "nomodel", "scene.tif"], 2, "there is no model 'nomodel'; known models: csmask, toy (plaything)"),
        (["run", "toy"], 2, "the model's files are: scene"),
        (["run", "toy", "never.tif"], 1, "media_not_found: there is no such file (/input/scene: never.tif)"),
        (["run", "toy", "s3://b/k.tif"], 1, "media_refused: only local files are allowed here"),
        (["run", "toy", "scene.tif", "--param", "colour=1"], 2, "known fields: scene, files, sidecar"),
        (["run", "toy", "scene.tif", "--param", "outputs=colour"], 1, "/input/outputs/0"),
        (["run", "toy", "scene.tif", "--input", "[]"], 2, "--input [] : neither"),
        (["run", "toy", "scene.tif", "--input", "{"], 2, "--input: not JSON"),
        (["run", "toy", "toy.toml"], 1, "media_unreadable"),
        (["run", "no-weights", "scene.tif"], 3, "no-weights cannot be used: the source of model 'no-weights' does not"),
        (["run", "no-processor", "x"], 3, "there is no processor 'telepathy'; installed: "),
        (["models", "check", "nomodel"], 3, "known models"),
        (["models", "fetch", "no-weights"], 3, "does not exist"),
        (["models", "export", "nomodel"], 3, "known models"),
        (["models", *NOWHERE], 3, "--local lists this installation's models"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_a_code(
    tmp_path: Path, scene: Path, words: list[str], code: int, sentence: str
) -> None:
    broken(tmp_path)
    catalogues = [] if words[:2] == ["models", "--url"] else ["--catalogue", "toy.toml"]
    catalogues += ["--catalogue", "broken.toml"] if "no-" in "".join(words) else []
    done = penstock(tmp_path, *words, *catalogues)

    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert sentence.replace(" :", ":") in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "toy-result").exists()
    assert scene.exists()


@needs_stories
def test_a_text_may_be_longer_than_a_files_name(tmp_path: Path) -> None:
    stories(tmp_path, STORIES)
    words = ["run", "stories", "One day. " * 40, "--catalogue", "stories.toml", "--param", "max_new_tokens=5"]
    done = penstock(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@needs_stories
def test_a_text_comes_from_the_command_line_or_standard_input(tmp_path: Path) -> None:
    stories(tmp_path, STORIES)
    words = ("run", "stories", "--catalogue", "stories.toml", "--param", "max_new_tokens=20")

    told = penstock(tmp_path, *words, "Once upon a time")
    assert told.returncode == 0, told.stderr
    assert told.stdout == ", there was a little girl named Lily. She loved to play outsid\n"
    assert penstock(tmp_path, *words, "Once", "upon", "a", "time").stdout == told.stdout
    assert penstock(tmp_path, *words, "-", typed="Once upon a time\n").stdout == told.stdout
    assert penstock(tmp_path, *words, typed="Once upon a time\n").stdout == told.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "stories.toml"]


def test_a_terminal_sees_the_text_as_it_comes(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(TALK)
    here, there = pty.openpty()
    command = [sys.executable, "-m", "penstock.cli", "run", "talk.py:talk", "--seen", str(tmp_path / "seen")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=there, stderr=there):
        os.close(there)
        said = b""
        while b"Once upon" not in said:
            piece = _next_of(here)
            assert piece, said.decode()
            said += piece
        (tmp_path / "seen").touch()
        assert b"a time" in b"".join(_all_of(here))


@pytest.mark.slow
@pytest.mark.parametrize("where", [[], ["--isolated"]])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, where: list[str]) -> None:
    write_sample(tmp_path / "big.tif", size_px=2048)
    command = [sys.executable, "-m", "penstock.cli", "run", "csmask", "big.tif", *where]
    here, there = pty.openpty()
    with subprocess.Popen(command, cwd=tmp_path, stderr=there, stdout=there) as process:
        os.close(there)
        said = b""
        while b"inferring" not in said:
            piece = _next_of(here)
            assert piece, said.decode()
            said += piece
        process.send_signal(signal.SIGINT)
        said = b"".join(_all_of(here))
        assert process.wait(60) == 130

    assert b"Traceback" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"big.tif"}


def test_the_models_of_this_installation_are_listed_with_what_is_wrong(tmp_path: Path) -> None:
    toy(tmp_path)
    broken(tmp_path)
    words = ("models", "list", "--catalogue", "toy.toml", "--catalogue", "broken.toml")

    models = {model["name"]: model["problem"] for model in json.loads(penstock(tmp_path, *words, "--json").stdout)}
    assert models.pop("csmask", None) is None
    assert models.pop("toy") is None
    assert set(models) == {"no-processor", "no-weights", "other-bytes", "no-runner"}
    table = " ".join(penstock(tmp_path, *words).stdout.split())
    assert "toy, plaything" in table
    assert all(problem.split(":")[0] in table for problem in models.values())


def test_a_check_names_each_problem_and_its_exit_code_tells(tmp_path: Path) -> None:
    toy(tmp_path)
    broken(tmp_path)
    done = penstock(tmp_path, "models", "check", "--catalogue", "toy.toml", "--catalogue", "broken.toml", "--json")

    assert done.returncode == 1
    found = {finding["model"]: finding for finding in json.loads(done.stdout)}
    assert found["toy"]["ok"]
    assert "installed: audio-classification, depth-estimation," in found["no-processor"]["problems"][0]
    assert "gone.onnx" in found["no-weights"]["problems"][0]
    assert "there is no runner 'abacus'; known runners: diffusers, function, lightgbm, onnx," in str(
        found["no-runner"]["problems"]
    )
    assert "is not the catalogue's: it has sha256" in found["other-bytes"]["problems"][0]

    one = penstock(tmp_path, "models", "check", "plaything", "--catalogue", "toy.toml", "--warm-up")
    assert one.returncode == 0, one.stderr
    assert "warmed up in" in one.stdout
    assert "no hashes are pinned" in one.stdout


def test_a_local_model_is_there_already(tmp_path: Path) -> None:
    toy(tmp_path)
    done = penstock(tmp_path, "models", "fetch", "toy", "--catalogue", "toy.toml", "--json")
    (fetched,) = json.loads(done.stdout)
    assert (fetched["model"], fetched["path"]) == ("toy", str(tmp_path))
    assert fetched["size_bytes"] == (tmp_path / "toy.toml").stat().st_size


def test_pins_can_be_pasted_into_the_record(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "b.bin").write_bytes(b"b")
    (folder / ".hidden").write_bytes(b"h")
    catalogue = toy(tmp_path)
    catalogue.write_text(catalogue.read_text().replace('source = "."', 'source = "weights"'))
    words = ("--catalogue", "toy.toml")

    pins = penstock(tmp_path, "models", "pin", "toy", *words).stdout
    assert pins == f'[models.toy.files]\n"b.bin" = "{sha256(b"b").hexdigest()}"\n'
    catalogue.write_text(catalogue.read_text() + pins)
    checked = penstock(tmp_path, "models", "check", "toy", *words)
    assert (checked.returncode, "no hashes are pinned" in checked.stdout) == (0, False)
    again = penstock(tmp_path, "models", "pin", "toy", *words)
    assert (again.returncode, again.stdout) == (2, "")
    assert "toy is pinned already" in again.stderr
    assert "[models.toy.files]" in again.stderr
    assert json.loads(penstock(tmp_path, "models", "pin", "toy", *words, "--json").stdout) == {
        "b.bin": sha256(b"b").hexdigest()
    }

    (folder / "b.bin").write_bytes(b"other")
    assert "the file 'b.bin' of model 'toy' is not the catalogue's" in penstock(
        tmp_path, "models", "check", "toy", *words
    ).stdout  # fmt: skip


def _all_of(terminal: int) -> list[bytes]:
    """Return what a terminal showed, read by read, until nobody writes to it any more."""
    pieces = [*iter(lambda: _next_of(terminal), b"")]
    os.close(terminal)
    return pieces


def _next_of(terminal: int) -> bytes:
    """Return what a terminal shows next; nothing when nobody writes to it any more."""
    try:
        return os.read(terminal, 1024)
    except OSError:
        return b""


def test_a_model_of_scenes_is_exported_as_a_stac_item_with_its_bands_tiles_and_classes(tmp_path: Path) -> None:
    toy(tmp_path)
    done = penstock(tmp_path, "models", "export", "plaything", "--catalogue", "toy.toml")

    item = json.loads(done.stdout)
    properties = item["properties"]
    assert (item["type"], item["id"], properties["mlm:name"]) == ("Feature", "toy-1", "toy")
    assert properties["mlm:input"][0]["bands"] == ["blue", "green"]
    assert properties["mlm:hyperparameters"] == {"tile_px": 32, "halo_px": 0, "stride_px": 1}
    assert [each["name"] for each in properties["mlm:output"][0]["classification:classes"]] == ["a", "b"]


def test_what_is_no_model_of_scenes_is_not_exported(tmp_path: Path) -> None:
    broken(tmp_path)
    done = penstock(tmp_path, "models", "export", "no-runner", "--catalogue", "broken.toml")

    assert (done.returncode, done.stdout) == (2, "")
    assert "no-runner is not a model for scenes: its processor is text-generation" in done.stderr


def test_exporting_says_what_is_missing_where_there_is_no_library_for_it(tmp_path: Path) -> None:
    (tmp_path / "pystac.py").write_text("raise ModuleNotFoundError(\"No module named 'pystac'\", name='pystac')")
    done = penstock(tmp_path, "models", "export", "csmask", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    assert (done.returncode, done.stdout) == (2, "")
    assert "this needs pystac: pip install '.[geo]' in a clone" in done.stderr
