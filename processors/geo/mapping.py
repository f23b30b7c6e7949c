"""Common part of all processors that map a scene: from the scene to prompts, from outputs to finished rasters.

    scene -> plan -> prompts -> engine -> stitched pixels -> encoded rasters -> written, and saved strip by strip

A strip that an earlier attempt saved is neither read nor inferred again. Its rasters are written from the checkpoint in
the same order, so that the result has the same bytes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import penstock
from penstock.cores import cores
from penstock.errors import MediaTooLarge
from penstock.models import Limits, Model
from penstock.processors.base import (
    ArtifactSink,
    Dummy,
    Media,
    Output,
    Prepared,
    Prompt,
    Result,
    final_outputs,
    finding_name,
)
from penstock.processors.geo.options import CoordinateOptions, MapOptions, SceneOptions
from penstock.processors.geo.read.coordinates import LOCATION_NAME, TIME_NAME, Coordinates, find_coordinates
from penstock.processors.geo.read.finding import findings_of, read_finding
from penstock.processors.geo.read.inputs import Inputs, with_zones
from penstock.processors.geo.read.modalities import read_sensors
from penstock.processors.geo.read.provenance import Provenance, SourceFile
from penstock.processors.geo.read.radiometry_check import check_radiometry
from penstock.processors.geo.read.row_stream import read_ahead
from penstock.processors.geo.read.scene_rows import NOWHERE, count_masked, fill_files, open_rows, open_wanted
from penstock.processors.geo.read.suspected_nodata import SceneBands
from penstock.processors.geo.request import SceneRequest
from penstock.processors.geo.sample import write_noise
from penstock.processors.geo.scene_writer import (
    NOTHING,
    NoRasters,
    Piece,
    RasterWriter,
    SceneWriter,
    Tally,
    TilePieces,
    Written,
)
from penstock.processors.geo.tiling import strips
from penstock.processors.geo.tiling.plan import Box, Plan, make_plan
from penstock.processors.geo.tiling.stitch import Channels, FinalPixels, stitch_tiles
from penstock.processors.geo.tiling.tiles import INPUT_NAME, Normalisation, PendingTiles, make_prompts
from penstock.processors.geo.tiling.work import Work
from penstock.processors.geo.write.raster_set import RasterArrays
from penstock.processors.io_signature import IOSignature
from penstock.processors.prompt_names import REDUCE
from penstock.processors.reductions import Reduction, reduction_for

RequestT = TypeVar("RequestT", bound=SceneRequest)

#: Note on a result without pixels.
_NO_DATA = "No pixel of the {} has data, so the result is empty."
#: True where a scene's next tile is cut while the one before is sent, and written while the next output is read. On
#: fewer cores these threads would only take turns with the others.
SIDE_BY_SIDE = cores() >= 4
#: Bytes of the largest tile that is cut ahead.
_AHEAD_BYTES = 32 * 2**20
#: Stands for no limit on pixels.
_MANY_PX = 2**40
#: Acquisition time of a dummy scene.
_DUMMY_TIME = "2020-06-15T10:00:00Z"
#: Model fields that determine its outputs. `source` is not one: the weights may have another path elsewhere.
_MODEL_FIELDS = ("name", "runner", "revision", "sha256", "files", "dtype")
#: Options of a function that a record names: its file's digest, and the arguments of its class.
_OF_CODE = ("code_sha256", "arguments")


@dataclass(frozen=True, slots=True)
class MappingContext(Generic[RequestT]):
    """Data that `pre_process` passes to `post_process`."""

    inputs: Inputs
    coordinates: Coordinates
    plan: Plan
    request: RequestT
    #: Digest of everything that the pixels depend on.
    digest: str
    #: Checkpoint files of strips that earlier attempts finished, by index.
    restored: Mapping[int, Path]
    #: Notes on doubtful radiometry.
    doubts: tuple[str, ...] = ()
    pending: PendingTiles = field(default_factory=deque)
    #: The run of the same model on an earlier scene, if the change is wanted.
    before: MappingContext[RequestT] | None = None
    #: Indexes of the strips that a part of the job computes; None for the whole job.
    part: range | None = None
    #: Part of the scene whose pixels are read: partial files hold no others.
    window: Box = NOWHERE
    #: True if other work of the job follows this run, so that its last strip is saved, too.
    followed: bool = False

    @property
    def skipped(self) -> Collection[int]:
        """The strips that this attempt does not compute: strips of earlier attempts, and of other parts."""
        if self.part is None:
            return self.restored
        return {index for index in self.plan.wanted_strips if index not in self.part or index in self.restored}

    def provenance(self, written: Written) -> Provenance:
        """Return source files, radiometry and suspected nodata of the scene."""
        inputs = self.inputs
        masked, hidden = count_masked(inputs) if inputs.masked else ([], ())
        return Provenance(
            tuple(SourceFile(file.reference, file.etag) for file in inputs.sources),
            _used_data(inputs, self.coordinates) | ({"masked": masked} if inputs.masked else {}),
            inputs.acquired,
            (
                *inputs.notes,
                *self.doubts,
                *hidden,
                *_scene_bands(inputs).notes(written.suspects, inputs.grid.width * inputs.grid.height),
                *(() if written.any_data else (_NO_DATA.format("scene" if inputs.area is None else "area"),)),
            ),
            inputs.items,
        )


def _scene_bands(inputs: Inputs) -> SceneBands:
    names, dates = zip(*((band.need.name, band.date) for band in inputs.bands), strict=True)
    return SceneBands(names, dates, inputs.radiometry, tuple(sensor.name for sensor in inputs.sensors))


def _used_data(inputs: Inputs, coordinates: Coordinates) -> dict[str, Any]:
    """Return the bands, radiometry, coordinates, mosaics, masks and area that were used, as JSON values."""
    found, mosaics, masks = coordinates.to_json(), inputs.mosaics_json(), inputs.masks_json()
    return (
        {"bands": inputs.bands_json(), "radiometry": inputs.radiometry.to_json()}
        | ({"coordinates": found} if found else {})
        | ({"mosaics": mosaics} if mosaics else {})
        | ({"masks": masks} if masks else {})
        | ({"modalities": [sensor.to_json() for sensor in inputs.sensors]} if inputs.sensors else {})
        | ({} if inputs.area is None else {"area": inputs.area.to_json()})
    )


def scene_signature(output: str, used: CoordinateOptions | None = None) -> IOSignature:
    """Return the values of tiles and of the network's output: float32 (channels, H, W) under this name.

    A network must take the coordinates that a model's options use.
    """
    coordinates = {
        TIME_NAME: ("float32 (dates, 2)", used is not None and used.time != "no"),
        LOCATION_NAME: ("float32 (2)", used is not None and used.location != "no"),
    }
    return IOSignature(
        prompt={
            INPUT_NAME: "float32 (bands, H, W)",
            **{name: kind for name, (kind, needed) in coordinates.items() if needed},
        },
        optional={name: kind for name, (kind, needed) in coordinates.items() if not needed},
        output={output: "array (channels, H, W)"},
    )


#: Function from final pixels to the rasters of the outputs, in memory of their own.
Encode = Callable[[FinalPixels], RasterArrays]


class SceneRunner:
    """Tiles of scenes for one model, from their prompts to saved results, without request state.

    `Prepared.count` and `cost` are upper bounds: tiles without data are never sent to the engine, and counting them in
    advance would require reading the scene twice.
    """

    #: True if sent tiles keep the validity of their pixels for `post_process`.
    keeps_valid = False

    def __init__(self, model: Model, options: SceneOptions, *, sum_bytes: int = 0) -> None:
        """Run scenes through a model; results that are summed up over tiles take `sum_bytes` per pixel."""
        self._model, self._options, self._sum_bytes = model, options, sum_bytes

    def read(self, request: SceneRequest, media: Media) -> Inputs:
        """Return the opened files of a scene, and of its further sensors; see `read_sensors`."""
        return read_sensors(request, media, self._options, self._model.limits)

    def prepare(
        self,
        request: RequestT,
        outputs: tuple[str, ...],
        media: Media,
        part: range | None = None,
        *,
        inputs: Inputs | None = None,
        facts: Mapping[str, Any] = MappingProxyType({}),
        followed: bool = False,
    ) -> Prepared[MappingContext[RequestT]]:
        """Plan a scene and return its prompts: tiles from left to right and top to bottom, panel by panel.

        With `part`, only the prompts of these strips. `inputs` are the opened files, if they are open already. `facts`
        are further JSON values that saved results depend on. With `followed`, the last strip is saved, too.
        """
        options, inputs = self._options, inputs or self.read(request, media)
        inputs = with_zones(inputs, request, media) if part is None else inputs
        coordinates = find_coordinates(options.coordinates, inputs.scene, inputs.times, request.location)
        plan = self._plan(inputs, request.passes)
        if part is not None:
            part = range(part.start, min(part.stop, plan.strip_count))  # a part of two scenes has strips of the other
        digest = plan.digest({**self._facts(inputs, coordinates, outputs, request.passes), **facts})
        shared = followed or len(plan.wanted_strips) > 1
        saved = strips.saved_files(media, digest, part) if shared else {}
        restored = strips.found_strips(saved, digest, part)
        context = MappingContext(inputs, coordinates, plan, request, digest, restored, part=part, followed=followed)
        # The first attempt of a shared job has checked the radiometry; of several runs, not all may have passed.
        finding = saved if part is None else media.checkpoints(finding_name(digest)) if followed else None
        known = () if finding is None else read_finding(finding, digest)
        read = self._read(context)
        window = read if known is None or "quicklook" in outputs else _left(context).clipped(read) or NOWHERE
        # With the radiometry known, the first pixels that are read are those of the first prompt.
        in_steps = known is not None and (part is not None or "quicklook" not in outputs)
        masks = read if part is None else None
        inputs = replace(inputs, notes=(*inputs.notes, *inputs.edge_notes(read)))
        inputs = fill_files(inputs, window, masks, later=part is None and shared, in_steps=in_steps)
        doubts = check_radiometry(inputs, options) if known is None else known
        context = replace(context, inputs=inputs, doubts=doubts, window=window)
        work = Work(plan, inputs.area, request.passes)
        (count, cost), whole = work.left(context.skipped), work.of_part(part)
        return Prepared(
            self._prompts(context), count, cost, context, unit="tiles", done=max(0, whole - count),
            division=work.division(digest, restored, findings_of(digest, doubts)) if shared else None,
        )  # fmt: skip

    def write(
        self,
        results: Iterator[TilePieces],
        context: MappingContext[Any],
        writer: RasterWriter,
        sink: ArtifactSink,
        tally: Tally = NOTHING,
        *,
        lasting: bool = False,
    ) -> Written:
        """Write the whole scene strip by strip, and save each finished strip except the last as a checkpoint.

        `lasting` is True for pieces whose arrays stay valid after the next tile output. Return facts about the written
        pixels.
        """
        behind = lasting and SIDE_BY_SIDE and context.plan.count(context.skipped) > 1
        scene = SceneWriter(
            context.plan, context.digest, context.restored, context.part, writer, sink, tally, behind=behind,
            followed=context.followed,
        )  # fmt: skip
        with closing(scene):
            for result in results:
                scene.add(result)
            scene.end()
        return scene.written

    def write_part(
        self,
        results: Iterator[TilePieces],
        context: MappingContext[Any],
        sink: ArtifactSink,
        tally: Tally = NOTHING,
        *,
        lasting: bool = False,
    ) -> Result:
        """Save every strip of a part as a checkpoint, also those without data; write nothing else. See `write`."""
        self.write(results, context, NoRasters(), sink, tally, lasting=lasting)
        return Result()

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a scene of one tile, or smaller if the model's limits require it; more would slow down the start."""
        options, used = self._options, {"radiometry": {"scale": 1, "trust": True}}
        side_px = min(options.tile_px, int((limits.max_pixels or _MANY_PX) ** 0.5))
        files = {f"media://dummy{at or ''}": folder / f"dummy{at or ''}.tif" for at in range(len(options.sensors))}
        for sensor, path in zip(options.sensors, files.values(), strict=True):
            positive = sensor.reflectance is not None or options.plausible_mean is not None
            write_noise(path, sensor.bands, side_px, reflectance=positive)
        first, *others = files
        scene = {"scene": first} | ({} if options.coordinates.time == "no" else {"datetime": _DUMMY_TIME})
        named = zip(options.modalities, others, strict=True)
        more = [{"name": sensor.name, "scene": reference, **used} for sensor, reference in named]
        dated = {"dates": [scene] * options.dates} if options.dates > 1 else scene
        return Dummy(dated | used | ({"modalities": more} if more else {}), files)

    def _plan(self, inputs: Inputs, passes: int) -> Plan:
        options = self._options
        # Sums of several passes get as much memory again: narrower panels would compute more tiles twice.
        strip_bytes = options.strip_bytes * (2 if passes > 1 and self._sum_bytes else 1)
        plan = make_plan(
            inputs.scene.height,
            inputs.scene.width,
            **asdict(options.tiling),
            pixel_bytes=inputs.pixel_bytes + self._sum_bytes * passes,
            column_bytes=inputs.column_bytes,
            strip_bytes=strip_bytes,
            area=None if inputs.area is None else inputs.area.box,
        )
        most = self._model.limits.max_tiles
        if most is not None and (count := Work(plan, inputs.area, passes).left()[0]) > most:
            what, mirrored = "scene" if inputs.area is None else "area", " with mirrored ones" if passes > 1 else ""
            raise MediaTooLarge(f"The {what} has {count} tiles{mirrored}; this model accepts at most {most}.")
        return plan

    def _read(self, context: MappingContext[Any]) -> Box:
        """Return the part of the scene that is read: whole tiles, or an area with the pixels that the network sees."""
        area, reach_px, tiles = context.inputs.area, self._options.reach_px, context.plan.window
        if area is None or reach_px is None:
            return tiles
        return area.box.grown(reach_px, self._options.stride_px).clipped(tiles) or tiles

    def _facts(self, inputs: Inputs, coordinates: Coordinates, outputs: tuple[str, ...], passes: int) -> dict[str, Any]:
        """Return everything, apart from the plan, that the pixels of a strip depend on."""
        return {
            "format": strips.FORMAT,
            "penstock": penstock.__version__,
            "model": self._model.model_dump(mode="json", include=set(_MODEL_FIELDS)),
            **{name: self._model.options[name] for name in _OF_CODE if name in self._model.options},
            "options": self._options.model_dump(mode="json"),
            "files": [digest for file in inputs.sources for digest in file.digests()],
            "shape": None if inputs.area is None else inputs.area.facts(),
            **({"places": places} if (places := inputs.places) else {}),
            **_used_data(inputs, coordinates),
            "outputs": sorted(outputs),
            **({"passes": passes} if passes > 1 else {}),
        }

    def _reduction(self, context: MappingContext[Any]) -> Reduction | None:  # noqa: ARG002  (for classes)
        """Return the reduction of tiles that is enough for the outputs; None where whole outputs are needed."""
        return None

    def _prompts(self, context: MappingContext[Any]) -> Iterator[Prompt]:
        inputs, options, reduction = context.inputs, self._options, self._reduction(context)
        asked = {} if reduction is None else {REDUCE: str(reduction)}
        trusted = any(band.trusted for band in inputs.radiometry.bands)
        most = math.inf if trusted and options.plausible_mean is not None else options.plausible_mean
        norm = Normalisation(inputs.needed, inputs.radiometry, most, reflected=options.reflects)
        with open_rows(inputs, bottom=context.window.bottom) as rows, open_wanted(inputs) as wanted:
            prompts = make_prompts(
                rows,
                context.plan,
                norm,
                context.pending,
                context.skipped,
                tile_inputs=lambda window: {**context.coordinates.of(window), **asked},
                find_suspects=_scene_bands(inputs).find_suspects,
                area=wanted,
                keeps_valid=self.keeps_valid,
                needed=self._read(context),
                passes=context.request.passes,
            )
            yield from read_ahead(prompts, depth=1) if self._cuts_ahead(context) else prompts

    def _cuts_ahead(self, context: MappingContext[Any]) -> bool:
        """Return True if a thread of its own cuts the tiles: several, and none of them large."""
        plan = context.plan  # all windows of a plan have one size
        small = 4 * len(context.inputs.needed) * plan.cost() <= _AHEAD_BYTES * plan.count()
        return SIDE_BY_SIDE and small and plan.count(context.skipped) > 1


class SceneMapper(SceneRunner):
    """Mapper of scenes for one model that answers each pixel."""

    def __init__(self, model: Model, options: MapOptions, channels: Channels, *, reduces: bool = False) -> None:
        """Map scenes to these channels; `reduces` is True for scores of classes, which the device may reduce."""
        # Means need one float64 sum per channel and pixel.
        super().__init__(model, options, sum_bytes=0 if options.least_overlap_px is None else 8 * channels.count)
        self._channels, self._reduces = channels, reduces

    def finish(
        self,
        outputs: Iterator[Output],
        context: MappingContext[Any],
        writer: RasterWriter,
        encode: Encode,
        sink: ArtifactSink,
        tally: Tally = NOTHING,
    ) -> Written:
        """Stitch the outputs and write the scene; see `write`."""
        return self.write(self._stitched(outputs, context, encode), context, writer, sink, tally, lasting=True)

    def finish_part(
        self,
        outputs: Iterator[Output],
        context: MappingContext[Any],
        encode: Encode,
        sink: ArtifactSink,
        tally: Tally = NOTHING,
    ) -> Result:
        """Stitch the outputs and save the strips of a part; see `write_part`."""
        return self.write_part(self._stitched(outputs, context, encode), context, sink, tally, lasting=True)

    def _stitched(
        self, outputs: Iterator[Output], context: MappingContext[Any], encode: Encode
    ) -> Iterator[TilePieces]:
        passes = context.request.passes
        channels = replace(self._channels, reduction=self._reduction(context), passes=passes)
        for result in stitch_tiles(final_outputs(outputs), context.pending, context.plan, channels):
            pieces = (
                Piece(piece.box.within(context.inputs.box), encode(piece), piece.suspects) for piece in result.pieces
            )
            yield TilePieces(result.strip, result.last, pieces)

    def _reduction(self, context: MappingContext[Any]) -> Reduction | None:
        """Return the reduction that is enough; None where scores are averaged, compared or wanted."""
        if not self._reduces or context.plan.averaged or context.request.passes > 1:
            return None
        return reduction_for(context.request.outputs, self._channels.count)


def _left(context: MappingContext[Any]) -> Box:
    """Return the part of the scene that the unfinished strips need; `NOWHERE` if all strips are finished."""
    return context.plan.window_of(context.skipped) if context.plan.count(context.skipped) else NOWHERE
