from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.base import Prompt
from penstock.workers.engine.function.runner import TileCalls


def calls(batched: str | None, **options: Any) -> TileCalls:
    bands = {"bands": [{"name": "green"}, {"name": "nir"}], **options}
    return TileCalls({"parameters": {"tile": {}}, "batched": batched, "raster": {"options": bands}})


def tile(bands: int, side: int = 4) -> Prompt:
    return Prompt({"pixels": np.ones((bands, side, side), np.float32)})


def test_a_tile_is_an_argument_or_one_of_several_items() -> None:
    prompt = tile(2)
    assert calls(None).value(prompt)["arguments"]["tile"] is prompt.data["pixels"]
    batched = calls("tile").value(prompt)
    assert (batched["arguments"], batched["item"] is prompt.data["pixels"]) == ({}, True)
    assert calls(None, dates=3).value(tile(6))["arguments"]["tile"].shape == (6, 4, 4)
    with pytest.raises(InvalidInput, match="the function takes 2 bands"):
        calls(None).value(tile(3))


def test_tiles_of_one_shape_share_a_call() -> None:
    bucket = calls("tile").bucket
    assert bucket(tile(2)) == bucket(tile(2))
    assert bucket(tile(2)) != bucket(tile(2, side=8))


def test_answers_have_arrays_only_and_errors_are_raised() -> None:
    scores = np.zeros((2, 4, 4), np.float32)
    assert calls(None).output({"probability": scores}, "", []).data["probability"] is scores
    with pytest.raises(TypeError):
        calls(None).output({"probability": "none"}, "", [])
    error = {"type": "KeyError", "detail": "x", "place": "a.py:1", "trace": "", "invalid": False, "wrong_answer": False}
    failed = calls(None).failed(error, "", [])
    assert isinstance(failed, ProcessorFailed)
    assert "its function raised KeyError" in failed.detail
    assert isinstance(calls(None).failed({**error, "invalid": True}, "", []), InvalidInput)
