"""Trials of `penstock models tune`, and what it writes into a record's file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.catalogue.records import read_catalogue
from penstock.cli.tuning import size_bytes
from penstock.errors import ConfigError, ModelUnavailable
from penstock.local import trials
from penstock.local.ready import edited, file_of, write
from penstock.local.trials import Tiles, has_bfloat16, has_threads, measure, space_of
from penstock.local.tuning import tuned
from penstock.models import Model
from tests.support.catalogues import penstock, toy


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return read_catalogue(toy(tmp_path))["toy"]


def test_a_space_surrounds_the_record(model: Model) -> None:
    space = space_of(model)
    assert (space.start.tile_px, space.start.max_batch, space.start.dtype) == (32, 1, "float32")
    assert 32 in space.tiles
    assert len(space.tiles) > 3
    assert space.dtypes == ("float32",)  # the runner `fake` reads no number type


def test_a_network_that_sees_its_whole_tile_keeps_its_size(model: Model) -> None:
    options = {name: value for name, value in model.options.items() if name != "halo_px"} | {"overlap": "hann"}
    assert space_of(model.model_copy(update={"options": options})).tiles == (32,)


def test_a_program_for_one_size_gets_no_other(model: Model, tmp_path: Path) -> None:
    """The description of an exported program excludes other sides: they are not measured."""
    text = '[inputs.pixels]\ndtype = "float32"\nshape = ["bands=2", 32, 32]\n[outputs.probability]\n'
    (tmp_path / "penstock.toml").write_text(text)
    fixed = model.model_copy(update={"runner": "torch", "source": str(tmp_path), "device": "cpu"})
    assert space_of(fixed).tiles == (32,)
    (tmp_path / "penstock.toml").write_text(text.replace("32, 32]", '"H", "W"]'))
    assert len(space_of(fixed).tiles) > 3


def test_threads_of_a_pass_are_an_option_of_one_runner_on_a_cpu(model: Model) -> None:
    torch = model.model_copy(update={"runner": "torch", "device": "cpu", "options": {**model.options, "threads": 3}})
    assert has_threads(torch)
    assert space_of(torch).start.threads == 3
    assert {1, 3} <= set(space_of(torch).threads)
    with pytest.raises(ConfigError, match="threads"):
        space_of(torch.model_copy(update={"options": {**model.options, "threads": "two"}}))
    with pytest.raises(ModelUnavailable, match=r"options\.threads is not a number"):
        space_of(torch.model_copy(update={"processor": "tensor", "options": {"threads": "two"}}))
    assert not has_threads(model)
    assert "threads" not in tuned(model, space_of(model).start).options


@pytest.mark.breadth
def test_passes_of_one_thread_are_measured_side_by_side() -> None:
    """The process keeps the threads of all processors, of which `batch` passes have one each."""
    pytest.importorskip("torch")
    torch = read_catalogue(Path("package:penstock/catalogue/models.toml"))["csmask"].model_copy(
        update={"device": "cpu"}
    )
    trial = measure(torch, replace(space_of(torch).start, tile_px=256, threads=1), seconds=0, memory_bytes=2**40)
    assert trial.problem is None
    assert trial.batch == max(space_of(torch).threads)


def test_a_candidate_is_measured_with_inputs_of_its_size(model: Model) -> None:
    start = space_of(model).start
    found = trials.run(model, replace(start, tile_px=32), seconds=0)
    assert found["per_s"] > 0
    assert found["peak_bytes"] > 2**20
    assert found["batch"] == 1


def test_tiles_overlap_or_have_a_halo() -> None:
    assert (Tiles(96, 16, None).input_px(768), Tiles(96, 16, None).map_px(768)) == (960, 768)
    assert (Tiles(0, 1, 112).input_px(224), Tiles(0, 1, 112).map_px(224)) == (224, 112)


def test_a_process_above_the_memory_is_a_row(model: Model) -> None:
    trial = measure(model, space_of(model).start, seconds=60, memory_bytes=2**20)
    assert trial.problem == "takes more memory"
    assert trial.peak_bytes > 2**20


@pytest.mark.breadth
def test_a_candidate_that_cannot_be_loaded_is_a_row(model: Model) -> None:
    trial = measure(model.model_copy(update={"runner": "abacus"}), space_of(model).start, seconds=0, memory_bytes=2**40)
    assert trial.problem is not None
    assert "abacus" in trial.problem


@pytest.mark.parametrize(
    ("line", "native"),
    [("flags\t\t: fpu avx512_bf16 sse", True), ("Features\t: fp asimd bf16", True), ("flags\t\t: fpu avx2", False)],
)
def test_bfloat16_is_native_where_the_processor_says_so(tmp_path: Path, line: str, native: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    assert has_bfloat16(on_gpu=False, cpuinfo=tmp_path / "cpuinfo") is native
    assert not has_bfloat16(on_gpu=False, cpuinfo=tmp_path / "missing")


def test_a_record_is_edited_in_its_place_and_comments_stay() -> None:
    text = (
        '# mine\n[models.a]\ntitle = "A"  # a title\n\n[models.a.options]  # tiles\ntile_px = 768\n\n'
        '[models.b]\ntitle = "B"\noptions = { tile_px = 512 }\n'
    )
    new = edited(text, "a", {"options.tile_px": 1024, "dtype": "bfloat16"})
    assert new == text.replace("768", "1024").replace("# a title\n", '# a title\ndtype = "bfloat16"\n')
    assert edited(text, "b", {"options.tile_px": 256}) == text.replace("512", "256")


def test_the_last_file_with_the_record_is_the_one_that_counts(tmp_path: Path) -> None:
    first, last = tmp_path / "first.toml", tmp_path / "last.toml"
    first.write_text('[models.a]\ntitle = "A"\n')
    last.write_text('[models.b]\ntitle = "B"\n')
    assert file_of("a", [first, last]) == first
    with pytest.raises(ConfigError, match="comes with a package"):
        file_of("csmask", [first, last])
    with pytest.raises(ConfigError, match="comes with a package"):
        file_of("csmask", [first, Path("package:penstock/catalogue/csmask-onnx.toml")])


def test_a_record_is_written_with_the_rights_of_its_file(tmp_path: Path) -> None:
    path = toy(tmp_path)
    path.chmod(0o640)
    write(path, "toy", {"options.tile_px": 64})
    assert read_catalogue(path)["toy"].options["tile_px"] == 64
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["toy.toml"]


@pytest.mark.parametrize(("text", "size"), [("4GB", 4 * 2**30), ("512 MiB", 2**29), ("1.5g", 3 * 2**29), ("100", 100)])
def test_sizes_of_memory(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1GB", "0", "4 PB"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="no size of memory"):
        size_bytes(text)


@pytest.mark.breadth
def test_a_memory_that_nothing_fits_writes_nothing(tmp_path: Path) -> None:
    before = toy(tmp_path).read_text()
    words = ("models", "tune", "toy", "--catalogue", "toy.toml", "--memory", "1MB", "--seconds", "0.1", "--write")
    done = penstock(tmp_path, *words, "--yes")
    assert done.returncode == 1
    assert "no row was measured within" in done.stderr
    assert (tmp_path / "toy.toml").read_text() == before
