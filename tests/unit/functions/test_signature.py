# ruff: noqa: ARG001  (functions whose signatures are read, and which never run)
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

import penstock
from penstock import Image, Labels, Progress, Table, Text
from penstock.functions.signature import Unservable, read_signature
from penstock.functions.values import build


class Order(BaseModel):
    item: str
    count: int = Field(default=1, ge=1)


def test_annotations_become_a_schema() -> None:
    @penstock.model
    def order(
        order: Order, images: list[Image], kind: Literal["a", "b"], side: Annotated[int, penstock.Field(ge=1)] = 3,
        rate: Annotated[float, Field(gt=0, description="A rate")] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Order something.

        More about it.
        """
        raise AssertionError

    found = read_signature("order", order).to_json()
    assert (found["title"], found["description"]) == ("Order something", "More about it.")
    schema = found["schema"]
    assert schema["required"] == ["order", "images", "kind"]
    assert schema["properties"]["order"]["properties"]["count"]["minimum"] == 1
    assert schema["properties"]["images"]["items"]["format"] == "media"
    assert schema["properties"]["kind"] == {"enum": ["a", "b"]}
    assert schema["properties"]["side"] == {"type": "integer", "minimum": 1, "default": 3}
    [number, _] = schema["properties"]["rate"]["anyOf"]
    assert number == {"type": "number", "exclusiveMinimum": 0, "description": "A rate"}
    assert found["parameters"]["images"] == {"codec": "image", "list": True, "options": {}}


def test_a_generator_has_the_answers_that_it_yields_or_returns() -> None:
    @penstock.model
    def long() -> Iterator[Progress | Text | Image]:
        raise AssertionError

    found = read_signature("long", long)
    assert found.streams
    assert found.answers[""].codec == "image"
    assert found.answers[""].is_list


def _without_annotation(a) -> str:  # type: ignore[no-untyped-def]
    raise AssertionError


def _without_answer(a: str):  # type: ignore[no-untyped-def]
    raise AssertionError


def _of_a_set(a: set[int]) -> str:
    raise AssertionError


def _of_anything(*a: str) -> str:
    raise AssertionError


def _of_an_object(a: Path, b: Unservable) -> str:
    raise AssertionError


def _takes_labels(a: Labels) -> str:
    raise AssertionError


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_without_annotation, "`a` has no annotation: write `a: str`"),
        (_without_answer, "the answer has no annotation"),
        (_of_a_set, r"`a: set\[int\]` cannot be served: write a list"),
        (_of_anything, "name each parameter"),
        (_of_an_object, "`b: Unservable` cannot be served: write str, int"),
        (_takes_labels, "Labels is a type of answers"),
    ],
)
def test_what_cannot_be_served_is_refused_with_file_line_and_what_to_write(function: Any, said: str) -> None:
    with pytest.raises(Unservable, match=rf"^test_signature\.py:\d+: it: {said}|^test_signature\.py:\d+: it: .*{said}"):
        read_signature("it", penstock.model(function))


def test_batches_need_lists_and_no_generator() -> None:
    def single(image: Image) -> Labels:
        raise AssertionError

    def stream(images: list[Image]) -> Iterator[str]:
        raise AssertionError

    for function, said in ((single, "are lists, and `image` is none"), (stream, "a generator has no batches")):
        with pytest.raises(Unservable, match=said):
            read_signature("it", penstock.model(max_batch=4)(function))

    async def waits(texts: list[str]) -> list[str]:
        raise AssertionError

    with pytest.raises(Unservable, match="write `concurrency` instead of `max_batch`"):
        read_signature("it", penstock.model(max_batch=4)(waits))

    def plain(text: str) -> str:
        raise AssertionError

    with pytest.raises(Unservable, match="`concurrency` is for `async def`"):
        read_signature("it", penstock.model(concurrency=4)(plain))


def test_a_decorated_function_stays_callable() -> None:
    @penstock.model(queue="other")
    def double(number: int) -> int:
        return number * 2

    assert double(4) == 8


def test_values_of_unions_and_classes_are_built() -> None:
    assert build(list[Order], [{"item": "a"}]) == [Order(item="a")]
    assert build(int | str, "1") == "1"
    assert build(tuple[int, float], [1, 2]) == (1, 2.0)
    assert isinstance(build(float, 1), float)


def test_types_of_other_packages_are_known() -> None:
    def tables(a: Table, b: Table | None = None) -> Table:
        raise AssertionError

    found = read_signature("tables", penstock.model(tables))
    assert [kind.codec for kind in found.parameters.values()] == ["table", "table"]
