from __future__ import annotations

import numpy as np

from penstock.functions.nested import CALL, flat, nested


def test_prompts_and_outputs_carry_nested_values() -> None:
    value = {"a": [np.ones(3), {"b": b"bytes"}], "c": 1}
    data = flat(value, CALL)
    assert data[CALL] == {"a": [None, {"b": None}], "c": 1}
    found = nested(data, CALL)
    np.testing.assert_array_equal(found["a"][0], np.ones(3))
    assert (bytes(found["a"][1]["b"]), found["c"]) == (b"bytes", 1)
    assert nested(flat("text")) == "text"
