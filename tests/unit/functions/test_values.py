from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from penstock.functions.declaration import Boxes, Labels, Vector
from penstock.functions.kinds import Kind
from penstock.functions.values import WrongAnswer, fits, give, plain


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (int, 1, "1"),
        (float, 1, "1"),
        (str, "a", None),
        (bool, True, 1),
        (int | None, None, "a"),
        (Literal["a", "b"], "b", "c"),
        (dict[str, int], {"a": 1}, [1]),
        (type(None), None, 0),
    ],
)
def test_an_answer_of_another_type_is_found(annotation: Any, right: Any, wrong: Any) -> None:
    assert fits(annotation, right)
    assert not fits(annotation, wrong)
    assert give(right, Kind(annotation=annotation))["codec"] == "json"
    with pytest.raises(WrongAnswer, match=r"it answered .*, and its annotation says"):
        give(wrong, Kind(annotation=annotation))


def test_the_codec_of_an_answer_is_that_of_its_type() -> None:
    assert give(Labels(a=0.25, b=0.75))["value"] == [{"label": "b", "score": 0.75}, {"label": "a", "score": 0.25}]
    assert give(Vector([1, 2])) == {"codec": "vector", "value": [1.0, 2.0]}
    [box] = give(Boxes([{"label": "a", "score": 1, "box": [0, 1, 2, 3], "id": 7}]))["value"]
    assert box == {"label": "a", "score": 1.0, "box": [0.0, 1.0, 2.0, 3.0], "id": 7}
    assert give(np.zeros(3))["codec"] == "tensor"


def test_values_of_python_become_json() -> None:
    assert plain({"a": Point(1), 2: {3}, "n": np.float32(0.5), "l": (1, None)}) == {
        "a": {"x": 1}, "2": [3], "n": 0.5, "l": [1, None],
    }  # fmt: skip
    for wrong in (float("nan"), {"a": [float("inf")]}, np.array([np.nan]), b"bytes", object()):
        with pytest.raises(WrongAnswer):
            plain(wrong)
