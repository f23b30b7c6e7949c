"""The files that IO processes may read: libraries and a model's own, never a folder around the service's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from penstock.workers.io.libraries import library_paths, model_paths, outermost, sparing


def covered(path: str | None, paths: tuple[Path, ...]) -> bool:
    assert path is not None
    return any(Path(path).resolve().is_relative_to(each) for each in paths)


def test_packages_and_python_are_read_and_homes_are_not() -> None:
    paths = library_paths()
    assert covered(np.__file__, paths)
    assert covered(sys.modules["json"].__file__, paths)
    assert covered(sys.modules[library_paths.__module__].__file__, paths)
    for other in (Path.home(), Path.cwd(), Path("/etc/shadow"), Path("/proc/1"), Path("/")):
        assert not covered(str(other), paths), other


def test_paths_inside_of_others_and_missing_ones_are_left_out(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    beside = tmp_path / "ab"
    beside.mkdir()
    assert outermost([inner, beside, tmp_path / "a", tmp_path / "gone"]) == (tmp_path / "a", beside)


def test_links_of_a_model_are_followed(tmp_path: Path) -> None:
    """As in the hub's cache, whose snapshots hold links only."""
    blob = tmp_path / "blobs" / "1"
    blob.parent.mkdir()
    blob.write_text("weights")
    snapshot = tmp_path / "snapshots" / "x"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(blob)
    assert set(model_paths(str(snapshot))) == {snapshot, blob}
    assert model_paths("s3://bucket/model") == model_paths(str(tmp_path / "gone")) == ()


def test_a_folder_around_a_private_one_gives_what_lies_beside_it(tmp_path: Path) -> None:
    private = tmp_path / "a" / "data"
    private.mkdir(parents=True)
    for name in ("weights", "a/more"):
        (tmp_path / name).touch()
    (tmp_path / "a" / "link").symlink_to(private)
    assert set(sparing([tmp_path], [private])) == {tmp_path / "weights", tmp_path / "a" / "more"}
    assert sparing([private], [private]) == ()
    assert sparing([private / "models"], [private]) == (private / "models",)
