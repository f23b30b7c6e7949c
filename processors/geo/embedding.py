"""Raster embedding processor: a vector for each tile of a scene, or for each patch of the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Output, OutputSpec, Result, final_outputs
from penstock.processors.embedding import OUTPUT_NAME
from penstock.processors.geo.mapping import MappingContext, SceneRunner, scene_signature
from penstock.processors.geo.options import EmbeddingOptions, read_options
from penstock.processors.geo.read.suspected_nodata import SuspectCounts, add_suspects
from penstock.processors.geo.request import EmbeddingRequest
from penstock.processors.geo.scene_processor import SceneProcessor
from penstock.processors.geo.scene_writer import Piece, TilePieces
from penstock.processors.geo.tiling.cells import Cells
from penstock.processors.geo.tiling.stitch import with_tiles
from penstock.processors.geo.tiling.tiles import SentTile
from penstock.processors.geo.write.cog import RASTER_OUTPUTS
from penstock.processors.geo.write.geoparquet import GEOPARQUET_TYPE
from penstock.processors.geo.write.vector_outputs import SHARES, VECTORS, VectorOutputs
from penstock.processors.io_signature import IOSignature
from penstock.views import View

_Context = MappingContext[EmbeddingRequest]

#: Runners that make a vector of a tile, or one of each patch, by `options.pooling`.
_POOLED = ("olmoearth", "terratorch", "transformers")


class RasterEmbedding(SceneProcessor[EmbeddingRequest]):
    """Embeddings of scenes."""

    request = EmbeddingRequest
    outputs = (
        RASTER_OUTPUTS.spec(
            "embeddings", "embeddings.tif: a COG of float32, a band per dimension, a pixel per vector", kind="cog"
        ),
        OutputSpec(
            "geoparquet",
            GEOPARQUET_TYPE,
            "embeddings.parquet: a row per vector with its square in the scene's CRS and its share of valid pixels",
            default=False,
        ),
        RASTER_OUTPUTS.spec("stats", "stats.json: the grid of vectors, and the inputs used", kind="json"),
    )
    views = (View("rows", "/embeddings"),)
    #: The output of all kinds of networks.
    io_signatures: tuple[IOSignature, ...] = (
        scene_signature(OUTPUT_NAME).model_copy(update={"output": {OUTPUT_NAME: "array (dimensions, ...)"}}),
    )

    def __init__(self, model: Model) -> None:
        self._options = read_options(model, EmbeddingOptions)
        signature = scene_signature(OUTPUT_NAME, self._options.coordinates)
        self.io_signatures = (signature.model_copy(update={"output": {OUTPUT_NAME: "array (dimensions, ...)"}}),)
        by_patch = self._options.cell_px < self._options.tile_px
        if model.runner in _POOLED and by_patch != (self._options.pooling == "patches"):
            raise ConfigError(
                f"model {model.name!r}: options.patch_px below tile_px and options.pooling 'patches' need each other"
            )
        super().__init__(model, SceneRunner(model, self._options))

    def post_process(self, outputs: Iterator[Output], context: _Context, sink: ArtifactSink) -> Result:
        """Write the requested artifacts and return the statistics."""
        cells = Cells(self._options.cell_px, context.inputs.box)
        pieces = self._pieces(outputs, context, cells)
        if context.part is not None:
            return self._runner.write_part(pieces, context, sink)
        with closing(VectorOutputs(self._model, context.inputs, cells, context.request.outputs, sink)) as results:
            written = self._runner.write(pieces, context, results, sink)
            return Result(data=results.finish(context.provenance(written)))

    def _pieces(self, outputs: Iterator[Output], context: _Context, cells: Cells) -> Iterator[TilePieces]:
        for sent, output in with_tiles(final_outputs(outputs), context.pending):
            yield TilePieces(sent.strip, sent.last, self._of_tile(sent, output, cells))

    def _of_tile(self, sent: SentTile, output: Output, cells: Cells) -> Iterator[Piece]:
        vectors = self._vectors(output.data.get(OUTPUT_NAME))
        for final in sent.final:
            box, suspects = cells.of(final.box), SuspectCounts()
            add_suspects(suspects, final.suspects)
            shares = cells.shares(final.box, final.valid)
            here = box.within(cells.of(sent.tile.window))
            found = vectors[:, here.top : here.bottom, here.left : here.right]
            numbers = np.where(shares > 0, found, np.float32(np.nan))
            yield Piece(box.within(cells.box), {VECTORS: numbers, SHARES: shares[None]}, suspects)

    def _vectors(self, answer: Any) -> npt.NDArray[np.float32]:
        """Return float32 (dimensions, rows, columns) of a tile's cells; raise `ProcessorFailed` for other shapes."""
        side, skipped = self._options.tile_px // self._options.cell_px, self._options.prefix_tokens
        if not isinstance(answer, np.ndarray):
            raise ProcessorFailed(f"The network returned no `{OUTPUT_NAME}`.")
        vectors = np.asarray(answer, np.float32)
        if vectors.ndim == 2 and len(vectors) == side * side + skipped:
            vectors = vectors[skipped:].T.reshape(-1, side, side)
        elif vectors.ndim == 1 and side == 1:
            vectors = vectors[:, None, None]
        if vectors.ndim != 3 or vectors.shape[1:] != (side, side) or not len(vectors):
            raise ProcessorFailed(
                f"The network returned `{OUTPUT_NAME}` of the shape {answer.shape}; expected (dimensions, {side}, "
                f"{side}), or ({side * side + skipped}, dimensions) with options.prefix_tokens = {skipped}"
                + (", or (dimensions)." if side == 1 else ".")
            )
        if not np.isfinite(vectors).all():
            raise ProcessorFailed("The network returned vectors with numbers that are not finite.")
        return vectors
