"""Several runs of one model in one job: the scenes of a change, or the dates of a series.

    run 1 -> prompts ┐                 ┌-> outputs of run 1
    run 2 -> prompts ┼-> one engine ---┼-> outputs of run 2
    ...              ┘                 └-> ...

Each run has its own plan, nodata and checkpoints. They come one after the other: one scene is open at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock.processors.base import ArtifactSink, Divisible, Output, Prepared, Prompt, final_outputs
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.scene_request import Acquisition
from penstock.processors.geo.tiling.tiles import PendingTiles

ContextT = TypeVar("ContextT")


def of_one_scene(request: SegmentationRequest, scene: Acquisition, **changes: Any) -> SegmentationRequest:
    """Return the request of one scene alone, with the area, bands and radiometry of the whole request."""
    own = {name: getattr(scene, name) for name in Acquisition.model_fields}
    own["radiometry"] = scene.radiometry or request.radiometry
    return request.model_copy(update={**own, **changes})


def in_one_job(
    runs: Sequence[Prepared[Any]], prompts: Iterator[Prompt], context: ContextT, division: Divisible | None
) -> Prepared[ContextT]:
    """Return several runs as the work of one job, whose prompts come in the order of the runs."""
    return Prepared(
        prompts,
        sum(run.count or 0 for run in runs),
        sum(run.cost for run in runs),
        context,
        unit=runs[0].unit,
        done=sum(run.done for run in runs),
        division=division,
    )


def part_of_run(part: range | None, strips: int) -> range | None:
    """Return the strips of a run in a part of all runs, after so many strips of the runs before it; None for all."""
    return None if part is None else range(max(0, part.start - strips), max(0, part.stop - strips))


def one_division(runs: Sequence[tuple[Divisible | None, int]]) -> Divisible | None:
    """Return the units of all runs, numbered one run after the other; None unless each run has units.

    `runs` has the units of each run and the number of its strips. The digest is of all plans: workers share a job only
    if they would compute the same strips of all runs.
    """
    divisions = [division for division, _ in runs if division is not None]
    if len(divisions) < len(runs):
        return None
    units, findings, first = [], dict[str, str](), 0
    for division, (_, strips) in zip(divisions, runs, strict=True):
        units += [(first + number, prompts, left) for number, prompts, left in division.units]
        findings |= division.findings
        first += strips
    digests = " ".join(division.digest for division in divisions)
    return Divisible(hashlib.sha256(digests.encode()).hexdigest()[:32], tuple(units), findings)


class SplitOutputs:
    """The outputs of several runs in one stream, one run after the other.

    An output belongs to a run while that run waits for one: a tile is pending from before its prompt is sent.
    """

    def __init__(self, outputs: Iterator[Output]) -> None:
        self._outputs = final_outputs(outputs)
        self._held: Output | None = None

    def of(self, pending: PendingTiles) -> Iterator[Output]:
        """Yield the outputs of the next run, whose tiles are pending; call this after the run before has ended."""
        for output in self.rest():
            if not pending:
                self._held = output
                return
            yield output

    def rest(self) -> Iterator[Output]:
        """Yield all further outputs: those of the last run."""
        return iter(self._next, None)

    def _next(self) -> Output | None:
        held, self._held = self._held, None
        return held or next(self._outputs, None)


class PrefixedSink:
    """A sink whose files have a prefix, for a further set of artifacts."""

    def __init__(self, sink: ArtifactSink, prefix: str) -> None:
        self._sink, self._prefix = sink, prefix

    def path(self, name: str) -> Path:
        """Return the path of a file, with the prefix."""
        return self._sink.path(self._prefix + name)

    def add(self, name: str, path: Path, *, media_type: str) -> None:
        """Add a file under the name of its path, which has the prefix."""
        self._sink.add(name if name.startswith(self._prefix) else self._prefix + name, path, media_type=media_type)

    def say(self, text: str) -> None:
        """Stream text."""
        self._sink.say(text)

    def show(self, name: str, picture: bytes, *, media_type: str) -> None:
        """Show a preview."""
        self._sink.show(self._prefix + name, picture, media_type=media_type)

    def checkpoint(self, name: str, path: Path) -> None:
        """Save a checkpoint, whose name needs no prefix."""
        self._sink.checkpoint(name, path)
