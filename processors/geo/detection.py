"""Raster detection processor: the objects of a scene, their boxes put together over the borders of tiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, OutputSpec, Prepared, Result, final_outputs
from penstock.processors.directory import read_labels
from penstock.processors.geo.mapping import MappingContext, SceneRunner, scene_signature
from penstock.processors.geo.options import DetectionOptions, ObjectOptions, read_options
from penstock.processors.geo.read.suspected_nodata import SuspectCounts, add_suspects
from penstock.processors.geo.request import DetectionRequest, ObjectRequest
from penstock.processors.geo.scene_processor import SceneProcessor
from penstock.processors.geo.scene_writer import Piece, TilePieces
from penstock.processors.geo.tiling.boxes import COLUMNS, on_scene
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.tiling.stitch import with_tiles
from penstock.processors.geo.tiling.tiles import SentTile
from penstock.processors.geo.write.cog import RASTER_OUTPUTS
from penstock.processors.geo.write.object_outputs import BOXES, ObjectOutputs, check_placement
from penstock.processors.geo.write.vector import GEOJSON_TYPE
from penstock.processors.io_signature import IOSignature
from penstock.processors.vision.detectors import OUTPUTS, Detector, Found
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.queries import check_kind
from penstock.views import View

RequestT = TypeVar("RequestT", bound=ObjectRequest)
#: Function from a tile's output and its window.
Find = Callable[[Mapping[str, Any], Box], Found]


class ObjectRunner(SceneRunner):
    """Tiles of scenes that keep which pixels are data."""

    keeps_valid = True


class SceneDetector(SceneProcessor[RequestT], ABC):
    """A processor of objects in scenes in overlapping tiles."""

    views = (View("rows", "/objects/labels"),)
    outputs = (
        OutputSpec(
            "objects",
            GEOJSON_TYPE,
            "objects.geojson: a polygon for each object with label, score, pixels and share of pixels with data",
        ),
        RASTER_OUTPUTS.spec("preview", "preview.png: the scene with its boxes, at most 1024 px", kind="png"),
        RASTER_OUTPUTS.spec("stats", "stats.json: objects of each class, and the inputs used", kind="json"),
    )

    def __init__(self, model: Model, options: ObjectOptions, runner: ObjectRunner) -> None:
        super().__init__(model, runner)
        self._border_px = options.border_px

    @abstractmethod
    def _names(self, request: RequestT) -> Mapping[int, str]:
        """Return the names of the classes by id."""

    @abstractmethod
    def _facts(self, request: RequestT) -> Mapping[str, Any]:
        """Return the JSON values that the boxes of a tile depend on."""

    @abstractmethod
    def _finder(self, request: RequestT) -> Find:
        """Return the function that decodes the outputs of a job."""

    def post_process(self, outputs: Iterator[Output], context: MappingContext[RequestT], sink: ArtifactSink) -> Result:
        """Write the requested artifacts and return the statistics."""
        pieces = self._pieces(outputs, context)
        if context.part is not None:
            return self._runner.write_part(pieces, context, sink)
        names = self._names(context.request)
        results = ObjectOutputs(self._model, context.inputs, names, context.request, sink)
        written = self._runner.write(pieces, context, results, sink)
        return Result(data=results.finish(context.provenance(written)))

    def _prepared(
        self, request: RequestT, media: Media, part: range | None = None
    ) -> Prepared[MappingContext[RequestT]]:
        # The preview reads the scene again, as a quicklook does.
        outputs = (*request.outputs, *(("quicklook",) if "preview" in request.outputs else ()))
        prepared = self._runner.prepare(request, outputs, media, part, facts=self._facts(request))
        check_placement(request, prepared.context.inputs)
        return prepared

    def _pieces(self, outputs: Iterator[Output], context: MappingContext[RequestT]) -> Iterator[TilePieces]:
        whole, find = Box(0, 0, context.plan.height, context.plan.width), self._finder(context.request)
        for sent, output in with_tiles(final_outputs(outputs), context.pending):
            yield TilePieces(sent.strip, sent.last, self._of_tile(sent, find(output.data, sent.tile.window), whole))

    def _of_tile(self, sent: SentTile, found: Found, whole: Box) -> Iterator[Piece]:
        suspects = SuspectCounts()
        for final in sent.final:
            add_suspects(suspects, final.suspects)
        labels, scores, boxes = found
        assert sent.valid is not None  # noqa: S101  (the runner keeps it)
        table = on_scene(boxes, labels, scores, sent.tile.window, whole, sent.valid, self._border_px)
        yield Piece(Box(0, 0, len(table), COLUMNS), {BOXES: table[None]}, suspects)


class RasterDetection(SceneDetector[DetectionRequest]):
    """Detection of objects of the network's own classes."""

    request = DetectionRequest
    #: The output that all kinds of networks have; a model's own signature has more.
    io_signatures: tuple[IOSignature, ...] = (
        scene_signature("boxes").model_copy(update={"output": {"boxes": "array (_, _)"}}),
    )

    def __init__(self, model: Model) -> None:
        self._options = read_options(model, DetectionOptions)
        self._labels = read_labels(model)
        layout = self._options.detector or ("queries" if model.runner == "transformers" else "boxes")
        signature = scene_signature("boxes", self._options.coordinates)
        self.io_signatures = (signature.model_copy(update={"output": OUTPUTS[layout]}),)
        kind = ""
        if layout == "queries":
            kind = read_preprocessor(model).kind
            check_kind(model, kind)
        self._detector = Detector(layout, self._options.box_format, self._options.box_unit, kind)
        super().__init__(model, self._options, ObjectRunner(model, self._options))

    def _names(self, request: DetectionRequest) -> Mapping[int, str]:  # noqa: ARG002  (they are the model's)
        return self._labels

    def _facts(self, request: DetectionRequest) -> Mapping[str, Any]:
        return {"threshold": request.threshold}

    def _finder(self, request: DetectionRequest) -> Find:
        return partial(self._found, request.threshold)

    def _found(self, threshold: float, data: Mapping[str, Any], window: Box) -> Found:
        return self._detector.find(data, threshold, window.width, window.height)
