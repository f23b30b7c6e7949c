"""The video segmentation processor: an image network segments frames, written as an overlay and as class ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ModelUnavailable
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS, Kind, write_text
from penstock.processors.video.reading import Video, open_video
from penstock.processors.video.request import VideoSegmentationRequest
from penstock.processors.video.writing import VideoWriter, open_video_writer, write_dummy
from penstock.processors.vision.colours import overlay
from penstock.processors.vision.prompts import INPUT_NAME, PIXELS
from penstock.processors.vision.segmentation import CLASS_IDS, SIZE, SIZE_NAME, class_ids, read_segmenter
from penstock.views import View

_MP4, _MKV = "video/mp4", "video/matroska"
_KINDS = OUTPUTS.register("mp4", Kind(_MP4, ".mp4", write_text)).register("mkv", Kind(_MKV, ".mkv", write_text))


@dataclass(frozen=True, slots=True)
class VideoSegmentationContext:
    """The state that `post_process` needs from `pre_process`."""

    outputs: tuple[str, ...]
    video: Video


class VideoSegmentation:
    """Segments frames at their own size, as `ImageSegmentation` does images.

    The video is decoded again for the overlay, so no frame is kept in memory.
    """

    request = VideoSegmentationRequest
    outputs = (
        _KINDS.spec("overlay", "overlay.mp4: the frames, half in their classes' colours (H.264)", kind="mp4"),
        _KINDS.spec("masks", "masks.mkv: class ids as grey values, lossless (FFV1)", kind="mkv", default=False),
    )
    views = (View("rows", "/frames/*/classes", "frame"),)
    io_signatures = (IOSignature(prompt=PIXELS, optional=SIZE, output=CLASS_IDS),)

    def __init__(self, model: Model) -> None:
        self._model = model
        self._preprocessor, self._labels, self.io_signatures = read_segmenter(model)
        if len(self._labels) > 256:
            raise ModelUnavailable(f"model {model.name!r}: masks hold at most 256 classes, not {len(self._labels)}")

    def pre_process(self, request: VideoSegmentationRequest, media: Media) -> Prepared[VideoSegmentationContext]:
        """Return one prompt per frame."""
        video = open_video(media.path(request.video), request, self._model.limits)
        cost = video.count * self._preprocessor.cost(*video.shape)
        return Prepared(
            self._prompts(video), video.count, cost, VideoSegmentationContext(request.outputs, video), unit="frames"
        )

    def post_process(self, outputs: Iterator[Output], context: VideoSegmentationContext, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "duration", "frames": [{"time", "classes": [{"id", "label", "share"}]}]}`."""
        video, files = context.video, {"overlay": ("overlay.mp4", _MP4), "masks": ("masks.mkv", _MKV)}
        wanted = [name for name in files if name in context.outputs]
        frames = []
        with ExitStack() as stack:
            writers: dict[str, VideoWriter] = {
                name: stack.enter_context(
                    open_video_writer(sink.path(files[name][0]), video.shape, 1 / video.every_s, exact=name == "masks")
                )
                for name in wanted
            }
            for output, frame in zip(final_outputs(outputs), video.frames(self._model.limits), strict=False):
                ids = class_ids(output, video.shape).astype(np.uint8)
                if "overlay" in writers:
                    writers["overlay"].add(overlay(frame.image, ids))
                if "masks" in writers:
                    writers["masks"].add(ids)
                frames.append({"time": frame.time_s, "classes": self._shares(ids)})
        for name in wanted:
            sink.add(files[name][0], sink.path(files[name][0]), media_type=files[name][1])
        height, width = video.shape
        data = {"width": width, "height": height, "duration": round(video.duration_s, 3), "frames": frames}
        return Result(data=data)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a short video."""
        return Dummy({"video": "media://dummy"}, {"media://dummy": write_dummy(folder, limits)})

    def _prompts(self, video: Video) -> Iterator[Prompt]:
        for frame in video.frames(self._model.limits):
            pixels = self._preprocessor.apply(frame.image)
            yield Prompt(
                {INPUT_NAME: pixels, SIZE_NAME: list(video.shape)}, cost=pixels.shape[1] * pixels.shape[2]
            )  # fmt: skip

    def _shares(self, ids: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
        counts = np.bincount(ids.ravel())
        return [
            {
                "id": int(i),
                "label": self._labels.get(int(i), f"LABEL_{i}"),
                "share": round(int(counts[i]) / ids.size, 6),
            }
            for i in np.argsort(-counts, kind="stable")
            if counts[i]
        ]
