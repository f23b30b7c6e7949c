"""The image embedding processor: pictures in, one vector each out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Result
from penstock.processors.directory import check_options
from penstock.processors.embedding import SPECS, hand_over
from penstock.processors.limits import dummy_items
from penstock.processors.vision.prompts import open_pictures, write_dummy
from penstock.processors.vision.recipe import read_recipe
from penstock.processors.vision.request import ImageEmbeddingRequest


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    outputs: tuple[str, ...]


class ImageEmbedding:
    """Embeds pictures; pooling and normalisation are the runner's, as the model's directory says."""

    request = ImageEmbeddingRequest
    outputs = SPECS

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "preprocessor")
        self._recipe = read_recipe(model)

    def pre_process(self, request: ImageEmbeddingRequest, media: Media) -> Prepared[Context]:
        """Return one prompt per picture."""
        pictures = open_pictures(request.references, media, self._recipe, self._model.limits)
        prompts = pictures.prompts(self._recipe, self._model.limits)
        return Prepared(prompts, len(pictures.paths), pictures.cost, Context(request.outputs), unit="images")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"count", "dimensions", "embeddings"}`, the last if JSON was asked for."""
        return Result(data=hand_over(outputs, context.outputs, sink))

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a batch of one picture."""
        images = ["media://dummy"] * dummy_items(self._model, limits)
        return Dummy({"images": images}, {"media://dummy": write_dummy(folder, limits)})
