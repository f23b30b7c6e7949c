from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.functions.declaration import MARK, Options


def test_the_decorator_keeps_the_function_and_its_options() -> None:
    @penstock.model(network=["a"], secrets=["B"], max_batch=4)
    def echo(texts: list[str]) -> list[str]:
        return texts

    assert echo(["a"]) == ["a"]
    assert getattr(echo, MARK) == Options(network=("a",), secrets=("B",), max_batch=4)
    with pytest.raises(TypeError):
        penstock.model(colour="red")  # type: ignore[call-overload]


def test_weights_lie_beside_the_file() -> None:
    assert penstock.weights("test_values.py") == Path(__file__).with_name("test_values.py")
    with pytest.raises(FileNotFoundError, match=r"there is no 'none\.pt' beside the model's file"):
        penstock.weights("none.pt")


def test_importing_what_functions_need_brings_no_heavy_library() -> None:
    heavy = "{'numpy', 'pydantic', 'PIL', 'torch', 'pyarrow'} & set(sys.modules)"
    program = f"import sys, penstock; penstock.model, penstock.Image, penstock.Table; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", program], check=True)
