"""Many dates of one place: a run of the model on each date, and the sums over the dates.

    date 1 -> prompts ┐                 ┌-> class map 1 ┐
    date 2 -> prompts ┼-> one engine ---┼-> class map 2 ┼-> sums over the dates
    ...               ┘                 └-> ...         ┘

Each date has its own plan, nodata and checkpoints, so that its map is that of the date alone. Headers of all dates are
read first; pixels are read, mapped, written and summed up one date after the other. A date that cannot be used is
named, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from penstock.errors import InputError, InvalidInput, Issue
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, Prepared, Prompt, Result
from penstock.processors.geo.mapping import MappingContext, SceneMapper
from penstock.processors.geo.read.grids import is_shifted, nesting
from penstock.processors.geo.read.inputs import Inputs
from penstock.processors.geo.read.provenance import Provenance
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.read.zones import check_rows, read_zones
from penstock.processors.geo.request import OutputName, SegmentationRequest
from penstock.processors.geo.runs import PrefixedSink, SplitOutputs, in_one_job, of_one_scene, one_division, part_of_run
from penstock.processors.geo.wanted_classes import WantedClasses
from penstock.processors.geo.write.artifacts import SceneArtifact
from penstock.processors.geo.write.class_outputs import ClassOutputs
from penstock.processors.geo.write.quicklook import Quicklook
from penstock.processors.geo.write.raster_set import RasterSet
from penstock.processors.geo.write.series_outputs import CSV_TYPE, SumsFile, add_series, series_csv
from penstock.processors.geo.write.zone_outputs import add_zones_csv

#: Outputs that are made for the whole series; all others are made for each date.
_OF_THE_WHOLE: frozenset[OutputName] = frozenset({"stats", "item"})
#: Dates that cannot be used and that an error names, at most.
_MOST_NAMED = 5
#: Columns of zones.csv before those of the zone.
_WHEN = ("date", "time")


@dataclass(frozen=True, slots=True)
class FailedDate:
    """A date that cannot be used."""

    #: Place in the request's `dates`, from 1.
    listed: int
    time: str | None
    reason: str
    #: Number of a date that failed when its pixels were read.
    date: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the statistics."""
        return {"listed": self.listed, "date": self.date, "time": self.time, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class DateRun:
    """The run of one date."""

    #: Number of the date in the series, from 1.
    number: int
    listed: int
    #: Digits of the largest number of the series.
    digits: int
    context: MappingContext[SegmentationRequest]
    #: The error that ended the run's prompts; empty without one.
    failure: list[InputError] = field(default_factory=list)

    @property
    def span(self) -> tuple[datetime, ...]:
        """Time of the date, or both ends of its interval; empty if neither is known."""
        return self.context.inputs.times[-1].span

    @property
    def name(self) -> str:
        """The day of the date (UTC), or its number."""
        return self.span[0].astimezone(UTC).date().isoformat() if self.span else f"date {self.number}"

    @property
    def prefix(self) -> str:
        """Prefix of the date's artifacts, which sorts as the dates do."""
        number = f"{self.number:0{max(2, self.digits)}}"
        return f"{number}-{self.name}-" if self.span else f"{number}-"

    def failed(self, error: InputError) -> FailedDate:
        """Return the date as one that failed when its pixels were read."""
        return FailedDate(self.listed, _text(self.span), error.detail, self.number)


@dataclass(frozen=True, slots=True)
class SeriesContext:
    """Data that `pre_process` of a series passes to `post_process`."""

    request: SegmentationRequest
    wanted: WantedClasses
    #: The usable dates, in order. At least one.
    runs: tuple[DateRun, ...]
    failed: tuple[FailedDate, ...]
    #: True if the dates are in the order of time; False if they are as listed, because some time is unknown.
    in_time: bool
    #: Numbers of the strips of all dates that a part of the job computes; None for the whole job.
    part: range | None


@dataclass(frozen=True, slots=True)
class _Opened:
    listed: int
    request: SegmentationRequest
    inputs: Inputs

    @property
    def span(self) -> tuple[datetime, ...]:
        return self.inputs.times[-1].span

    def failed(self, reason: str) -> FailedDate:
        return FailedDate(self.listed, _text(self.span), reason)


#: Function that writes the rasters of one date: its outputs, context and sink, and the stack that closes the rasters.
WriteDate = Callable[
    [Iterator[Output], MappingContext[SegmentationRequest], ArtifactSink, ExitStack], tuple[ClassOutputs, Provenance]
]


def prepare_series(
    runner: SceneMapper,
    request: SegmentationRequest,
    media: Media,
    wanted: WantedClasses,
    part: range | None,
    classes: int,
) -> Prepared[SeriesContext]:
    """Return the prompts of all dates, one date after the other; with `part`, only those of these strips.

    Strips are numbered one date after the other. The model has so many `classes`.
    Raises `InvalidInput` that names the reasons if no date can be used.
    """
    opened, failed = _open(runner, request, media)
    usable, others = _of_one_grid(opened)
    failed += others
    if in_time := all(date.span for date in usable):
        usable.sort(key=lambda date: date.span[0])
    zones = read_zones(request, media, usable[0].inputs.grid) if usable and part is None else ()
    check_rows(zones, len(usable) * classes)
    runs, prepared, strips = list[DateRun](), list[Prepared[MappingContext[SegmentationRequest]]](), 0
    for date in usable:
        own, alone = part_of_run(part, strips), date.request
        try:
            inputs = replace(date.inputs, zones=zones)
            each = runner.prepare(alone, alone.outputs, media, own, inputs=inputs, followed=True)
        except InputError as error:
            failed.append(date.failed(error.detail))
        else:
            prepared.append(each)
            strips += each.context.plan.strip_count
            runs.append(DateRun(len(runs) + 1, date.listed, len(str(len(usable))), each.context))
    if not runs:
        raise _none_left(failed)
    context = SeriesContext(request, wanted, tuple(runs), tuple(failed), in_time, part)
    division = one_division([(each.division, each.context.plan.strip_count) for each in prepared])
    return in_one_job(prepared, _prompts(runs, [each.prompts for each in prepared]), context, division)


def _open(runner: SceneMapper, request: SegmentationRequest, media: Media) -> tuple[list[_Opened], list[FailedDate]]:
    """Return the dates whose headers can be read, and those whose headers cannot."""
    opened, failed = list[_Opened](), list[FailedDate]()
    outputs = tuple(name for name in request.outputs if name not in _OF_THE_WHOLE)
    for listed, date in enumerate(request.dates or (), 1):
        alone = of_one_scene(request, date, dates=None, zones=None, outputs=outputs)
        try:
            opened.append(_Opened(listed, alone, runner.read(alone, media)))
        except InputError as error:
            known = () if date.datetime is None else (date.datetime,)
            failed.append(FailedDate(listed, _text(known), error.detail))
    return opened, failed


def _of_one_grid(opened: Sequence[_Opened]) -> tuple[list[_Opened], list[FailedDate]]:
    """Return the dates on the grid that most have, of equally many the one listed first, and the other dates."""
    groups = list[list[_Opened]]()
    for date in opened:
        fitting = (group for group in groups if _why_another_grid(group[0].inputs, date.inputs) is None)
        group = next(fitting, None)
        if group is None:
            groups.append([date])
        else:
            group.append(date)
    if not groups:
        return [], []
    usual = max(groups, key=len)
    rest = [date for group in groups if group is not usual for date in group]
    reasons = (_why_another_grid(usual[0].inputs, date.inputs) or "" for date in rest)
    return usual, [date.failed(reason) for date, reason in zip(rest, reasons, strict=True)]


def _why_another_grid(usual: Inputs, inputs: Inputs) -> str | None:
    """Return why the results of a date have another grid than those of another; None if both have one grid."""
    ours, theirs = usual.grid, inputs.grid
    try:
        factor = nesting(ours, theirs, label="The scene", target_label="the other dates")
    except InvalidInput as error:
        shared = usual.area is None and is_shifted(ours, theirs)
        return f"{error.detail} Or give an `area` that all dates have." if shared else error.detail
    return None if factor.same else "The scene has another resolution than the other dates."


def _none_left(failed: Sequence[FailedDate]) -> InvalidInput:
    """Return the error for a series without a usable date."""
    named = " ".join(f"Date {date.listed}: {date.reason}" for date in failed[:_MOST_NAMED])
    more = f" And {len(failed) - _MOST_NAMED} more." if len(failed) > _MOST_NAMED else ""
    issues = [Issue(f"/input/dates/{date.listed - 1}", date.reason) for date in failed]
    return InvalidInput(f"No date of the series can be used. {named}{more}", errors=issues)


def _prompts(runs: Sequence[DateRun], prompts: Sequence[Iterator[Prompt]]) -> Iterator[Prompt]:
    """Yield the prompts of all dates; those of a date end where its pixels cannot be read."""
    for run, own in zip(runs, prompts, strict=True):
        try:
            yield from own
        except InputError as error:
            run.failure.append(error)


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A date whose map is written."""

    name: str
    entry: dict[str, Any]
    notes: tuple[str, ...]
    provenance: Provenance
    artifacts: tuple[SceneArtifact, ...]


def save_part(
    outputs: Iterator[Output],
    context: SeriesContext,
    save: Callable[[Iterator[Output], MappingContext[SegmentationRequest]], Result],
) -> Result:
    """Save the strips of a part, date by date; those of a date that fails are left to the attempt that joins."""
    for run, own in _outputs_by_date(outputs, context.runs):
        with suppress(InputError):
            save(own, run.context)
    return Result()


class SeriesWriter:
    """Writer of the artifacts of a series: those of each date, then those of the whole."""

    def __init__(self, model: Model, context: SeriesContext, sink: ArtifactSink) -> None:
        self._model, self._context, self._sink = model, context, sink
        self._grid: Scene = context.runs[0].context.inputs.grid
        self._described = "item" in context.request.outputs

    def write(self, outputs: Iterator[Output], write: WriteDate) -> Result:
        """Write everything from the outputs of all dates, and return the statistics."""
        mapped, failed = list[_Mapped](), [*self._context.failed]
        with SumsFile(self._sink.path("sums.scratch"), self._grid.height, self._grid.width) as sums:
            for run, own in _outputs_by_date(outputs, self._context.runs):
                try:
                    mapped.append(self._date(run, own, write, sums))
                except InputError as error:
                    failed.append(run.failed(error))
            if not mapped:
                raise _none_left(failed)
            return Result(data=self._whole(mapped, sorted(failed, key=lambda date: date.listed), sums))

    def _date(self, run: DateRun, outputs: Iterator[Output], write: WriteDate, sums: SumsFile) -> _Mapped:
        """Write the artifacts of a date, and add its map to the sums."""
        with ExitStack() as stack:
            results, provenance = write(outputs, run.context, PrefixedSink(self._sink, run.prefix), stack)
            stats = results.finish(provenance, quicklook=Quicklook(run.context.inputs))
            sums.add(run.number, results.close(), self._context.wanted)
        own = {name: value for name, value in stats.items() if name not in ("model", "scene", "notes")}
        entry = {"date": run.number, "listed": run.listed, "time": _text(run.span), "prefix": run.prefix, **own}
        named = tuple(replace(each, title=f"{run.name}: {each.title}") for each in results.artifacts)
        return _Mapped(run.name, entry, tuple(stats["notes"]), provenance, named)

    def _whole(self, mapped: Sequence[_Mapped], failed: Sequence[FailedDate], sums: SumsFile) -> dict[str, Any]:
        """Write the artifacts of the whole series, and return the statistics."""
        context, wanted = self._context, self._context.wanted
        request, dates = context.request, [date.entry for date in mapped]
        provenance = _of_all([date.provenance for date in mapped], dates)
        with RasterSet(self._model, self._grid, None, self._sink, described=self._described) as rasters:
            rasters.artifacts.done += [artifact for date in mapped for artifact in date.artifacts]
            found = add_series(
                rasters, sums, wanted, [run.name for run in context.runs], frozenset(request.outputs), request.polygons
            )
            stats = rasters.stats(provenance, {})
            stats["series"] = {
                **wanted.to_json(),
                "order": "time" if context.in_time else "listed",
                "failed": [date.to_json() for date in failed],
                **found,
            }
            stats["notes"] += [
                *_notes(mapped),
                *(
                    []
                    if context.in_time
                    else ["The dates are in the order of the request, because the time of some is unknown."]
                ),
                *([_left_out(len(failed), len(request.dates or ()))] if failed else []),
                *_undecided(wanted, dates),
                *found.get("polygons", {}).get("notes", ()),
            ]
            if "stats" in request.outputs:
                (path := self._sink.path("series.csv")).write_text(series_csv(dates), encoding="utf-8")
                rasters.artifacts.add(path.name, path, CSV_TYPE, title="areas by date", roles=("metadata",))
                rows = [
                    ({name: date[name] for name in _WHEN}, zone) for date in dates for zone in date.get("zones", ())
                ]
                add_zones_csv(rasters.artifacts, rows)
                rasters.artifacts.add_json("stats.json", stats, title="statistics", roles=("metadata",))
            if "item" in request.outputs:
                rasters.add_item(provenance)
        return stats


def _outputs_by_date(outputs: Iterator[Output], runs: Sequence[DateRun]) -> Iterator[tuple[DateRun, Iterator[Output]]]:
    """Yield each date with its outputs, which raise the error that ended its prompts; read them before the next."""
    split = SplitOutputs(outputs)
    for run in runs:
        yield run, _checked(run, split.rest() if run is runs[-1] else split.of(run.context.pending))


def _checked(run: DateRun, outputs: Iterator[Output]) -> Iterator[Output]:
    yield from outputs
    if run.failure:
        raise run.failure[0]


def _notes(dates: Sequence[_Mapped]) -> Iterator[str]:
    """Yield the notes on dates, each once; a note that is not of all dates names its dates."""
    for note in dict.fromkeys(note for date in dates for note in date.notes):
        names = [date.name for date in dates if note in date.notes]
        yield note if len(names) == len(dates) else f"{', '.join(names)}: {note}"


def _left_out(failed: int, count: int) -> str:
    return f"{failed} of {count} dates could not be used: see `series.failed`."


def _undecided(wanted: WantedClasses, dates: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a note on classes of which the request does not say if they hide the ground."""
    if others := wanted.undecided({row["name"] for date in dates for row in date["classes"] if row["pixels"]}):
        yield (
            f"These classes count as clear ground without {wanted.name}: {others}. If some of them hide the ground, as "
            "clouds do, name them in `series.ignore`; if none does, give []."
        )


def _of_all(dates: Sequence[Provenance], entries: Sequence[dict[str, Any]]) -> Provenance:
    """Return the provenance of all dates, without notes."""
    known = all(date.acquired for date in dates)
    return Provenance(
        tuple(source for date in dates for source in date.sources),
        {"dates": entries},
        tuple(time for date in dates for time in date.acquired) if known else (),
        (),
        tuple(item for date in dates for item in date.items),
    )


def _text(span: Sequence[datetime]) -> str | None:
    """Return a time in UTC, or an interval with a slash; None if neither is known."""
    return "/".join(time.astimezone(UTC).isoformat() for time in span) or None
