"""IO signatures: the kinds of values, and the reasons why two sides do not fit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from penstock.processors.io_signature import SAME, IOSignature, closest, declared, fits, misfits

PIXELS = {"pixels": "float32 (3, H, W)"}
LOGITS = {"logits": "float32 (classes)"}


def one(prompt: Mapping[str, str], output: Mapping[str, str], **optional: str) -> IOSignature:
    return IOSignature(prompt=prompt, output=output, optional=optional)


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ("float32 (3, H, W)", "float32 (channels, H, W)"),
        ("float32 (3, H, W)", "array (_, _, _)"),
        ("float32 (3, H, W)", "array"),
        ("float32 (3, H, W)", "float32 (...)"),
        ("float32 (3, H, W)", "float32 (bands, ...)"),
        ("float32 (rows, 2)", "float32 (rows, columns)"),
        ("float32 (rows, 2)", "float32 (_, 2)"),
        ("float32 (samples) or float32 (frames, bands)", "float32 (frames, 64)"),
        ("number", "any"),
        ("list", "list"),
    ],
)
def test_kinds_that_suit(sent: str, taken: str) -> None:
    assert misfits([one({"x": sent}, {})], [one({"x": taken}, {})]) == []
    assert misfits([one({"x": taken}, {})], [one({"x": sent}, {})]) == []


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ("float32 (3, H, W)", "float32 (6, H, W)"),
        ("float32 (3, H, W)", "uint8 (3, H, W)"),
        ("float32 (3, H, W)", "float32 (H, W)"),
        ("float32 (H, W)", "float32 (3, H, W, ...)"),
        ("float32 (rows, 2)", "float32 (frames, bands)"),
        ("uint8 (H, W) or uint16 (H, W)", "float32 (H, W)"),
        ("number", "text"),
        ("number", "float32 (3)"),
        ("list", "array"),
    ],
)
def test_kinds_that_do_not_suit(sent: str, taken: str) -> None:
    assert misfits([one({"x": sent}, {})], [one({"x": taken}, {})]) != []
    assert misfits([one({"x": taken}, {})], [one({"x": sent}, {})]) != []


@pytest.mark.parametrize("kind", ["", "floats", "float32(3)", "float32 (3, )", "float32 (0)", "image", "text (3)"])
def test_a_kind_that_means_nothing_is_refused(kind: str) -> None:
    with pytest.raises(ValidationError, match="is no kind of value: write one like 'float32 "):
        one({"x": kind}, {})


def test_each_misfit_is_named() -> None:
    processor = one({**PIXELS, "size": "list"}, {"classes": "uint8 (H, W)", "scores": "float32 (n)"})
    runner = one({"pixels": "float32 (6, H, W)", "when": "int64 (2)"}, {"classes": "float32 (H, W)"})
    assert misfits([processor], [runner]) == [
        "it gives `classes` as float32 (H, W), the processor reads uint8 (H, W)",
        "it does not give `scores` (float32 (n))",
        "it takes `pixels` as float32 (6, H, W), the processor sends float32 (3, H, W)",
        "it does not take `size` (list)",
        "it needs `when` (int64 (2)), which the processor does not always send",
    ]


def test_optional_values_may_be_ignored_and_may_be_missing() -> None:
    assert fits([one(PIXELS, LOGITS, shown="list")], {"a": [one(PIXELS, LOGITS)]})
    assert fits([one(PIXELS, LOGITS)], {"a": [one(PIXELS, LOGITS, shown="list")]})
    assert not fits([one(PIXELS, LOGITS, shown="list")], {"a": [one({**PIXELS, "shown": "list"}, LOGITS)]})
    assert not fits([one(PIXELS, LOGITS, shown="list")], {"a": [one(PIXELS, LOGITS, shown="text")]})


def test_each_exchange_of_a_processor_must_be_served_by_the_same_kind_of_model() -> None:
    both = [one(PIXELS, {"embedding": "array (n)"}), one({"ids": "int64 (T)"}, {"embedding": "array (n)"})]
    assert fits(both, {"two towers": both})
    assert not fits(both, {"images": both[:1], "texts": both[1:]})


def test_a_network_of_any_arrays_takes_and_gives_arrays_only() -> None:
    anything = {"network": [one({"*": "array"}, {"*": "array"})]}
    assert fits([one(PIXELS, LOGITS)], anything)
    assert closest([one({**PIXELS, "steps": "number"}, {"text": "text"})], anything) == [
        "it does not give `text` (text): all its values are arrays",
        "it does not take `steps` (number): all its values are arrays",
    ]


def test_a_processor_of_any_arrays_reads_all_outputs() -> None:
    tensors = [one({"*": "array"}, {"*": "array"})]
    assert fits(tensors, {"a": [one(PIXELS, LOGITS)]})
    assert closest(tensors, {"a": [one(PIXELS, {"texts": "list"})]}) == [
        "it gives `texts` as list, the processor reads array"
    ]
    assert not fits(tensors, {"a": [one({"seed": "number"}, LOGITS)]})


def test_an_echo_gives_what_it_is_sent() -> None:
    echo = {"echo": [one({"*": "any"}, {"*": SAME})]}
    assert fits([one(PIXELS, {"pixels": "array"})], echo)
    assert not fits([one(PIXELS, LOGITS)], echo)


def test_names_may_have_numbers() -> None:
    processor = one(PIXELS, LOGITS, **{"image_*": "float32 (...)"})
    assert fits([processor], {"a": [one(PIXELS, LOGITS, **{"image_*": "float32 (...)"})]})
    assert not fits([processor], {"a": [one(PIXELS, LOGITS, **{"image_*": "text"})]})


def test_nothing_declared_fits_everything() -> None:
    class Processor:
        pass

    assert declared(Processor()) is None
    assert fits(declared(Processor()), {"a": [one(PIXELS, LOGITS)]})
    assert fits([one(PIXELS, LOGITS)], None)
    assert not fits([one(PIXELS, LOGITS)], {})
