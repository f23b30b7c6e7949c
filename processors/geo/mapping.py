"""What all models share that make a map of a scene: the scene into prompts, answers into finished rasters.

    scene -> plan -> prompts -> engine -> stitched pieces -> encoded rasters -> written, and saved strip by strip

A strip that an earlier attempt saved is neither read nor inferred again: its rasters are written from its file, in its
place, so that the results are the same bytes.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

import penstock
from penstock.errors import MediaTooLarge
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, final_outputs
from penstock.processors.geo import strips
from penstock.processors.geo.coordinates import Coordinates, find_coordinates
from penstock.processors.geo.fill import Fill, notes_of_fill
from penstock.processors.geo.inputs import InputFile, Inputs, open_rows, read_inputs
from penstock.processors.geo.options import SceneOptions
from penstock.processors.geo.plan import Box, Plan, make_plan
from penstock.processors.geo.provenance import Provenance, Source
from penstock.processors.geo.rasters import Rasters
from penstock.processors.geo.request import SceneRequest
from penstock.processors.geo.sample import write_noise
from penstock.processors.geo.stitch import Answered, Channels, stitched
from penstock.processors.geo.tiles import Normalisation, Pending, make_prompts

RequestT = TypeVar("RequestT", bound=SceneRequest)

_MANY_PX = 2**40
#: When a dummy was taken.
_DUMMY_TIME = "2020-06-15T10:00:00Z"
#: Of a model, what its answers depend on. Its source is not: the same weights may lie elsewhere on another machine.
_OF_MODEL = ("name", "runner", "revision", "sha256", "files", "dtype")


@dataclass(frozen=True, slots=True)
class Context(Generic[RequestT]):
    """What `post_process` needs of the first half."""

    inputs: Inputs
    coordinates: Coordinates
    plan: Plan
    request: RequestT
    #: Names everything that the pixels depend on.
    digest: str
    #: The files of the strips that earlier attempts finished, by index.
    kept: Mapping[int, Path]
    pending: Pending = field(default_factory=deque)

    def provenance(self, fill: Fill) -> Provenance:
        """Return where the scene comes from, how it was read, and what of it may be fill."""
        inputs = self.inputs
        return Provenance(
            tuple(Source(file.reference, file.etag) for file in inputs.files),
            _used(inputs, self.coordinates),
            inputs.taken,
            tuple(notes_of_fill(fill, inputs.scene.width * inputs.scene.height, [b.name for b in inputs.needed])),
        )


def _used(inputs: Inputs, coordinates: Coordinates) -> dict[str, Any]:
    """Return what was used of the scene, and of what is known about it."""
    told = coordinates.to_json()
    return {"bands": inputs.bands_json(), "radiometry": inputs.radiometry.to_json()} | (
        {"coordinates": told} if told else {}
    )


class Writes(Protocol):
    """What finished rasters are written to."""

    def write(self, rasters: Rasters, box: Box) -> None:
        """Write a box of every raster."""
        ...


#: From float32 (channels, rows, columns) and where they are valid to the rasters of the outputs.
Encode = Callable[[npt.NDArray[np.float32], npt.NDArray[np.bool_]], Rasters]


class SceneMapper:
    """A model that maps scenes. Holds no request's state.

    `Prepared.count` and `cost` are upper bounds: tiles without any data are never sent to the engine, and finding them
    beforehand would mean reading the scene twice.
    """

    def __init__(self, model: Model, options: SceneOptions, channels: Channels) -> None:
        self._model, self._options, self._channels = model, options, channels

    def prepare(self, request: RequestT, outputs: tuple[str, ...], media: Media) -> Prepared[Context[RequestT]]:
        """Return the stream of tiles, left to right and top to bottom, panel by panel."""
        options = self._options
        inputs = read_inputs(
            request,
            media,
            options.bands,
            dates=options.dates,
            defaults=options.default_radiometry,
            limits=self._model.limits,
        )
        coordinates = find_coordinates(options.coordinates, inputs.scene, inputs.times, request.location)
        plan = self._plan(inputs)
        digest = plan.digest(self._facts(inputs, coordinates, outputs))
        saved = media.checkpoints(f"{digest}/") if plan.strip_count > 1 else {}
        context = Context(inputs, coordinates, plan, request, digest, strips.found_strips(saved, digest))
        count = plan.count(context.kept)
        cost, done = plan.cost(context.kept), plan.count() - count
        return Prepared(self._prompts(context), count, cost, context, unit="tiles", done=done)

    def finish(
        self, outputs: Iterator[Output], context: Context[Any], products: Writes, encode: Encode, sink: ArtifactSink
    ) -> Fill:
        """Write all of the scene, in the order of its strips, and save each strip but the last when it is finished.

        Return what may be fill that nobody declared.
        """
        answers = stitched(final_outputs(outputs), context.pending, context.plan, self._channels)
        with closing(_Desk(context, products, sink)) as desk:
            for answered in answers:
                desk.take(answered, encode)
            desk.write_kept()
        return desk.fill

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a scene of one tile: more of them would only make a start slower. Smaller where the limits are."""
        options, path = self._options, folder / "dummy.tif"
        side_px = min(options.tile_px, int((limits.max_pixels or _MANY_PX) ** 0.5))
        write_noise(path, options.bands, side_px, reflectance=options.plausible_mean is not None)
        scene = {"scene": "media://dummy"} | ({} if options.coordinates.time == "no" else {"datetime": _DUMMY_TIME})
        dated = {"dates": [scene] * options.dates} if options.dates > 1 else scene
        return Dummy(dated | {"radiometry": {"scale": 1}}, {"media://dummy": path})

    def _plan(self, inputs: Inputs) -> Plan:
        options = self._options
        overlap = options.least_overlap_px
        plan = make_plan(
            inputs.scene.height,
            inputs.scene.width,
            tile_px=options.tile_px,
            halo_px=options.halo_px,
            stride_px=options.stride_px,
            overlap_px=overlap,
            # Means are sums of float64, one for each channel.
            pixel_bytes=inputs.pixel_bytes + (0 if overlap is None else 8 * self._channels.count),
            column_bytes=inputs.column_bytes,
            strip_bytes=options.strip_bytes,
        )
        most, count = self._model.limits.max_tiles, plan.count()
        if most is not None and count > most:
            raise MediaTooLarge(f"The scene makes {count} tiles; this model takes at most {most}.")
        return plan

    def _facts(self, inputs: Inputs, coordinates: Coordinates, outputs: tuple[str, ...]) -> dict[str, Any]:
        """Return everything besides the plan that the pixels of a strip depend on."""
        return {
            "format": strips.FORMAT,
            "penstock": penstock.__version__,
            "model": self._model.model_dump(mode="json", include=set(_OF_MODEL)),
            "options": self._options.model_dump(mode="json"),
            "files": [file.etag or _hash(file) for file in inputs.files],
            **_used(inputs, coordinates),
            "outputs": sorted(outputs),
        }

    def _prompts(self, context: Context[Any]) -> Iterator[Prompt]:
        inputs, options = context.inputs, self._options
        norm = Normalisation(
            inputs.needed, inputs.radiometry, options.plausible_mean, reflected=options.overlap == "hann"
        )
        with open_rows(inputs) as rows:
            tell = context.coordinates.of
            yield from make_prompts(rows, context.plan, norm, context.pending, context.kept, tell=tell)


class _Desk:
    """Writes what is finished, saved strips in their place, and saves what is not yet."""

    def __init__(self, context: Context[Any], products: Writes, sink: ArtifactSink) -> None:
        self._context, self._products, self._sink = context, products, sink
        self._kept = deque(sorted(context.kept.items()))
        self._draft: strips.StripWriter | None = None
        #: Of all that was written.
        self.fill = Fill()

    def take(self, answered: Answered, encode: Encode) -> None:
        """Write what an answer made final, and save its strip if that is final now."""
        index = answered.strip.index
        for piece in answered.pieces:
            self.write_kept(index)
            rasters = encode(piece.numbers, piece.valid)
            self._products.write(rasters, piece.box)
            self.fill += piece.fill
            # A job that dies after its last strip does that one again: so none need be saved of a small scene.
            if index < self._context.plan.strip_count - 1:
                self._drafted(index).write(rasters, piece.box, piece.fill)
        if answered.last and self._draft is not None:
            self._save(self._draft)
            self._draft = None

    def write_kept(self, before: int | None = None) -> None:
        """Write the saved strips, all or those before one."""
        while self._kept and (before is None or self._kept[0][0] < before):
            for box, rasters, fill in strips.read_strip(self._kept.popleft()[1]):
                self._products.write(rasters, box)
                self.fill += fill

    def _drafted(self, index: int) -> strips.StripWriter:
        if self._draft is None:
            path = self._sink.path(f"strip-{index:05}.gz")
            self._draft = strips.StripWriter(path, self._context.digest, index)
        return self._draft

    def _save(self, draft: strips.StripWriter) -> None:
        draft.end()
        self._sink.checkpoint(strips.strip_name(self._context.digest, draft.index), draft.path)
        draft.path.unlink()

    def close(self) -> None:
        """Close the file of a strip that was not finished."""
        if self._draft is not None:
            self._draft.close()


def _hash(file: InputFile) -> str:
    """Return what stands for a file whose source gave it no etag."""
    with file.path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
