"""The raster regression processor: a scene in, maps of quantities, a picture and statistics out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, OutputSpec, Prepared, Result
from penstock.processors.geo.cog import RASTER_OUTPUTS
from penstock.processors.geo.mapping import Context, SceneMapper
from penstock.processors.geo.options import RegressionOptions, read_options
from penstock.processors.geo.request import RegressionRequest
from penstock.processors.geo.stac import ITEM_TYPE
from penstock.processors.geo.stitch import Channels
from penstock.processors.geo.values import ValueProducts, encode_values

#: The network's output: float32 (quantities, rows, columns), in the quantities' units.
OUTPUT_NAME = "values"


class RasterRegression:
    """Estimates quantities for a scene of any size in tiles, in memory that grows with neither of its sides."""

    request = RegressionRequest
    outputs = (
        RASTER_OUTPUTS.spec(
            "values", "values.tif: a COG of float32 with one band per quantity; NaN = no data", kind="cog"
        ),
        RASTER_OUTPUTS.spec("preview", "preview.png: the first quantity, at most 1024 px", kind="png"),
        OutputSpec(
            "item",
            ITEM_TYPE,
            "item.json: a STAC item of the other outputs; model.json: one of the model",
            default=False,
        ),
        RASTER_OUTPUTS.spec("stats", "stats.json: the spread of each quantity, and what was used", kind="json"),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        self._options = read_options(model, RegressionOptions)
        self._mapper = SceneMapper(model, self._options, Channels(OUTPUT_NAME, len(self._options.quantities)))

    def pre_process(self, request: RegressionRequest, media: Media) -> Prepared[Context[RegressionRequest]]:
        """Return the stream of tiles; see `SceneMapper.prepare`."""
        return self._mapper.prepare(request, request.outputs, media)

    def post_process(
        self, outputs: Iterator[Output], context: Context[RegressionRequest], sink: ArtifactSink
    ) -> Result:
        """Write the artifacts that were asked for and return the statistics."""
        inputs, wanted = context.inputs, context.request.outputs
        products = ValueProducts(self._model, self._options.quantities, inputs.scene, inputs.radiometry, wanted, sink)
        with products:
            fill = self._mapper.finish(outputs, context, products, encode_values, sink)
            return Result(data=products.hand_over(context.provenance(fill)))

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a scene of noise; see `SceneMapper.dummy`."""
        return self._mapper.dummy(limits, folder)
