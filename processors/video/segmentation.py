"""The video segmentation processor: an image network's classes of a video's frames, as an overlay and as ids."""

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
from penstock.processors.directory import check_options, read_labels
from penstock.processors.outputs import OUTPUTS, Kind, write_text
from penstock.processors.video.film import Film, open_film
from penstock.processors.video.making import Reel, film_maker, write_dummy
from penstock.processors.video.request import VideoSegmentationRequest
from penstock.processors.vision.colours import overlay
from penstock.processors.vision.prompts import INPUT_NAME
from penstock.processors.vision.recipe import read_recipe
from penstock.processors.vision.segmentation import SIZE_NAME, class_ids

_MP4, _MKV = "video/mp4", "video/matroska"
_KINDS = OUTPUTS.register("mp4", Kind(_MP4, ".mp4", write_text)).register("mkv", Kind(_MKV, ".mkv", write_text))


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    outputs: tuple[str, ...]
    film: Film


class VideoSegmentation:
    """Segments frames at their own size, as `ImageSegmentation` does pictures. The video is decoded again for the
    overlay, so that no frame waits in memory for its answer."""

    request = VideoSegmentationRequest
    outputs = (
        _KINDS.spec("overlay", "overlay.mp4: the frames, half in their classes' colours (H.264)", kind="mp4"),
        _KINDS.spec("masks", "masks.mkv: class ids as grey values, lossless (FFV1)", kind="mkv", default=False),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._recipe = read_recipe(model)
        self._labels = read_labels(model)
        if self._recipe.crops:
            raise ModelUnavailable(f"model {model.name!r}: its preprocessor crops pictures: a mask would not fit them")
        if len(self._labels) > 256:
            raise ModelUnavailable(f"model {model.name!r}: videos hold 256 classes, not {len(self._labels)}")

    def pre_process(self, request: VideoSegmentationRequest, media: Media) -> Prepared[Context]:
        """Return one prompt per frame."""
        film = open_film(media.path(request.video), request, self._model.limits)
        cost = film.count * self._recipe.cost(*film.shape)
        return Prepared(self._prompts(film), film.count, cost, Context(request.outputs, film), unit="frames")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "duration", "frames": [{"time", "classes": [{"id", "label", "share"}]}]}`."""
        film, files = context.film, {"overlay": ("overlay.mp4", _MP4), "masks": ("masks.mkv", _MKV)}
        wanted = [name for name in files if name in context.outputs]
        frames = []
        with ExitStack() as stack:
            reels: dict[str, Reel] = {
                name: stack.enter_context(
                    film_maker(sink.path(files[name][0]), film.shape, 1 / film.every_s, exact=name == "masks")
                )
                for name in wanted
            }
            for output, still in zip(final_outputs(outputs), film.stills(self._model.limits), strict=False):
                ids = class_ids([output], film.shape).astype(np.uint8)
                if "overlay" in reels:
                    reels["overlay"].add(overlay(still.picture, ids))
                if "masks" in reels:
                    reels["masks"].add(ids)
                frames.append({"time": still.time_s, "classes": self._shares(ids)})
        for name in wanted:
            sink.add(files[name][0], sink.path(files[name][0]), media_type=files[name][1])
        height, width = film.shape
        data = {"width": width, "height": height, "duration": round(film.duration_s, 3), "frames": frames}
        return Result(data=data)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a short video."""
        return Dummy({"video": "media://dummy"}, {"media://dummy": write_dummy(folder, limits)})

    def _prompts(self, film: Film) -> Iterator[Prompt]:
        for still in film.stills(self._model.limits):
            pixels = self._recipe.apply(still.picture)
            yield Prompt(
                {INPUT_NAME: pixels, SIZE_NAME: list(film.shape)}, cost=pixels.shape[1] * pixels.shape[2]
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
