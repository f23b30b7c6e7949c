"""Raster detection processor: the objects of a scene, their boxes put together over the borders of tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, OutputSpec, Prepared, Result, final_outputs
from penstock.processors.directory import read_labels
from penstock.processors.exchange import Exchange
from penstock.processors.geo.mapping import Context, SceneRunner, scene_exchange
from penstock.processors.geo.options import DetectionOptions, read_options
from penstock.processors.geo.read.suspected_nodata import SuspectCounts, add_suspects
from penstock.processors.geo.request import DetectionRequest
from penstock.processors.geo.scene_writer import Piece, TilePieces
from penstock.processors.geo.tiling.boxes import COLUMNS, on_scene
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.tiling.stitch import with_tiles
from penstock.processors.geo.tiling.tiles import SentTile
from penstock.processors.geo.write.cog import RASTER_OUTPUTS
from penstock.processors.geo.write.object_outputs import BOXES, ObjectOutputs, check_placement
from penstock.processors.geo.write.vector import GEOJSON_TYPE
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.queries import check_kind, corners, decode

_Context = Context[DetectionRequest]
_Numbers = npt.NDArray[np.float64]

#: The values that are read of each kind of network's outputs.
_OUTPUTS: Mapping[str, Mapping[str, str]] = {
    "boxes": {"boxes": "array (_, 4)", "scores": "array (_)", "labels": "array (_)"},
    "scores": {"boxes": "array (_, 4)", "scores": "array (_, classes)"},
    "queries": {"logits": "array (queries, classes)", "boxes": "array (queries, 4)"},
}


class _Runner(SceneRunner):
    keeps_valid = True


class RasterDetection:
    """Detection of objects in scenes of any size in overlapping tiles; memory does not grow with the scene."""

    request = DetectionRequest
    outputs = (
        OutputSpec(
            "objects",
            GEOJSON_TYPE,
            "objects.geojson: a polygon for each object with label, score, pixels and share of pixels with data",
        ),
        RASTER_OUTPUTS.spec("preview", "preview.png: the scene with its boxes, at most 1024 px", kind="png"),
        RASTER_OUTPUTS.spec("stats", "stats.json: objects of each class, and the inputs used", kind="json"),
    )
    #: The output that all kinds of networks have; a model's own exchange has more.
    exchanges: tuple[Exchange, ...] = (
        scene_exchange("boxes").model_copy(update={"output": {"boxes": "array (_, 4)"}}),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        self._options = read_options(model, DetectionOptions)
        self._labels = read_labels(model)
        self._detector = self._options.detector or ("queries" if model.runner == "transformers" else "boxes")
        exchange = scene_exchange("boxes", self._options.coordinates)
        self.exchanges = (exchange.model_copy(update={"output": _OUTPUTS[self._detector]}),)
        self._kind = ""
        if self._detector == "queries":
            self._kind = read_preprocessor(model).kind
            check_kind(model, self._kind)
        self._runner = _Runner(model, self._options)

    def pre_process(self, request: DetectionRequest, media: Media) -> Prepared[_Context]:
        """Plan a scene and return its prompts; see `SceneRunner.prepare`."""
        return self._prepared(request, media)

    def pre_process_part(self, request: DetectionRequest, media: Media, first: int, last: int) -> Prepared[_Context]:
        """Return the prompts of some strips of a scene; see `PartProcessor`."""
        return self._prepared(request, media, range(first, last + 1))

    def post_process(self, outputs: Iterator[Output], context: _Context, sink: ArtifactSink) -> Result:
        """Write the requested artifacts and return the statistics."""
        pieces = self._pieces(outputs, context)
        if context.part is not None:
            return self._runner.write_part(pieces, context, sink)
        results = ObjectOutputs(self._model, context.inputs, self._labels, context.request, sink)
        written = self._runner.write(pieces, context, results, sink)
        return Result(data=results.finish(context.provenance(written)))

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a scene of noise; see `SceneRunner.dummy`."""
        return self._runner.dummy(limits, folder)

    def _prepared(self, request: DetectionRequest, media: Media, part: range | None = None) -> Prepared[_Context]:
        # The preview reads the scene again, as a quicklook does.
        outputs = (*request.outputs, *(("quicklook",) if "preview" in request.outputs else ()))
        prepared = self._runner.prepare(request, outputs, media, part, facts={"threshold": request.threshold})
        check_placement(request, prepared.context.inputs)
        return prepared

    def _pieces(self, outputs: Iterator[Output], context: _Context) -> Iterator[TilePieces]:
        whole = Box(0, 0, context.plan.height, context.plan.width)
        for sent, output in with_tiles(final_outputs(outputs), context.pending):
            yield TilePieces(sent.strip, sent.last, self._of_tile(sent, output, whole, context.request.threshold))

    def _of_tile(self, sent: SentTile, output: Output, whole: Box, threshold: float) -> Iterator[Piece]:
        window, suspects = sent.tile.window, SuspectCounts()
        for final in sent.final:
            add_suspects(suspects, final.suspects)
        labels, scores, boxes = self._found(output.data, threshold, window)
        assert sent.valid is not None  # noqa: S101  (the runner keeps it)
        table = on_scene(boxes, labels, scores, window, whole, sent.valid, self._options.border_px)
        yield Piece(Box(0, 0, len(table), COLUMNS), {BOXES: table[None]}, suspects)

    def _found(
        self, data: Mapping[str, Any], threshold: float, window: Box
    ) -> tuple[npt.NDArray[np.int64], _Numbers, _Numbers]:
        """Return labels, scores and boxes (left, top, right, bottom in pixels of the window) above the threshold."""
        sides = np.array([window.width, window.height] * 2)
        lacking = ", ".join(name for name in _OUTPUTS[self._detector] if name not in data)
        if lacking:
            raise ProcessorFailed(f"The network returned {', '.join(data) or 'nothing'}; it lacks {lacking}.")
        if self._detector == "queries":
            labels, scores, boxes = decode(self._kind, data, threshold)
            return labels, scores, boxes * sides
        boxes, scores = (np.asarray(data[name], np.float64) for name in ("boxes", "scores"))
        rank = 2 if self._detector == "scores" else 1
        of_each: Any = np.asarray(data["labels"]) if rank == 1 else scores.argmax(-1) if scores.size else np.zeros(0)
        if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.ndim != rank or {len(scores), len(of_each)} != {len(boxes)}:
            raise ProcessorFailed(
                f"The network answered boxes {boxes.shape}, scores {scores.shape} and labels {of_each.shape}; "
                f"expected (n, 4), {'(n, classes)' if rank == 2 else '(n)'} and (n)."
            )
        best = scores.max(axis=1, initial=-np.inf) if rank == 2 else scores
        kept = best > threshold
        boxes, best, of_each = boxes[kept], np.asarray(best[kept]), of_each[kept].astype(np.int64)
        if not np.isfinite(boxes).all() or not np.isfinite(best).all():
            raise ProcessorFailed("The network answered boxes or scores that are no finite numbers.")
        boxes = boxes * sides if self._options.box_unit == "shares" else boxes
        return of_each, best, corners(boxes) if self._options.box_format == "cxcywh" else boxes
