"""Raster regression processor: maps of quantities, a preview and statistics from a scene."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.models import Model
from penstock.processors.base import ArtifactSink, Output, OutputSpec, Result
from penstock.processors.geo.mapping import MappingContext, SceneMapper, scene_signature
from penstock.processors.geo.options import RegressionOptions, read_options
from penstock.processors.geo.request import RegressionRequest
from penstock.processors.geo.scene_processor import SceneProcessor
from penstock.processors.geo.tiling.stitch import Channels, FinalPixels
from penstock.processors.geo.write.cog import RASTER_OUTPUTS
from penstock.processors.geo.write.raster_set import RasterArrays
from penstock.processors.geo.write.stac import ITEM_TYPE
from penstock.processors.geo.write.uncertainty import value_uncertainty
from penstock.processors.geo.write.value_outputs import ValueOutputs, encode_values
from penstock.views import View

#: Name of the network's output: float32 (quantities, rows, columns), in the quantities' units.
OUTPUT_NAME = "values"


class RasterRegression(SceneProcessor[RegressionRequest]):
    """Raster regression."""

    _runner: SceneMapper
    request = RegressionRequest
    outputs = (
        RASTER_OUTPUTS.spec(
            "values", "values.tif: a COG of float32 with one band per quantity; NaN = no data", kind="cog"
        ),
        RASTER_OUTPUTS.spec("preview", "preview.png: the first quantity, at most 1024 px", kind="png"),
        OutputSpec(
            "item",
            ITEM_TYPE,
            "item.json: a STAC item of the other outputs, if the time is known; model.json: a STAC item of the model",
            default=False,
        ),
        RASTER_OUTPUTS.spec("stats", "stats.json: statistics of each quantity, and the inputs used", kind="json"),
    )
    views = (View("rows", "/values"),)
    io_signatures = (scene_signature(OUTPUT_NAME),)

    def __init__(self, model: Model) -> None:
        self._options = read_options(model, RegressionOptions)
        self.io_signatures = (scene_signature(OUTPUT_NAME, self._options.coordinates),)
        channels = Channels(OUTPUT_NAME, len(self._options.quantities))
        super().__init__(model, SceneMapper(model, self._options, channels))

    def post_process(
        self, outputs: Iterator[Output], context: MappingContext[RegressionRequest], sink: ArtifactSink
    ) -> Result:
        """Write the requested artifacts and return the statistics."""
        if context.part is not None:
            return self._runner.finish_part(outputs, context, _encoded, sink)
        inputs, request = context.inputs, context.request
        results = ValueOutputs(
            self._model, self._options.quantities, inputs.grid, inputs.radiometry, request, sink, inputs.zones
        )
        with results:
            written = self._runner.finish(outputs, context, results, _encoded, sink)
            return Result(data=results.finish(context.provenance(written)))


def _encoded(piece: FinalPixels) -> RasterArrays:
    rasters = encode_values(piece.numbers, piece.valid)
    return rasters if piece.passes is None else {**rasters, **value_uncertainty(piece.passes, piece.valid)}
