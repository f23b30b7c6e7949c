"""Image classification: turns images into the most likely classes of each."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, Prepared, Result, final_outputs
from penstock.processors.directory import check_options
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.classes import OUTPUT_NAME, read_classes
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.prompts import PIXELS, ManyImages, open_images
from penstock.processors.vision.request import ClassificationRequest
from penstock.views import View


class ImageClassification(ManyImages):
    """The image classification processor.

    Scores add up to 1; those of multi-label models (`problem_type` of `config.json`) or of one class are independent.
    """

    request = ClassificationRequest
    outputs = (OUTPUTS.spec("labels", "the result: classes and scores of each image, best first", kind="json"),)
    views = (View("labels", "/images/*/labels", "image"),)
    io_signatures = (IOSignature(prompt=PIXELS, output={OUTPUT_NAME: "array (classes)"}),)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._preprocessor = read_preprocessor(model)
        self._classes = read_classes(model)

    def pre_process(self, request: ClassificationRequest, media: Media) -> Prepared[ClassificationRequest]:
        """Return one prompt per image."""
        images = open_images(request.references, media, self._preprocessor, self._model.limits)
        prompts = images.prompts(self._preprocessor, self._model.limits)
        return Prepared(prompts, len(images.sources), images.cost, request, unit="images")

    def post_process(
        self,
        outputs: Iterator[Output],
        context: ClassificationRequest,
        sink: ArtifactSink,  # noqa: ARG002
    ) -> Result:
        """Return `{"images": [{"labels": [{"id", "label", "score"}, ...]}, ...]}` in the order of the images."""
        found = (self._classes.scores(output) for output in final_outputs(outputs))
        return Result(data={"images": [{"labels": self._classes.best(scores, context.top_k)} for scores in found]})
