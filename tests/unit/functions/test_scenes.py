# ruff: noqa: ARG001  (functions whose signatures are read, and which never run)
from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock
from penstock import Band, Boxes, Classes, Image, Quantities, Scene, Vector
from penstock.functions.kinds import codec_of, split
from penstock.functions.scenes import output_of
from penstock.functions.signature import Unservable, read_signature

Array = npt.NDArray[Any]
Tile = Annotated[Array, Scene(["green", Band("nir", synonyms=["B8A"], mean=0.3, std=0.1)], halo_px=8, tile_px=256)]
Map = Annotated[Array, Classes(["land", "water"])]
BANDS = [
    {"name": "green", "synonyms": [], "mean": 0.0, "std": 1.0},
    {"name": "nir", "synonyms": ["B8A"], "mean": 0.3, "std": 0.1},
]


def options(annotation: Any) -> Any:
    kind = codec_of(*split(annotation))
    assert kind is not None
    return kind.options


def test_tiles_and_classes_become_a_record_of_segmentation() -> None:
    def water(tiles: list[Tile]) -> list[Map]:
        raise AssertionError

    found = read_signature("water", penstock.model(max_batch=4)(water)).to_json()
    raster = found["raster"]
    assert raster["processor"] == "raster-segmentation"
    assert raster["options"]["bands"] == BANDS
    assert (raster["options"]["halo_px"], raster["options"]["tile_px"]) == (8, 256)
    assert [(one["id"], one["name"]) for one in raster["options"]["classes"]] == [(0, "land"), (1, "water")]
    assert found["schema"]["required"] == ["scene"]
    assert found["schema"]["properties"]["scene"]["format"] == "media"
    assert (found["batched"], found["place"].partition(":")[0]) == ("tiles", "test_scenes.py")


def test_each_kind_of_answer_has_its_processor() -> None:
    def heights(tile: Tile) -> Annotated[Array, Quantities({"height": "m"})]:
        raise AssertionError

    def ships(tile: Annotated[Array, Scene(["red"], overlap_px=32)]) -> Annotated[Boxes, Classes(["ship"])]:
        raise AssertionError

    def vectors(tile: Annotated[Array, Scene(["red"], dates=2)]) -> Vector:
        raise AssertionError

    records = [read_signature("it", penstock.model(one)).to_json() for one in (heights, ships, vectors)]
    assert [one["raster"]["processor"] for one in records] == [
        "raster-regression", "raster-detection", "raster-embedding",
    ]  # fmt: skip
    assert records[0]["raster"]["options"]["quantities"] == [{"name": "height", "unit": "m"}]
    assert (records[1]["raster"]["options"]["labels"], records[1]["raster"]["options"]["overlap_px"]) == (["ship"], 32)
    assert records[2]["schema"]["properties"]["dates"]["minItems"] == 2


def test_reflectance_says_what_undeclared_numbers_are() -> None:
    assert options(Annotated[Array, Scene(["red"], reflectance=1.0)])["default_radiometry"] == [
        {"dtypes": ["uint16", "int16"], "scale": 1e-4, "nodata": 0.0}, {"dtypes": ["float32", "float64"]},
    ]  # fmt: skip
    [as_they_are] = options(Annotated[Array, Scene(["red"])])["default_radiometry"]
    assert {"uint8", "int16", "float32"} < set(as_they_are["dtypes"])
    assert "scale" not in as_they_are
    own = [{"dtypes": ["uint8"], "scale": 0.5}]
    assert options(Annotated[Array, Scene(["red"], default_radiometry=own)])["default_radiometry"] == own


def _with_more(tile: Tile, threshold: float = 0.3) -> Map:
    raise AssertionError


def _without_halo(tile: Annotated[Array, Scene(["red"])]) -> Map:
    raise AssertionError


def _of_text(tile: Tile) -> str:
    raise AssertionError


def _of_no_scene(image: Image) -> Map:
    raise AssertionError


def _lists(tiles: list[Tile]) -> list[Map]:
    raise AssertionError


def _yields(tile: Tile) -> Iterator[Map]:
    raise AssertionError


def _of_an_image(tile: Annotated[Image, Scene(["red"])]) -> Map:
    raise AssertionError


def _bare(tile: Scene) -> Map:
    raise AssertionError


def _of_one_class(tile: Tile) -> Annotated[Array, Classes(["ship"])]:
    raise AssertionError


def _two_answers(tile: Tile) -> tuple[Map, Map]:
    raise AssertionError


def _of_boxes_without_labels(tile: Annotated[Array, Scene(["red"])]) -> Boxes:
    raise AssertionError


def _halo_of_vectors(tile: Annotated[Array, Scene(["red"], overlap="hann")]) -> Vector:
    raise AssertionError


def _takes_classes(tile: Map) -> str:
    raise AssertionError


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_with_more, "has no other parameters, and `threshold` is one"),
        (_without_halo, "write `halo_px=0` for a rule of each pixel alone"),
        (_of_text, r"write `-> Annotated\[np.ndarray, penstock.Classes"),
        (_of_no_scene, r"no parameter is a scene: write `tile: Annotated\[np.ndarray, penstock.Scene"),
        (_lists, r"write `@penstock.model\(max_batch=8\)`"),
        (_yields, "a scene's tile has one answer"),
        (_of_an_image, r"penstock.Scene is for arrays: write `Annotated\[np.ndarray, penstock.Scene"),
        (_bare, "penstock.Scene is for arrays"),
        (_of_one_class, "a map has two classes or more"),
        (_two_answers, "a scene's tile has one answer"),
        (_of_boxes_without_labels, r"`-> Annotated\[penstock.Boxes, penstock.Classes"),
        (_halo_of_vectors, "`overlap` is for maps"),
        (_takes_classes, "is a type of answers"),
    ],
)
def test_what_no_scene_can_be_is_refused_with_file_line_and_what_to_write(function: Any, said: str) -> None:
    with pytest.raises(Unservable, match=rf"^test_scenes\.py:\d+: it: .*{said}"):
        read_signature("it", penstock.model(function))


def test_words_without_sense_are_refused_where_they_stand() -> None:
    for make, said in (
        (lambda: Scene("red"), "name the bands in a list"), (lambda: Scene([]), "name the bands in a list"),
        (lambda: Scene(["red"], overlap="gauss"), '"halo" or "hann"'),  # type: ignore[arg-type]
        (lambda: Classes("land"), "name the classes in a list"), (lambda: Classes(["a", "a"]), "appears twice"),
        (lambda: Quantities([]), "with their units"), (lambda: Quantities(["a", "a"]), "appears twice"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            make()


TILE = np.zeros((3, 4, 5), np.float32)


def test_class_ids_become_probabilities_of_one_and_nought() -> None:
    ids = np.array([[0, 1, 2, 0, 1]] * 4, np.uint8)
    of = options(Annotated[Array, Classes(["a", "b", "c"])])
    scores = output_of("classes", of, ids, TILE)["probability"]
    assert (scores.dtype, scores.shape) == (np.float32, (3, 4, 5))
    np.testing.assert_array_equal(scores.argmax(axis=0), ids)
    np.testing.assert_array_equal(scores.sum(axis=0), 1)
    same = output_of("classes", of, scores.astype(np.float64), TILE)["probability"]
    np.testing.assert_array_equal(same, scores)
    assert same.dtype == np.float32


@pytest.mark.parametrize(
    ("codec", "annotation", "answer", "said"),
    [
        ("classes", Map, np.zeros((4, 5), np.float32), r"or floats \(2, 4, 5\), not float32 \(4, 5\)"),
        ("classes", Map, np.full((4, 5), -1), "class ids are 0 to 1, and the answer has -1 to -1"),
        ("classes", Map, np.full((2, 4, 5), np.nan), "have the sum 1"),
        ("classes", Map, "water", "an array is needed, not str"),
        ("quantities", Annotated[Array, Quantities(["a", "b"])], np.zeros((4, 5)), r"floats \(2, 4, 5\), not float64 "),
        ("vector", Vector, np.zeros((4, 5)), "a vector is numbers"),
        ("boxes", Annotated[Boxes, Classes(["a"])], [{"label": "b", "score": 1, "box": [0] * 4}], "'b' is none of a"),
    ],
)  # fmt: skip
def test_an_answer_of_another_form_says_what_is_expected(codec: str, annotation: Any, answer: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        output_of(codec, options(annotation), answer, TILE)


def test_objects_become_arrays_also_none() -> None:
    of = options(Annotated[Boxes, Classes(["a", "b"])])
    found = output_of("boxes", of, [{"label": "b", "score": 0.5, "box": [1, 2, 3, 4]}], TILE)
    assert (found["boxes"].tolist(), found["scores"].tolist(), found["labels"].tolist()) == ([[1, 2, 3, 4]], [0.5], [1])
    assert output_of("boxes", of, [], TILE)["boxes"].shape == (0, 4)


def test_a_single_quantity_needs_no_axis() -> None:
    values = output_of("quantities", options(Annotated[Array, Quantities(["a"])]), np.ones((4, 5)), TILE)["values"]
    assert (values.dtype, values.shape) == (np.float32, (1, 4, 5))
