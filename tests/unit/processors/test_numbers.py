"""Prompts of a file's own numbers, and the floats that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.errors import InvalidInput
from penstock.processors.base import Prompt
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.radiometry import BandRadiometry, Radiometry
from penstock.processors.geo.tiling.tiles import Normalisation
from penstock.processors.numbers import as_floats, is_compact

DTYPES = ("uint8", "int8", "uint16", "int16")


def normalisation(
    *bands: tuple[float, float, float, float], most: float | None = None, reflected: bool = False
) -> Normalisation:
    """Return the normalisation of bands, each with scale, offset, mean and standard deviation."""
    needed = tuple(Band(name=f"b{i}", mean=mean, std=std) for i, (_, _, mean, std) in enumerate(bands))
    radiometry = tuple(BandRadiometry(scale, offset, None, "request", "none") for scale, offset, _, _ in bands)
    return Normalisation(needed, Radiometry(radiometry), most, reflected=reflected)


def expected(
    norm: Normalisation, numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_], shape: tuple[int, int]
) -> bytes:
    """Return the bits of the floats, written down once more: normalised band by band, then padded."""
    height, width = valid.shape
    pixels = np.empty((len(norm.bands), *shape), dtype=np.float32)
    for i, band in enumerate(norm.bands):
        values = numbers[i].astype(np.float64) * norm.radiometry.scale[i] + norm.radiometry.offset[i]
        zero = -band.mean / band.std
        pixels[i] = zero
        pixels[i, :height, :width] = np.where(valid, (values - band.mean) / band.std, zero)
    if norm.reflected:
        beyond = ((0, 0), (0, shape[0] - height), (0, shape[1] - width))
        pixels = np.pad(pixels[:, :height, :width], beyond, mode="reflect")
    return pixels.tobytes()


def outcome(
    norm: Normalisation, numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_], shape: tuple[int, int]
) -> bytes | str:
    """Return the bits of a prompt's floats, or the error."""
    try:
        return bytes(as_floats(Prompt(norm.inputs(numbers, valid, shape))).data["pixels"].tobytes())
    except InvalidInput as error:
        return error.detail


numbers_of_a_tile = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, (2, 5, 4)))
factors = st.floats(-2, 2, allow_subnormal=False)


@given(
    numbers=numbers_of_a_tile,
    valid=arrays.arrays(bool, (5, 4)),
    radiometry=st.tuples(factors.filter(bool), factors, factors, st.floats(0.001, 5)),
    most=st.none() | st.floats(0.01, 100),
    reflected=st.booleans(),
    shape=st.sampled_from([(5, 4), (7, 4), (5, 6)]),
)
def test_numbers_give_the_bits_and_the_errors_that_floats_gave(
    numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_], radiometry: tuple[float, float, float, float],
    most: float | None, reflected: bool, shape: tuple[int, int],
) -> None:  # fmt: skip
    norm = normalisation(radiometry, (1e-4, -0.1, 0.0, 1.0), most=most, reflected=reflected)
    compact, wide = (outcome(norm, given, valid, shape) for given in (numbers, numbers.astype(np.int32)))
    assert compact == wide
    assert isinstance(compact, str) or compact == expected(norm, numbers, valid, shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_a_type_gives_the_same_bits(dtype: str) -> None:
    limits = np.iinfo(dtype)
    numbers = np.arange(limits.min, limits.max + 1).astype(dtype).reshape(1, -1, 16)
    valid = np.ones(numbers.shape[1:], bool)
    norm = normalisation((2.75e-5, -0.2, 0.1087, 0.2248))
    assert outcome(norm, numbers, valid, valid.shape) == expected(norm, numbers, valid, valid.shape)


@pytest.mark.parametrize(
    ("dtype", "share"), [("uint8", 0.3), ("int16", 0.55), ("uint16", 0.55), ("int32", 1), ("float32", 1)]
)
def test_numbers_of_one_or_two_bytes_are_sent_as_they_are(dtype: str, share: float) -> None:
    """Half the bytes for six bands of 16 bits, with their mask; others are normalised by the processor, as before."""
    numbers, valid = np.ones((6, 64, 64), dtype), np.ones((64, 64), bool)
    data = normalisation(*[(1e-4, 0.0, 0.1, 0.2)] * 6).inputs(numbers, valid, valid.shape)
    assert is_compact(np.dtype(dtype)) == (share < 1)
    assert data["pixels"].dtype == (dtype if share < 1 else np.float32)
    assert sum(array.nbytes for array in data.values()) <= share * 6 * 64 * 64 * 4


def test_a_prompt_has_memory_of_its_own() -> None:
    numbers, valid = np.ones((1, 8, 8), np.uint16), np.ones((8, 8), bool)
    data = normalisation((1.0, 0.0, 0.0, 1.0)).inputs(numbers, valid, valid.shape)
    numbers[:], valid[:] = 7, False
    assert (data["pixels"] == 1).all()
    assert data["pixels.valid"].all()


def test_a_prompt_of_floats_stays_as_it_is() -> None:
    prompt = Prompt({"pixels": np.ones((1, 2, 2), np.float32), "when": np.ones(2)}, cost=4, tenant="a")
    assert as_floats(prompt) is prompt


def test_other_inputs_cost_and_tenant_stay() -> None:
    data = normalisation((1.0, 0.0, 0.0, 1.0)).inputs(np.ones((1, 2, 2), np.uint8), np.ones((2, 2), bool), (2, 2))
    found = as_floats(Prompt({**data, "when": 3}, cost=4, tenant="a"))
    assert (found.data.keys(), found.data["when"], found.cost, found.tenant) == ({"pixels", "when"}, 3, 4, "a")
