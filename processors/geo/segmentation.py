"""Raster segmentation processor: a class map, probabilities, a preview and statistics from a scene."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, OutputSpec, Prepared, Result
from penstock.processors.geo.mapping import Context, SceneMapper, scene_exchange
from penstock.processors.geo.options import SegmentationOptions, read_options
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.tiling.stitch import Channels
from penstock.processors.geo.write.class_outputs import ClassOutputs, encode
from penstock.processors.geo.write.cog import RASTER_OUTPUTS
from penstock.processors.geo.write.stac import ITEM_TYPE
from penstock.processors.geo.write.vector import FLATGEOBUF_TYPE

#: Name of the network's output: float32 (classes, rows, columns) with sum 1 at every pixel.
OUTPUT_NAME = "probability"


class RasterSegmentation:
    """Raster segmentation of scenes of any size in tiles; memory does not grow with the scene."""

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
    exchanges = (scene_exchange(OUTPUT_NAME),)

    def __init__(self, model: Model) -> None:
        self._model = model
        self._options = read_options(model, SegmentationOptions)
        self.exchanges = (scene_exchange(OUTPUT_NAME, self._options.coordinates),)
        self._mapper = SceneMapper(model, self._options, Channels(OUTPUT_NAME, len(self._options.classes)))

    def pre_process(self, request: SegmentationRequest, media: Media) -> Prepared[Context[SegmentationRequest]]:
        """Plan a scene and return its prompts; see `SceneMapper.prepare`."""
        return self._mapper.prepare(request, request.outputs, media)

    def post_process(
        self, outputs: Iterator[Output], context: Context[SegmentationRequest], sink: ArtifactSink
    ) -> Result:
        """Write the requested artifacts and return the statistics."""
        inputs, request = context.inputs, context.request
        results = ClassOutputs(self._model, self._options.classes, inputs.grid, inputs.radiometry, request, sink)
        with results:
            encoded = partial(encode, wanted=request.outputs)
            suspects = self._mapper.finish(outputs, context, results, encoded, sink)
            return Result(data=results.finish(context.provenance(suspects)))

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a scene of noise; see `SceneMapper.dummy`."""
        return self._mapper.dummy(limits, folder)
