"""Raster segmentation processor: a class map, probabilities, a preview and statistics from a scene."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import InvalidInput
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, OutputSpec, Prepared, Prompt, Result
from penstock.processors.geo.change import both, check_dates, earlier_request, of_the_earlier_scene
from penstock.processors.geo.mapping import MappingContext, SceneMapper, scene_signature
from penstock.processors.geo.options import SegmentationOptions, read_options
from penstock.processors.geo.read.inputs import alike
from penstock.processors.geo.read.provenance import Provenance
from penstock.processors.geo.read.zones import check_rows
from penstock.processors.geo.request import ChangeRequest, SegmentationRequest
from penstock.processors.geo.runs import PrefixedSink, SplitOutputs, in_one_job, one_division, part_of_run
from penstock.processors.geo.scene_processor import SceneProcessor
from penstock.processors.geo.series import SeriesContext, SeriesWriter, prepare_series, save_part
from penstock.processors.geo.tiling.stitch import Channels, FinalPixels
from penstock.processors.geo.wanted_classes import wanted_classes
from penstock.processors.geo.write.change_outputs import ChangeOutputs, change_labels
from penstock.processors.geo.write.class_outputs import (
    ClassOutputs,
    ClassTally,
    class_counts,
    encode,
    encode_reduced,
)
from penstock.processors.geo.write.cog import RASTER_OUTPUTS
from penstock.processors.geo.write.quicklook import Quicklook
from penstock.processors.geo.write.raster_set import RasterArrays
from penstock.processors.geo.write.stac import ITEM_TYPE
from penstock.processors.geo.write.uncertainty import class_uncertainty
from penstock.processors.geo.write.vector import FLATGEOBUF_TYPE
from penstock.views import View

_Context = MappingContext[SegmentationRequest]

#: Name of the network's output: float32 (classes, rows, columns) with sum 1 at every pixel.
OUTPUT_NAME = "probability"


class RasterSegmentation(SceneProcessor[SegmentationRequest]):
    """Raster segmentation, of one scene, of two for the change between them, or of a series of dates."""

    _runner: SceneMapper
    request = SegmentationRequest
    outputs = (
        RASTER_OUTPUTS.spec("classes", "classes.tif: class ids as a COG with a palette; 255 = no data", kind="cog"),
        RASTER_OUTPUTS.spec(
            "probability",
            "probability.tif: a COG with one band per class; value / 254; 255 = no data",
            kind="cog",
            default=False,
        ),
        RASTER_OUTPUTS.spec(
            "probability_float32",
            "probability_float32.tif: the same as unrounded float32; NaN = no data",
            kind="cog",
            default=False,
        ),
        RASTER_OUTPUTS.spec(
            "confidence",
            "confidence.tif: a COG of the probability of each pixel's class; value / 254; 255 = no data",
            kind="cog",
            default=False,
        ),
        OutputSpec(
            "polygons",
            FLATGEOBUF_TYPE,
            "polygons.fgb in the scene's CRS and polygons.geojson (RFC 7946): one polygon for each region of a class",
            default=False,
        ),
        RASTER_OUTPUTS.spec("preview", "preview.png: the classes in their colours, at most 1024 px", kind="png"),
        RASTER_OUTPUTS.spec(
            "quicklook",
            "quicklook.png: the scene in its colours, at most 1024 px",
            kind="png",
            default=False,
        ),
        RASTER_OUTPUTS.spec(
            "change",
            "change.tif: with the input `change`, a COG of lost (1), gained (2) and kept (3) classes; 255 = no data",
            kind="cog",
            default=False,
        ),
        OutputSpec(
            "item",
            ITEM_TYPE,
            "item.json: a STAC item of the other outputs, if the time is known; model.json: a STAC item of the model",
            default=False,
        ),
        RASTER_OUTPUTS.spec(
            "stats", "stats.json: pixels, m² and percentage per class, and the inputs used", kind="json"
        ),
    )
    views = (View("rows", "/classes"),)
    io_signatures = (scene_signature(OUTPUT_NAME),)

    def __init__(self, model: Model) -> None:
        self._options = read_options(model, SegmentationOptions)
        self.io_signatures = (scene_signature(OUTPUT_NAME, self._options.coordinates),)
        channels = Channels(OUTPUT_NAME, len(self._options.classes))
        super().__init__(model, SceneMapper(model, self._options, channels, reduces=True))

    def _prepared(self, request: SegmentationRequest, media: Media, part: range | None = None) -> Prepared[Any]:
        """Return the prompts of a scene; those of an earlier scene come first. Of a series, those of all dates."""
        if request.series is not None:
            self._needs_one_date("series")
            wanted = wanted_classes(request.series, self._options.classes, "series")
            return prepare_series(self._runner, request, media, wanted, part, len(self._options.classes))
        if request.change is None:
            prepared = super()._prepared(request, media, part)
            check_rows(prepared.context.inputs.zones, len(self._options.classes))
            return prepared
        self._change(request.change, Path(), request)
        self._needs_one_date("change")
        earlier = earlier_request(request, request.change)
        with of_the_earlier_scene():
            first = self._runner.read(earlier, media)
        last = self._runner.read(request, media)
        check_dates(first, last, request.change.before)
        first, last = alike(first, last)
        with of_the_earlier_scene():
            before = self._runner.prepare(earlier, earlier.outputs, media, part, inputs=first)
        strips = before.context.plan.strip_count
        after = self._runner.prepare(request, request.outputs, media, part_of_run(part, strips), inputs=last)
        check_rows(after.context.inputs.zones, len(self._options.classes) + len(change_labels("")))
        prompts = _one_after_the_other(before.prompts, after.prompts)
        context = replace(after.context, before=before.context)
        division = one_division([(run.division, run.context.plan.strip_count) for run in (before, after)])
        return in_one_job([before, after], prompts, context, division)

    def _needs_one_date(self, field: str) -> None:
        if self._options.dates > 1:
            raise InvalidInput(f"`{field}` is for models of one date; this model compares several dates by itself.")
        if self._options.modalities:
            raise InvalidInput(f"`{field}` is for models of one sensor; this model takes several.")

    def post_process(self, outputs: Iterator[Output], context: _Context | SeriesContext, sink: ArtifactSink) -> Result:
        """Write the requested artifacts and return the statistics."""
        described = "item" in context.request.outputs
        if isinstance(context, SeriesContext):
            if context.part is not None:
                return save_part(outputs, context, partial(self._save, sink=sink))
            series = SeriesWriter(self._model, context, sink)
            return series.write(outputs, partial(self._write, described=described))
        if context.part is not None:
            return self._save(outputs, context, sink)
        change = context.request.change
        with ExitStack() as stack:
            if change is None or context.before is None:
                results, provenance = self._write(outputs, context, sink, stack, described=described)
                return Result(data=results.finish(provenance, quicklook=Quicklook(context.inputs)))
            split, earlier = SplitOutputs(outputs), PrefixedSink(sink, "before-")
            own = split.of(context.before.pending)
            before, of_before = self._write(own, context.before, earlier, stack, described=described)
            after, of_after = self._write(split.rest(), context, sink, stack, described=described)
            before_raster = before.close()
            if "classes" in context.request.outputs:
                before.finish(of_before)
            made, known = self._change(change, before_raster, context.request), both(of_before, of_after)
            quicklook = Quicklook(context.inputs)
            return Result(data=after.finish(known, made, quicklook=quicklook, earlier=before.artifacts))

    def _save(self, outputs: Iterator[Output], context: _Context, sink: ArtifactSink) -> Result:
        """Save the strips of a part, first the strips of the earlier scene."""
        if context.before is not None:
            split = SplitOutputs(outputs)
            self._save(split.of(context.before.pending), context.before, sink)
            outputs = split.rest()
        encoded = partial(_encoded, wanted=context.request.outputs)
        return self._runner.finish_part(outputs, context, encoded, sink, ClassTally(class_counts(context.inputs.grid)))

    def _write(
        self, outputs: Iterator[Output], context: _Context, sink: ArtifactSink, stack: ExitStack, *, described: bool
    ) -> tuple[ClassOutputs, Provenance]:
        """Write the rasters of one scene; `described` is True if a STAC item will list them."""
        inputs, request = context.inputs, context.request
        results = ClassOutputs(
            self._model, self._options.classes, inputs.grid, inputs.radiometry, request, sink,
            described=described, zones=inputs.zones,
        )  # fmt: skip
        stack.enter_context(results)
        encoded = partial(_encoded, wanted=request.outputs)
        written = self._runner.finish(outputs, context, results, encoded, sink, ClassTally(results.counts))
        return results, context.provenance(written)

    def _change(self, change: ChangeRequest, before: Path, request: SegmentationRequest) -> ChangeOutputs:
        """Return the writer of a change; raise `InvalidInput` for classes that the model does not have."""
        classes = wanted_classes(change, self._options.classes, "change")
        return ChangeOutputs(before, classes, frozenset(request.outputs), request.polygons)


def _encoded(piece: FinalPixels, wanted: Collection[str]) -> RasterArrays:
    rasters = (encode_reduced if piece.reduced else encode)(piece.numbers, piece.valid, wanted)  # type: ignore[arg-type]
    return rasters if piece.passes is None else {**rasters, **class_uncertainty(piece.passes, piece.valid)}


def _one_after_the_other(first: Iterator[Prompt], second: Iterator[Prompt]) -> Iterator[Prompt]:
    """Yield the prompts of two runs. A generator, so that closing it closes the run in progress."""
    with of_the_earlier_scene():
        yield from first
    yield from second
