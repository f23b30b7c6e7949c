"""`penstock sample`: the end of the name says which synthetic file is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from penstock.cli.samples import FILES, write_file
from penstock.errors import ConfigError
from penstock.models import Limits
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.speech.recording import read_audio
from tests.support.command_line import Shell


@pytest.mark.parametrize("end", [end for end in FILES if end != ".tif"])
def test_each_file_is_small_and_the_same_every_time(end: str, tmp_path: Path) -> None:
    one, other = tmp_path / f"one{end}", tmp_path / f"other{end}"
    write_file(one)
    write_file(other)
    assert one.read_bytes() == other.read_bytes()
    assert 0 < one.stat().st_size < 200_000


@pytest.mark.parametrize("name", ["scene.tif", "scene.tiff", "SCENE.TIF"])
def test_a_scene_has_the_size_that_is_asked_for(name: str, tmp_path: Path) -> None:
    write_file(tmp_path / name, size_px=64)
    with rasterio.open(tmp_path / name) as scene:
        assert (scene.count, scene.height, scene.width) == (6, 64, 64)


def test_the_samples_of_the_page_are_those_of_the_command(tmp_path: Path) -> None:
    samples = Path(__file__).parents[2] / "api" / "ui" / "src" / "samples"
    write_file(tmp_path / "scene.tif", size_px=96)
    with rasterio.open(samples / "scene.tif") as one, rasterio.open(tmp_path / "scene.tif") as other:
        assert np.array_equal(one.read(), other.read())
        assert (one.profile, one.descriptions, one.tags()) == (other.profile, other.descriptions, other.tags())
    write_file(tmp_path / "video.mp4")
    assert np.array_equal(*(frames(folder / "video.mp4") for folder in (samples, tmp_path)))
    assert all(path.stat().st_size < 100_000 for path in samples.iterdir())


def frames(path: Path) -> list[Any]:
    with av.open(str(path)) as film:
        return [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]


def test_pictures_are_pictures_and_numbers_are_float32(tmp_path: Path) -> None:
    for name in ("photo.jpg", "photo.jpeg", "page.png"):
        write_file(tmp_path / name)
        with Image.open(tmp_path / name) as picture:
            picture.load()
            assert picture.mode == "RGB"
    write_file(tmp_path / "rows.npy")
    rows = np.load(tmp_path / "rows.npy")
    assert (rows.dtype, rows.shape) == (np.float32, (6, 64))


def test_the_recording_has_three_seconds_of_sound(tmp_path: Path) -> None:
    write_file(tmp_path / "speech.wav")
    samples = np.concatenate(list(read_audio(tmp_path / "speech.wav", Limits(), 16_000)))
    assert len(samples) == pytest.approx(3 * 16_000, rel=0.01)
    assert np.abs(samples).max() > 0.1


def test_other_ends_and_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no sample file with the end '\.xyz'; known ends: \.tif, \.jpg"):
        write_file(tmp_path / "a.xyz")
    with pytest.raises(ConfigError, match="only a scene"):
        write_file(tmp_path / "a.wav", size_px=100)
    assert list(tmp_path.iterdir()) == []


async def test_the_command_says_what_it_wrote_and_replaces_nothing(tmp_path: Path) -> None:
    penstock = Shell({}, folder=tmp_path)
    first = await penstock("sample", "plots.csv")
    assert (first.code, first.out) == (0, "plots.csv: a table of eight plots with rain and sun\n")
    again = await penstock("sample", "plots.csv")
    assert (again.code, "plots.csv exists" in again.err) == (2, True)
    nowhere = await penstock("sample", "no/folder/plots.csv")
    assert (nowhere.code, "there is no folder no/folder" in nowhere.err) == (2, True)
