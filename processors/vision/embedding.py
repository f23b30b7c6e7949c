"""Image embedding: turns each image into a vector."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, Prepared, Result
from penstock.processors.directory import check_options
from penstock.processors.embedding import OUTPUT_NAME, SPECS, embedding_result
from penstock.processors.io_signature import IOSignature
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.prompts import PIXELS, ManyImages, open_images
from penstock.processors.vision.request import ImageEmbeddingRequest
from penstock.views import View


class ImageEmbedding(ManyImages):
    """The image embedding processor. The runner pools and normalises as the model's directory configures."""

    request = ImageEmbeddingRequest
    outputs = SPECS
    views = (View("vectors", "/embeddings"),)
    io_signatures = (IOSignature(prompt=PIXELS, output={OUTPUT_NAME: "array (dimensions)"}),)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "preprocessor")
        self._preprocessor = read_preprocessor(model)

    def pre_process(self, request: ImageEmbeddingRequest, media: Media) -> Prepared[ImageEmbeddingRequest]:
        """Return one prompt per image."""
        images = open_images(request.references, media, self._preprocessor, self._model.limits)
        prompts = images.prompts(self._preprocessor, self._model.limits)
        return Prepared(prompts, len(images.sources), images.cost, request, unit="images")

    def post_process(self, outputs: Iterator[Output], context: ImageEmbeddingRequest, sink: ArtifactSink) -> Result:
        """Return `{"count", "dimensions", "embeddings"}`; `embeddings` only if the request wants JSON."""
        return Result(data=embedding_result(outputs, context.outputs, sink))
