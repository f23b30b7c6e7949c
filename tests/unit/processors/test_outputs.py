"""Output kinds and input mappers: registries never change, and written files can be read back."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.errors import ConfigError, MediaUnreadable, ProcessorFailed
from penstock.models import Limits
from penstock.processors.base import OutputSpec
from penstock.processors.geo.write.cog import RASTER_OUTPUTS
from penstock.processors.inputs import INPUTS, InputMappers
from penstock.processors.outputs import OUTPUTS, Indexed, Kind, Sound
from penstock.processors.testing import FolderSink


def put(folder: Path, value: Any, **kind: str) -> tuple[str, str, Path]:
    sink = FolderSink(folder)
    OUTPUTS.put(sink, "made", value, **kind)
    [(name, (media_type, _))] = sink.artifacts.items()
    return name, media_type, folder / name


def test_text_is_the_default(tmp_path: Path) -> None:
    name, media_type, path = put(tmp_path, "Grüße")
    assert (name, media_type, path.read_bytes()) == ("made.txt", "text/plain; charset=utf-8", "Grüße".encode())
    assert OUTPUTS.spec("text", "what was said") == OutputSpec("text", media_type, "what was said")


def test_json_is_for_people_too(tmp_path: Path) -> None:
    name, media_type, path = put(tmp_path, {"ä": [1.5]}, kind="json")
    assert (name, media_type, json.loads(path.read_text())) == ("made.json", "application/json", {"ä": [1.5]})
    assert "ä" in path.read_text()


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 3), (3, 4, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_images_are_png(shape: tuple[int, ...], dtype: type, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, shape).astype(dtype)
    if dtype is np.uint16 and len(shape) == 3:
        with pytest.raises(ProcessorFailed, match="'made' cannot be written as png"):
            put(tmp_path, pixels, kind="png")
    else:
        name, media_type, path = put(tmp_path, pixels, kind="png")
        assert (name, media_type) == ("made.png", "image/png")
        np.testing.assert_array_equal(np.asarray(Image.open(path)), pixels)


def test_ids_keep_their_numbers_and_get_colours(tmp_path: Path) -> None:
    ids = np.array([[0, 1], [1, 255]], dtype=np.uint8)
    colours = [(255, 0, 0), (0, 0, 255), *[(0, 0, 0)] * 254]
    image = Image.open(put(tmp_path, Indexed(ids, colours, clear=255), kind="png")[2])
    np.testing.assert_array_equal(np.asarray(image), ids)
    assert [image.convert("RGBA").getpixel(at) for at in ((0, 0), (1, 0), (1, 1))] == [
        (255, 0, 0, 255),
        (0, 0, 255, 255),
        (0, 0, 0, 0),
    ]


@pytest.mark.parametrize("samples", [np.array([0, 0.5, -2], np.float32), np.array([0, 16384, -32767], np.int16)])
def test_sound_is_wav(samples: Any, tmp_path: Path) -> None:
    name, media_type, path = put(tmp_path, Sound(samples, 16_000), kind="wav")
    with wave.open(str(path)) as file:
        frames = np.frombuffer(file.readframes(9), dtype="<i2")
        assert (file.getnchannels(), file.getframerate(), name, media_type) == (1, 16_000, "made.wav", "audio/wav")
    assert frames.tolist() == [0, 16384, -32767]


def test_a_value_of_another_kind_is_the_processors_fault(tmp_path: Path) -> None:
    with pytest.raises(ProcessorFailed, match="'made' cannot be written as json"):
        put(tmp_path, {"score": float("nan")}, kind="json")


def test_registries_are_values_and_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    more = OUTPUTS.register("csv", Kind("text/csv", ".csv", lambda path, rows: path.write_text(rows) and None))
    more.put(sink := FolderSink(tmp_path), "table", "a,b", kind="csv")
    assert sink.artifacts == {"table.csv": ("text/csv", b"a,b")}
    with pytest.raises(ConfigError, match="no output kind 'csv'; known kinds: json, npy, png, safetensors, text, wav"):
        OUTPUTS.kind("csv")
    assert RASTER_OUTPUTS.kind("cog").suffix == ".tif"
    assert InputMappers().register("none", lambda _path, _limits: None).read("none", tmp_path, Limits()) is None
    with pytest.raises(ConfigError, match="no input mapper 'none'; known mappers: image, json, picture, text"):
        INPUTS.read("none", tmp_path, Limits())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "The file is not JSON: "),
        (b"\xff", "The file is not UTF-8 text: "),
        (b"[" * 100_000, "The file is nested too deeply."),
        (b"1" * 5000, "The file holds a number that is too long."),
    ],
)
def test_what_is_no_json_is_unreadable(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "media.json"
    path.write_bytes(content)
    with pytest.raises(MediaUnreadable, match=sentence):
        INPUTS.read("json", path, Limits())
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert INPUTS.read("json", path, Limits()) == {"a": 1}
