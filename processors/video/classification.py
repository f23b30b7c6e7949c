"""The video classification processor: an image network classifies frames, and their mean scores the video."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import check_options
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS
from penstock.processors.video.reading import Video, open_video
from penstock.processors.video.request import VideoClassificationRequest
from penstock.processors.video.writing import write_dummy
from penstock.processors.vision.classes import OUTPUT_NAME, read_classes
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.prompts import INPUT_NAME, PIXELS
from penstock.views import View


@dataclass(frozen=True, slots=True)
class VideoClassificationContext:
    """The state that `post_process` needs from `pre_process`."""

    top_k: int
    video: Video
    #: Times of the frames so far: `pre_process` appends, `post_process` reads.
    times_s: list[float]


class VideoClassification:
    """Classifies frames as `ImageClassification` does images, and the video by the mean of their scores."""

    request = VideoClassificationRequest
    outputs = (OUTPUTS.spec("labels", "the result: classes and scores of each frame and of the video", kind="json"),)
    views = (View("labels", "/labels"), View("labels", "/frames/*/labels", "frame"))
    io_signatures = (IOSignature(prompt=PIXELS, output={OUTPUT_NAME: "array (classes)"}),)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._preprocessor = read_preprocessor(model)
        self._classes = read_classes(model)

    def pre_process(self, request: VideoClassificationRequest, media: Media) -> Prepared[VideoClassificationContext]:
        """Return one prompt per frame."""
        video = open_video(media.path(request.video), request, self._model.limits)
        context = VideoClassificationContext(request.top_k, video, [])
        cost = video.count * self._preprocessor.cost(*video.shape)
        return Prepared(self._prompts(video, context.times_s), video.count, cost, context, unit="frames")

    def post_process(
        self,
        outputs: Iterator[Output],
        context: VideoClassificationContext,
        sink: ArtifactSink,  # noqa: ARG002
    ) -> Result:
        """Return `{"duration", "labels": [{"id", "label", "score"}, ...], "frames": [{"time", "labels"}, ...]}`."""
        frames, total = [], np.zeros(1)
        for number, output in enumerate(final_outputs(outputs)):
            scores = self._classes.scores(output)
            total = total + scores
            frames.append({"time": context.times_s[number], "labels": self._classes.best(scores, context.top_k)})
        labels = self._classes.best(total / len(frames), context.top_k)
        return Result(data={"duration": round(context.video.duration_s, 3), "labels": labels, "frames": frames})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a short video."""
        return Dummy({"video": "media://dummy"}, {"media://dummy": write_dummy(folder, limits)})

    def _prompts(self, video: Video, times_s: list[float]) -> Iterator[Prompt]:
        for frame in video.frames(self._model.limits):
            pixels = self._preprocessor.apply(frame.image)
            times_s.append(frame.time_s)
            yield Prompt({INPUT_NAME: pixels}, cost=pixels.shape[1] * pixels.shape[2])
