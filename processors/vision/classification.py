"""The image classification processor: pictures in, the most likely classes of each out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Result, final_outputs
from penstock.processors.directory import check_options
from penstock.processors.limits import dummy_items
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.classes import read_classes
from penstock.processors.vision.prompts import open_pictures, write_dummy
from penstock.processors.vision.recipe import read_recipe
from penstock.processors.vision.request import ClassificationRequest


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
        self._classes = read_classes(model)

    def pre_process(self, request: ClassificationRequest, media: Media) -> Prepared[Context]:
        """Return one prompt per picture."""
        pictures = open_pictures(request.references, media, self._recipe, self._model.limits)
        prompts = pictures.prompts(self._recipe, self._model.limits)
        return Prepared(prompts, len(pictures.paths), pictures.cost, Context(request.top_k), unit="images")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:  # noqa: ARG002
        """Return `{"images": [{"labels": [{"id", "label", "score"}, ...]}, ...]}` in the pictures' order."""
        found = (self._classes.scores(output) for output in final_outputs(outputs))
        return Result(data={"images": [{"labels": self._classes.best(scores, context.top_k)} for scores in found]})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a batch of one picture."""
        images = ["media://dummy"] * dummy_items(self._model, limits)
        return Dummy({"images": images}, {"media://dummy": write_dummy(folder, limits)})
