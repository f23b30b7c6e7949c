"""Raw tensors: valid ones pass unchanged, others are rejected before their data is read."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from penstock.errors import ConfigError, InvalidInput, MediaUnreadable
from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt
from penstock.processors.tensors.processor import Tensors
from penstock.processors.tensors.reading import open_tensors
from penstock.processors.testing import Finished, FolderSink, LocalFiles, check_processor, check_request_module

PAIR = {"pixels": {"shape": ["bands=3", "H", "W"]}, "when": {"dtype": "int64", "shape": [2]}}
ONE = {"x": {"dtype": "float32", "shape": ["N", 4]}}


def a_model(source: Path | str = "none", **options: Any) -> Model:
    return Model(
        name="m", title="M", runner="fake", processor="tensor", source=str(source), revision="1", options=options
    )


def echo(prompts: Iterator[Prompt]) -> Iterator[Output]:
    return (Output({f"{name}_out": value for name, value in prompt.data.items()}) for prompt in prompts)


def npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def run(processor: Tensors, contents: bytes, folder: Path, *outputs: str) -> Finished:
    path = folder / "media"
    path.write_bytes(contents)
    request = processor.request.model_validate({"file": "media://x", **({"outputs": outputs} if outputs else {})})
    prepared = processor.pre_process(request, LocalFiles({"media://x": path}))
    sink = FolderSink(folder)
    return Finished(processor.post_process(echo(prepared.prompts), prepared.context, sink), sink.artifacts)


def numbers(*shape: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_a_byte_order_mark_before_the_description_is_no_error(tmp_path: Path) -> None:
    described = '\ufeff[inputs.x]\ndtype = "float32"\nshape = ["N", 4]\n'
    (tmp_path / "penstock.toml").write_text(described, encoding="utf-8")
    processor = Tensors(a_model(tmp_path))
    finished = run(processor, save({"x": numbers(2, 4)}), tmp_path, "json")
    assert finished.result.data["tensors"]["x_out"]["shape"] == [2, 4]


def test_it_is_a_processor_as_the_contract_has_it(tmp_path: Path) -> None:
    processor = Tensors(a_model(inputs=PAIR, multiples={"H": 4}))
    check_request_module(processor)
    for name, height in (("a", 8), ("b", 4)):
        pair = {"pixels": numbers(3, height, 5), "when": np.array([2024, 17])}
        (tmp_path / name).write_bytes(save(pair))
    files = {"media://a": tmp_path / "a", "media://b": tmp_path / "b"}
    done = check_processor(
        processor, {"file": "media://a", "outputs": ["safetensors", "npy", "json"]}, files,
        engine=echo, other={"file": "media://b"}, limits=Limits(),
    )  # fmt: skip
    assert done.result.data is not None
    told = done.result.data["tensors"]
    assert {name: (t["dtype"], t["shape"]) for name, t in told.items()} == {
        "pixels_out": ("float32", [3, 8, 5]),
        "when_out": ("int64", [2]),
    }
    pixels = numbers(3, 8, 5)
    np.testing.assert_array_equal(load(done.artifacts["tensors.safetensors"][1])["pixels_out"], pixels)
    np.testing.assert_array_equal(np.load(io.BytesIO(done.artifacts["pixels_out.npy"][1])), pixels)
    np.testing.assert_array_equal(np.array(told["pixels_out"]["values"], np.float32), pixels)
    assert told["when_out"]["values"] == [2024, 17]


@pytest.mark.parametrize("form", ["npy", "npy of version 2", "fortran order", "big-endian", "safetensors"])
def test_one_input_comes_as_either_kind_of_file(tmp_path: Path, form: str) -> None:
    x = numbers(3, 4)
    contents = {
        "npy": npy(x),
        "npy of version 2": version_2(x),
        "fortran order": npy(np.asfortranarray(x)),
        "big-endian": npy(x.astype(">f4")),
        "safetensors": save({"x": x}),
    }[form]
    done = run(Tensors(a_model(inputs=ONE)), contents, tmp_path)
    np.testing.assert_array_equal(load(done.artifacts["tensors.safetensors"][1])["x_out"], x)


def version_2(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=(2, 0))
    return out.getvalue()


def header(text: str, length: int | None = None) -> bytes:
    return b"\x93NUMPY\x02\x00" + (len(text) if length is None else length).to_bytes(4, "little") + text.encode()


def safetensors_header(text: str, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + data


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (npy(numbers(3, 5)), r"`x`, float32 \(N, 4\), not \(3, 5\)"),
        (npy(numbers(4)), r"`x`, float32 \(N, 4\), not float32 \(4,\)"),
        (npy(numbers(0, 4)), r"not \(0, 4\)"),
        (npy(numbers(3, 4).astype(np.float64)), "not float64"),
        (npy(np.zeros((3, 4), np.complex64)), "not complex64"),
        (npy(np.array([["a"] * 4])), "only numbers and booleans"),
        (npy(np.zeros((3, 4), [("a", "f4")])), "only numbers and booleans"),
        (npy(np.array([[None] * 4]), allow_pickle=True), "no pickled objects"),
        (npy(np.full((2, 4), np.nan, np.float32)), r"`x` has 8 numbers that are NaN .* at \(0, 0\)"),
        (npy(np.array([[0, 0, np.inf, 0]], np.float32)), r"the first at \(0, 2\)"),
        (npy(numbers(3, 4))[:-1], "declares 48 bytes"),
        (npy(numbers(3, 4)) + b"x", "declares 48 bytes"),
        (npy(numbers(3, 4))[:9], "header is damaged"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 4), }\n"), "declares 160+ bytes"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }\n"), "declares -16|damaged"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 4), }\n") + bytes(16), "whole numbers"),
        (header("x", length=4_000_000_000), "header is damaged or too long"),
        (header("(" * 9000), "header is damaged"),
        (header("{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (1, 4)}"), "damaged"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "header is damaged"),
        (pickle.dumps(numbers(3, 4)), "a pickle"),
        (b"PK\x03\x04" + bytes(100), "a ZIP archive"),
        (b"", "something else"),
        (b"\x01", "something else"),
        (b"hello, world", "something else"),
        ((2**60).to_bytes(8, "little") + b"{" + bytes(50), "longer than the file"),
        (safetensors_header('{"x": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}'), "damaged"),
        (safetensors_header('{"x": {"dtype": "F32", "shape": [9, 4], "data_offsets": [0, 48]}}', bytes(48)), "damaged"),
        (safetensors_header('{"x": ' * 1000, bytes(9)), "damaged"),
        (safetensors_header('{"x": {"dtype": "BF16", "shape": [1, 4], "data_offsets": [0, 8]}}', bytes(8)), "not bf"),
        (save({"y": numbers(3, 4)}), "takes the tensors x; the file has: y"),
        (save({"x": numbers(3, 4), "y": numbers(1)}), "the file has: x, y"),
        (save({}), "the file has: none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_reason(tmp_path: Path, contents: bytes, sentence: str) -> None:
    with pytest.raises((InvalidInput, MediaUnreadable), match=sentence):
        run(Tensors(a_model(inputs=ONE)), contents, tmp_path)


def test_several_inputs_want_names(tmp_path: Path) -> None:
    processor = Tensors(a_model(inputs=PAIR))
    with pytest.raises(InvalidInput, match=r"by name in a \.safetensors"):
        run(processor, npy(numbers(3, 4, 4)), tmp_path)


def test_sides_of_one_name_agree_and_are_multiples(tmp_path: Path) -> None:
    processor = Tensors(a_model(inputs={"a": {"shape": ["N"]}, "b": {"shape": ["N", 2]}}, multiples={"N": 2}))
    run(processor, save({"a": numbers(4), "b": numbers(4, 2)}), tmp_path)
    for first, second in ((4, 6), (3, 3)):
        with pytest.raises(InvalidInput, match="N a multiple of 2"):
            run(processor, save({"a": numbers(first), "b": numbers(second, 2)}), tmp_path)


def test_nan_passes_where_the_model_allows_it_and_is_null_in_json(tmp_path: Path) -> None:
    processor = Tensors(a_model(inputs=ONE, nan="allow"))
    done = run(processor, npy(np.array([[0.1, np.nan, np.inf, -0.5]], np.float32)), tmp_path, "json")
    assert done.result.data is not None
    assert done.result.data["tensors"]["x_out"]["values"] == [[0.1, None, None, -0.5]]
    assert done.artifacts == {}


def test_json_is_for_few_numbers(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="request safetensors or npy"):
        run(Tensors(a_model(inputs=ONE)), npy(np.zeros((25_001, 4), np.float32)), tmp_path, "json")


def test_a_program_s_own_description_says_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('multiples = {H = 2}\n[inputs.y]\nshape = ["H"]\n[outputs.z]\n')
    run(Tensors(a_model(tmp_path)), npy(numbers(2)), tmp_path)
    with pytest.raises(InvalidInput, match="`y`"):
        run(Tensors(a_model(tmp_path)), npy(numbers(3)), tmp_path)
    with pytest.raises(InvalidInput, match="`x`"):
        run(Tensors(a_model(tmp_path, inputs=ONE)), npy(numbers(2)), tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "declares no inputs"),
        ({"inputs": {"x": {"dtype": "object", "shape": [1]}}}, "inputs are invalid"),
        ({"inputs": {"x": {"shape": [0]}}}, "inputs are invalid"),
        ({"inputs": ONE, "nan": "perhaps"}, "inputs are invalid"),
    ],
)
def test_a_model_that_declares_nothing_usable_does_not_serve(options: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Tensors(a_model(**options))


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00", b"\x40" + bytes(7) + b"{"]),
)
def test_no_bytes_at_all_break_the_reader(tmp_path_factory: pytest.TempPathFactory, rest: bytes, head: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "media"
    path.write_bytes(head + rest)
    with suppress(MediaUnreadable, InvalidInput):
        open_tensors(path).load()
