"""Post-processors: a chain of steps on each output, between the network and the model's processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.errors import ConfigError, ModelUnavailable, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import Output
from penstock.processors.chain import Chain, Temperature
from penstock.processors.registry import Registry
from penstock.processors.testing import check_processor
from penstock.processors.vision.classification import ImageClassification
from tests.support.model_directories import each, image_directory, make_model


class Add:
    """A step that adds a number to the logits."""

    def __init__(self, number: float) -> None:
        self.number = number

    def process(self, output: Output) -> Output:
        return Output({**output.data, "logits": output.data["logits"] + self.number}, partial=output.partial)


class Times(Add):
    """A step that multiplies the logits."""

    def process(self, output: Output) -> Output:
        return Output({**output.data, "logits": output.data["logits"] * self.number}, partial=output.partial)


def logits(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"logits": data["pixels"].mean(axis=(1, 2)) * 4}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return make_model(image_directory(tmp_path / "m", {0: "red", 1: "green", 2: "blue"}), "image-classification")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    for name, colour in (("red", (255, 51, 0)), ("blue", (0, 0, 255))):
        Image.new("RGB", (30, 20), colour).save(tmp_path / name, format="PNG")
    return {f"media://{name}": tmp_path / name for name in ("red", "blue")}


def scores(done: Any) -> list[float]:
    return [label["score"] for label in sorted(done.result.data["images"][0]["labels"], key=lambda label: label["id"])]


def softmax(*values: float) -> list[float]:
    raised = np.exp(values)
    return list(raised / raised.sum())


def test_a_chain_is_a_processor_and_a_model_names_it(model: Model, files: dict[str, Path]) -> None:
    warm = model.model_copy(update={"post_processors": steps(4, 0.5)})
    done = check_processor(
        Registry.imported().processor_for(warm),
        {"images": ["media://red"]},
        files,
        engine=each(logits),
        other={"images": "media://blue"},
        limits=Limits(max_pixels=600),
    )
    assert scores(done) == pytest.approx(softmax(2, 0.4, 0), rel=1e-5)


def steps(*numbers: float) -> Any:
    table = [{"use": "temperature", "options": {"by": number}} for number in numbers]
    common = {"title": "M", "runner": "fake", "processor": "none", "source": "-", "revision": "1"}
    return Model.model_validate({"name": "m", **common, "post_processors": table}).post_processors


def test_steps_are_taken_in_their_order_and_partial_outputs_stay_so() -> None:
    seen: list[Output] = []
    closed: list[bool] = []

    class Keeping(ImageClassification):
        def __init__(self) -> None:
            """Keep the output."""

        def post_process(self, outputs: Iterator[Output], context: Any, sink: Any) -> Any:  # noqa: ARG002
            seen.append(next(outputs))
            seen.append(next(outputs))
            outputs.close()  # type: ignore[attr-defined]

    def outputs() -> Iterator[Output]:
        try:
            for number in range(3):
                yield Output({"logits": np.array([float(number)])}, partial=number == 0)
        finally:
            closed.append(True)

    Chain(Keeping(), [Add(1), Times(10)]).post_process(outputs(), None, None)  # type: ignore[arg-type]
    assert [(output.data["logits"][0], output.partial) for output in seen] == [(10, True), (20, False)]
    assert closed == [True]


@pytest.mark.parametrize(
    "options", [{}, {"by": 0}, {"by": "warm"}, {"by": True}, {"by": float("inf")}, {"by": 1, "to": 2}]
)
def test_a_step_whose_options_make_no_sense_keeps_its_model_from_serving(model: Model, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="wrong options of the post-processor 'temperature'"):
        Temperature(model, options)


def test_a_step_that_is_not_installed_is_named(model: Model) -> None:
    (unknown,) = [step.model_copy(update={"use": "warmth"}) for step in steps(1)]
    with pytest.raises(ModelUnavailable, match="'warmth'; installed: temperature"):
        Registry.imported().processor_for(model.model_copy(update={"post_processors": (unknown,)}))
    bad = steps(0)
    with pytest.raises(ModelUnavailable, match="it takes one option"):
        Registry.installed().processor_for(model.model_copy(update={"post_processors": bad}))


def test_outputs_that_a_step_does_not_know_end_the_job_with_their_names(model: Model) -> None:
    with pytest.raises(ProcessorFailed, match="needs the output `logits`; the network has: embedding"):
        Temperature(model, {"by": 2}).process(Output({"embedding": np.zeros(2)}))


def test_prompts_and_dummies_are_the_processor_s_own(model: Model, tmp_path: Path) -> None:
    chain = Chain(ImageClassification(model), [])
    dummy = chain.dummy(Limits(max_pixels=64), tmp_path)
    assert set(dummy.request) == {"images"}
    assert chain.outputs == ImageClassification.outputs
