"""The video classification processor: an image network names the classes of a video's frames, and of all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import check_options
from penstock.processors.outputs import OUTPUTS
from penstock.processors.video.film import Film, open_film
from penstock.processors.video.making import write_dummy
from penstock.processors.video.request import VideoClassificationRequest
from penstock.processors.vision.classes import read_classes
from penstock.processors.vision.prompts import INPUT_NAME
from penstock.processors.vision.recipe import read_recipe


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    top_k: int
    film: Film
    #: Of the frames that were taken so far: the first half adds, the second reads.
    times_s: list[float]


class VideoClassification:
    """Names the classes of frames, as `ImageClassification` does of pictures; of the video by their mean scores."""

    request = VideoClassificationRequest
    outputs = (OUTPUTS.spec("labels", "the result: classes and scores of each frame and of the video", kind="json"),)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._recipe = read_recipe(model)
        self._classes = read_classes(model)

    def pre_process(self, request: VideoClassificationRequest, media: Media) -> Prepared[Context]:
        """Return one prompt per frame."""
        film = open_film(media.path(request.video), request, self._model.limits)
        context = Context(request.top_k, film, [])
        cost = film.count * self._recipe.cost(*film.shape)
        return Prepared(self._prompts(film, context.times_s), film.count, cost, context, unit="frames")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:  # noqa: ARG002
        """Return `{"duration", "labels": [{"id", "label", "score"}, ...], "frames": [{"time", "labels"}, ...]}`."""
        frames, total = [], np.zeros(1)
        for number, output in enumerate(final_outputs(outputs)):
            scores = self._classes.scores(output)
            total = total + scores
            frames.append({"time": context.times_s[number], "labels": self._classes.best(scores, context.top_k)})
        labels = self._classes.best(total / len(frames), context.top_k)
        return Result(data={"duration": round(context.film.duration_s, 3), "labels": labels, "frames": frames})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a short video."""
        return Dummy({"video": "media://dummy"}, {"media://dummy": write_dummy(folder, limits)})

    def _prompts(self, film: Film, times_s: list[float]) -> Iterator[Prompt]:
        for still in film.stills(self._model.limits):
            pixels = self._recipe.apply(still.picture)
            times_s.append(still.time_s)
            yield Prompt({INPUT_NAME: pixels}, cost=pixels.shape[1] * pixels.shape[2])
