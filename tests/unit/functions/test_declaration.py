from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.functions.declaration import MARK, Options


def test_the_decorator_keeps_the_function_and_its_options() -> None:
    @penstock.model(network=["a"], secrets=["B"], max_batch=4)
    def echo(texts: list[str]) -> list[str]:
        return texts

    assert echo(["a"]) == ["a"]
    assert getattr(echo, MARK) == Options(network=("a",), secrets=("B",), max_batch=4)
    with pytest.raises(TypeError, match="no option 'colour': it has name, title"):
        penstock.model(colour="red")  # type: ignore[call-overload]


def test_one_host_or_secret_may_stand_without_a_list() -> None:
    @penstock.model(network="api.example.com", secrets="KEY")
    def echo(text: str) -> str:
        return text

    assert getattr(echo, MARK) == Options(network=("api.example.com",), secrets=("KEY",))


@pytest.mark.parametrize("options", [{"max_batch": 0}, {"timeout_s": "5"}, {"concurrency": -1}, {"memory_bytes": 0}])
def test_numbers_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    [name] = options
    with pytest.raises(ValueError, match=f"`{name}` is a whole number of at least 1"):
        penstock.model(**options)


def test_a_codec_has_methods_or_static_ones_and_lacks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.functions.declaration.CODECS", {})

    class Recipe:
        pass

    @penstock.codec(Recipe)
    class Methods:
        def decode(self, path: Path) -> str:
            return path.name

        @staticmethod
        def encode(value: str, path: Path) -> str:
            return f"{value} {path.name}"

    from penstock.functions.declaration import CODECS

    assert CODECS[Recipe].decode(Path("a")) == "a"
    assert CODECS[Recipe].encode("b", Path("a")) == "b a"

    class Halved:
        @staticmethod
        def decode(path: Path) -> str:
            return path.name

    with pytest.raises(TypeError, match=r"the codec Halved needs a method `encode\(self, value, path\)`"):
        penstock.codec(Recipe)(Halved)


def test_weights_lie_beside_the_file() -> None:
    assert penstock.weights("test_values.py") == Path(__file__).with_name("test_values.py")
    with pytest.raises(FileNotFoundError, match=r"there is no 'none\.pt' beside the model's file"):
        penstock.weights("none.pt")


def test_importing_what_functions_need_brings_no_heavy_library() -> None:
    heavy = "{'numpy', 'pydantic', 'PIL', 'torch', 'pyarrow'} & set(sys.modules)"
    program = f"import sys, penstock; penstock.model, penstock.Image, penstock.Table; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", program], check=True)
