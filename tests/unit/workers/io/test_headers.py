"""Headers of messages: the same header is parsed once, and no two messages share what can be written to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.workers.io.headers import MAX_REMEMBERED_BYTES, Headers


def text(plain: Any, **fields: Any) -> bytes:
    return json.dumps({"kind": "prompt", **fields, "plain": plain, "arrays": {"x": ["<f4", [2]]}}).encode()


def test_the_header_of_the_next_tile_is_parsed_once() -> None:
    headers, tile, other = Headers(), text({"reduce": "classes"}), text({"reduce": "classes"}, cost=2)
    first = headers.parse(bytearray(tile))
    assert headers.parse(tile) is first
    assert headers.parse(other).fields["cost"] == 2
    assert headers.parse(tile).fields == first.fields


@pytest.mark.parametrize("plain", [{"boxes": [1]}, {"options": {}}, {"text": "a" * MAX_REMEMBERED_BYTES}])
def test_values_of_any_size_are_parsed_for_each_message(plain: dict[str, Any]) -> None:
    headers = Headers()
    assert headers.parse(text(plain)).plain == plain
    assert headers.parse(text(plain)) is not headers.parse(text(plain))


def test_lists_among_the_fields_are_parsed_for_each_message() -> None:
    headers = Headers()
    assert headers.parse(text({}, costs=[1])) is not headers.parse(text({}, costs=[1]))


def test_a_broken_header_is_never_remembered() -> None:
    headers = Headers()
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid"):
            headers.parse(b'{"plain": {}, "arrays": {"x": ["O", [1]]}}')
        with pytest.raises(TypeError):
            headers.parse(b'{"plain": [], "arrays": {}}')
