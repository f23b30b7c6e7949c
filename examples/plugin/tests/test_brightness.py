"""Tests of the processor: the contract, and numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock.errors import ConfigError, InvalidInput, MediaUnreadable
from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt
from penstock.processors.testing import check_processor, check_request_module
from penstock_brightness.processor import Brightness


def a_processor(limits: Limits | None = None, **options: object) -> Brightness:
    return Brightness(
        Model(
            name="m", title="M", runner="torch", processor="brightness", source="model", revision="1",
            limits=limits or Limits(), options=options,
        )
    )  # fmt: skip


def engine(prompts: Iterator[Prompt]) -> Iterator[Output]:
    """Stand in for the network."""
    for prompt in prompts:
        yield Output({"luminance": np.tensordot([0.2126, 0.7152, 0.0722], prompt.data["pixels"], axes=1)})


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    colours = {"black": (0, 0, 0), "white": (255, 255, 255), "red": (255, 0, 0)}
    for name, colour in colours.items():
        Image.new("RGB", (4, 2), colour).save(tmp_path / f"{name}.png")
    return {name: tmp_path / f"{name}.png" for name in colours}


def test_it_keeps_the_contract(files: dict[str, Path]) -> None:
    request = {"pictures": ["black", "white", "red"], "outputs": ["map"]}
    finished = check_processor(a_processor(), request, files, engine=engine, other={"pictures": ["white"], "bins": 2})

    assert finished.result.data == {
        "pictures": [
            {"mean": 0.0, "dark": True, "histogram": [8, 0, 0, 0]},
            {"mean": 1.0, "dark": False, "histogram": [0, 0, 0, 8]},
            {"mean": 0.2126, "dark": False, "histogram": [8, 0, 0, 0]},
        ]
    }
    assert list(finished.artifacts) == ["map-1.png", "map-2.png", "map-3.png"]


def test_its_request_can_be_validated_without_numpy() -> None:
    check_request_module(a_processor())


def test_what_is_wrong_is_said(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(MediaUnreadable):
        check_processor(a_processor(), {"pictures": ["text"]}, {"text": tmp_path / "text.png"}, engine=engine)
    few = a_processor(Limits(max_items=1))
    with pytest.raises(InvalidInput, match="2 pictures were given, the model takes 1 at a time"):
        check_processor(few, {"pictures": ["black", "white"]}, files, engine=engine)
    with pytest.raises(ConfigError, match=r"options\.dark is 'very'"):
        a_processor(dark="very")
