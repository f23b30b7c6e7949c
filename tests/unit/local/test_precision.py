"""Comparison of outputs in another number type with those in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.local.precision import Tally, is_compared
from penstock.models import Model
from penstock.processors.base import Output, Prompt

SCORES = np.array([[[0.9, 0.4]], [[0.1, 0.6]]], np.float32)  # classes 0 and 1
OTHER = np.array([[[0.8, 0.6]], [[0.2, 0.4]]], np.float32)  # classes 0 and 0


def tallied(name: str, own: Any, exact: Any, **data: Any) -> Tally:
    tally = Tally()
    tally.add(Prompt(data), Output({name: own}), Output({name: exact}))
    return tally


@pytest.mark.parametrize(
    ("name", "own", "exact"),
    [
        ("probability", OTHER, SCORES),
        ("logits", np.array([0.0, 1.0]), np.array([1.0, 0.0])),
        ("classes", np.array([[0, 3]], np.uint8), np.array([[0, 2]], np.uint8)),
        ("probability.reduced", np.array([[[0, 1]], [[9, 9]]], np.uint8), np.array([[[0, 2]], [[9, 7]]], np.uint8)),
    ],
)
def test_labels_that_differ_are_counted_in_each_form_of_scores(name: str, own: Any, exact: Any) -> None:
    found = tallied(name, own, exact).result("scene.tif")
    labels = 1 if name == "logits" else 2
    assert (found.labels, found.differing, found.share) == (labels, 1, 1 / labels)
    assert "of the labels of scene.tif differ from float32 (1 of" in str(found)


def test_equal_labels_differ_nowhere_whatever_their_scores() -> None:
    found = tallied("probability", SCORES, SCORES * 0.5).result("noise")
    assert (found.labels, found.differing, found.share) == (2, 0, 0.0)
    assert str(found).startswith("0 % of the labels of noise")


def test_pixels_without_data_do_not_count() -> None:
    found = tallied("probability", OTHER, SCORES, **{"pixels.valid": np.array([[True, False]])}).result("noise")
    assert (found.labels, found.differing) == (1, 0)


def test_numbers_have_a_largest_difference_over_all_prompts() -> None:
    tally = tallied("values", np.array([[1.0, -2.5]]), np.array([[1.0, -2.0]]))
    tally.add(Prompt({}), Output({"values": np.array([[3.25]])}), Output({"values": np.array([[3.0]])}))
    found = tally.result("noise")
    assert (found.labels, found.share) == (0, None)
    assert (found.largest_difference, found.largest_number) == (0.5, 3.0)
    assert str(found) == "the outputs of noise differ from float32 by up to 0.5 (largest number: 3)"


def test_of_other_outputs_nothing_is_said() -> None:
    assert str(tallied("token_ids", [1, 2], [1, 3]).result("noise")) == ""


@pytest.mark.parametrize(
    ("change", "compared"),
    [
        ({}, True),
        ({"dtype": "float32"}, False),
        ({"runner": "onnx"}, False),
        ({"processor": "text-generation"}, False),
    ],
)
def test_only_models_that_are_quick_to_compute_twice_are_compared(change: dict[str, Any], compared: bool) -> None:
    fields = {"runner": "torch", "processor": "raster-segmentation", "dtype": "bfloat16"} | change
    assert is_compared(Model(name="m", title="M", source=".", revision="1", **fields)) is compared


@pytest.mark.parametrize(
    ("own", "exact", "difference", "number"),
    [
        ([1.5, np.nan], [1.0, np.nan], 0.5, 1.0),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0, 2.0),
        ([np.nan, 1.0], [1.0, 1.0], np.inf, 1.0),
        ([1.0], [np.nan], None, None),
    ],
)
def test_pixels_without_a_number_hide_no_difference(
    own: list[float], exact: list[float], difference: float | None, number: float | None
) -> None:
    found = tallied("values", np.array(own), np.array(exact)).result("noise")
    assert (found.largest_difference, found.largest_number) == (difference, number)
