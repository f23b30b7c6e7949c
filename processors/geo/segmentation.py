"""The raster segmentation processor: a scene in, a class map, probabilities, a picture and statistics out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock
from penstock.errors import ProcessorFailed
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, OutputSpec, Prepared, Prompt, Result
from penstock.processors.geo.bands import SceneBand, select_bands
from penstock.processors.geo.cog import COG_TYPE, STEPS, Scratch, write_cog, write_json, write_preview
from penstock.processors.geo.options import NODATA, SegmentationOptions, read_options
from penstock.processors.geo.plan import Box, Plan, Tile, make_plan
from penstock.processors.geo.radiometry import Radiometry, resolve_radiometry
from penstock.processors.geo.raster import Scene, open_rows, read_scene
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.stats import Tally, pixel_area
from penstock.processors.geo.tiles import Normalisation, Pending, make_prompts

#: The network's output: float32 (classes, rows, columns), which sum to 1 at every pixel.
OUTPUT_NAME = "probability"


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    scene: Scene
    bands: tuple[SceneBand, ...]
    radiometry: Radiometry
    plan: Plan
    outputs: tuple[str, ...]
    etag: str | None
    pending: Pending = field(default_factory=deque)


class RasterSegmentation:
    """Segments a scene of any size in tiles, in memory that grows with neither of its sides.

    `Prepared.count` and `cost` are upper bounds: tiles without any data are never sent to the engine, and finding them
    beforehand would mean reading the scene twice.
    """

    request = SegmentationRequest
    outputs = (
        OutputSpec("classes", COG_TYPE, "classes.tif: class ids as a COG with a palette; 255 = no data"),
        OutputSpec(
            "probability", COG_TYPE, "probability.tif: a COG with one band per class; value / 254; 255 = no data"
        ),
        OutputSpec("preview", "image/png", "preview.png: the classes in their colours, at most 1024 px"),
        OutputSpec("stats", "application/json", "stats.json: pixels, m² and share of each class, and what was used"),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        self._options: SegmentationOptions = read_options(model)

    def pre_process(self, request: SegmentationRequest, media: Media) -> Prepared[Context]:
        """Return the stream of tiles, left to right and top to bottom, panel by panel."""
        options, path = self._options, media.path(request.scene)
        scene = read_scene(path, self._model.limits)
        bands = select_bands(options.bands, scene.bands, request.bands)
        radiometry = resolve_radiometry(request.radiometry, scene.declared(bands), options.default_radiometry)
        plan = make_plan(
            scene.height,
            scene.width,
            tile_px=options.tile_px,
            halo_px=options.halo_px,
            stride_px=options.stride_px,
            pixel_bytes=len(bands) * np.dtype(scene.dtype).itemsize + 1,
            strip_bytes=options.strip_bytes,
        )
        context = Context(scene, bands, radiometry, plan, request.outputs, media.etag(request.scene))
        return Prepared(self._prompts(path, context), plan.count, plan.cost, context, unit="tiles")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Write the artifacts that were asked for and return the statistics."""
        tally = Tally(pixel_area(context.scene.crs, context.scene.transform))
        with ExitStack() as stack:
            classes, probability = self._scratches(context, sink, stack)
            for output in outputs:
                tile, valid = _next(context.pending)
                chances = _core(output, tile, len(self._options.classes))
                ids = np.where(valid, chances.argmax(axis=0), NODATA).astype(np.uint8)
                tally.add(ids, tile.core)
                if classes:
                    classes.write(ids[None], tile.core)
                if probability:
                    steps = np.rint(np.clip(chances, 0, 1) * STEPS)
                    probability.write(np.where(valid, steps, NODATA).astype(np.uint8), tile.core)
        if context.pending:
            raise ProcessorFailed(f"The engine left {len(context.pending)} tiles unanswered.")
        stats = self._stats(tally, context)
        self._hand_over(context, sink, classes, probability, stats)
        return Result(data=stats)

    def _prompts(self, path: Path, context: Context) -> Iterator[Prompt]:
        norm = Normalisation(self._options.bands, context.radiometry, self._options.plausible_mean)
        with open_rows(path, context.scene, context.bands, context.radiometry.nodata) as rows:
            yield from make_prompts(rows, context.plan, norm, context.pending)

    def _scratches(
        self, context: Context, sink: ArtifactSink, stack: ExitStack
    ) -> tuple[Scratch | None, Scratch | None]:
        labels, tags = self._options.classes, self._tags(context)
        classes = probability = None
        if {"classes", "preview"} & set(context.outputs):
            classes = stack.enter_context(Scratch(sink.path("classes.scratch.tif"), context.scene, 1, tags))
            classes.label_classes(labels, self._model.title)
        if "probability" in context.outputs:
            scratch = Scratch(sink.path("probability.scratch.tif"), context.scene, len(labels), tags)
            probability = stack.enter_context(scratch)
            probability.label_probabilities(labels)
        return classes, probability

    def _hand_over(
        self,
        context: Context,
        sink: ArtifactSink,
        classes: Scratch | None,
        probability: Scratch | None,
        stats: dict[str, Any],
    ) -> None:
        if classes and "classes" in context.outputs:
            write_cog(classes.path, path := sink.path("classes.tif"), overviews="MODE")
            sink.add("classes.tif", path, media_type=COG_TYPE)
        if classes and "preview" in context.outputs:
            write_preview(classes.path, path := sink.path("preview.png"), self._options.classes)
            sink.add("preview.png", path, media_type="image/png")
        if probability:
            write_cog(probability.path, path := sink.path("probability.tif"), overviews="AVERAGE")
            sink.add("probability.tif", path, media_type=COG_TYPE)
        if "stats" in context.outputs:
            write_json(path := sink.path("stats.json"), stats)
            sink.add("stats.json", path, media_type="application/json")
        for scratch in filter(None, (classes, probability)):
            scratch.path.unlink()

    def _tags(self, context: Context) -> dict[str, str]:
        """Return the rasters' tags: nothing of the job, so that the same scene always gives the same bytes."""
        used = context.radiometry.to_json()
        return {
            "TIFFTAG_SOFTWARE": f"penstock {penstock.__version__}",
            "MODEL": self._model.name,
            "MODEL_REVISION": self._model.revision,
            "RADIOMETRY": ", ".join(f"{name} {value}" for name, value in used.items()),
        }

    def _stats(self, tally: Tally, context: Context) -> dict[str, Any]:
        scene = context.scene
        used = zip(self._options.bands, context.bands, strict=True)
        return {
            "model": {"name": self._model.name, "revision": self._model.revision},
            "scene": {"width": scene.width, "height": scene.height, "etag": context.etag},
            **tally.to_json(self._options.classes, scene.width * scene.height),
            "bands": [{"name": need.name, "index": band.index, "description": band.name} for need, band in used],
            "radiometry": context.radiometry.to_json(),
        }


def _next(pending: Pending) -> tuple[Tile, npt.NDArray[np.bool_]]:
    try:
        return pending.popleft()
    except IndexError:
        raise ProcessorFailed("The engine answered more tiles than it was sent.") from None


def _core(output: Output, tile: Tile, classes: int) -> npt.NDArray[np.float32]:
    """Return the probabilities of the tile's core, cut out of those of its window."""
    chances: npt.NDArray[np.float32] = np.asarray(output.data[OUTPUT_NAME])
    core, window = tile.core, tile.window
    if chances.shape != (classes, window.height, window.width):
        raise ProcessorFailed(
            f"The network answered {chances.shape}; expected {(classes, window.height, window.width)}."
        )
    box = Box(core.top - window.top, core.left - window.left, core.bottom - window.top, core.right - window.left)
    return chances[:, box.top : box.bottom, box.left : box.right]
