"""The image classification processor: pictures in, the most likely classes of each out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Result, final_outputs
from penstock.processors.directory import check_options, read_config, read_labels
from penstock.processors.limits import dummy_items
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.prompts import open_pictures, write_dummy
from penstock.processors.vision.recipe import read_recipe
from penstock.processors.vision.request import ClassificationRequest

#: The network's output: float32 (classes,).
OUTPUT_NAME = "logits"


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    top_k: int


class ImageClassification:
    """Names the classes of pictures. Scores are probabilities: they add up to 1, or each is by itself in multi-label
    models (`problem_type` of `config.json`) and in those of one class."""

    request = ClassificationRequest
    outputs = (OUTPUTS.spec("labels", "the result: classes and scores of each picture, best first", kind="json"),)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._recipe = read_recipe(model)
        self._labels = read_labels(model)
        self._multi_label = read_config(model).get("problem_type") == "multi_label_classification"

    def pre_process(self, request: ClassificationRequest, media: Media) -> Prepared[Context]:
        """Return one prompt per picture."""
        pictures = open_pictures(request.references, media, self._recipe, self._model.limits)
        prompts = pictures.prompts(self._recipe, self._model.limits)
        return Prepared(prompts, len(pictures.paths), pictures.cost, Context(request.top_k), unit="images")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:  # noqa: ARG002
        """Return `{"images": [{"labels": [{"id", "label", "score"}, ...]}, ...]}` in the pictures' order."""
        return Result(data={"images": [self._named(output, context.top_k) for output in final_outputs(outputs)]})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a batch of one picture."""
        images = ["media://dummy"] * dummy_items(self._model, limits)
        return Dummy({"images": images}, {"media://dummy": write_dummy(folder, limits)})

    def _named(self, output: Output, top_k: int) -> Mapping[str, Any]:
        scores = probabilities(np.asarray(output.data[OUTPUT_NAME]), multi_label=self._multi_label)
        best = np.argsort(-scores, kind="stable")[:top_k]
        labels = [
            {"id": int(i), "label": self._labels.get(int(i), f"LABEL_{i}"), "score": float(scores[i])} for i in best
        ]
        return {"labels": labels}


def probabilities(logits: npt.NDArray[Any], *, multi_label: bool) -> npt.NDArray[np.float64]:
    """Return softmax, or the logistic function where classes do not exclude each other, of (classes,), in float64."""
    values = logits.astype(np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ProcessorFailed(f"The network answered {logits.dtype} {logits.shape}; expected finite (classes,).")
    if multi_label or len(values) == 1:
        return np.asarray(0.5 * (1 + np.tanh(values / 2)))
    raised = np.exp(values - values.max())
    return np.asarray(raised / raised.sum())
