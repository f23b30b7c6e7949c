"""Writing of a scene's results in scene order: new pieces, and restored strips between them; new strips are saved."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from penstock.processors.base import ArtifactSink
from penstock.processors.geo.read.row_stream import read_ahead
from penstock.processors.geo.read.suspected_nodata import SuspectCounts, add_suspects
from penstock.processors.geo.tiling import strips
from penstock.processors.geo.tiling.plan import Box, Plan, Strip
from penstock.processors.geo.write.raster_set import RasterArrays
from penstock.processors.geo.write.stats import Counts

#: Pieces of a restored strip that are decompressed while the one before is written.
_AHEAD = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Final results of a part of a scene, and the suspected nodata in it.

    The box is of the results: pixels of a map, cells of a coarser grid, or rows and columns of a table.
    """

    box: Box
    rasters: RasterArrays
    suspects: SuspectCounts


@dataclass(frozen=True, slots=True)
class TilePieces:
    """Final results after one tile output."""

    strip: Strip
    #: True if the whole strip is final now.
    last: bool
    #: Pieces, left to right. The arrays are valid until the next tile output; longer if they are written behind.
    pieces: Iterator[Piece]


@dataclass(frozen=True, slots=True)
class Written:
    """Facts about the written pixels of a scene."""

    #: Suspected nodata in all of them.
    suspects: SuspectCounts
    #: True if there was one with data.
    any_data: bool


class RasterWriter(Protocol):
    """Destination of finished rasters."""

    def write(self, rasters: RasterArrays, box: Box) -> None:
        """Write one box of every raster."""
        ...


class Tally(Protocol):
    """Counts of pieces. What a piece adds is saved with its strip, so that restored strips are not counted again."""

    def of(self, rasters: RasterArrays, box: Box) -> Counts:
        """Return what one piece adds."""
        ...

    def add(self, counts: Counts) -> None:
        """Add it."""
        ...


class NoTally:
    """Counts nothing."""

    def of(self, rasters: RasterArrays, box: Box) -> Counts:  # noqa: ARG002  (the protocol names them)
        """Return nothing."""
        return ()

    def add(self, counts: Counts) -> None:
        """Add nothing."""


NOTHING = NoTally()


class NoRasters:
    """Writes nothing: a part only saves its strips."""

    def write(self, rasters: RasterArrays, box: Box) -> None:
        """Write nothing."""


class Behind:
    """A thread that does one thing at a time, in order, while its caller goes on."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="write-behind")
        self._doing: Future[None] | None = None

    def do(self, act: Callable[[], None]) -> None:
        """Wait for the last act and raise its error, then begin the next."""
        self.wait()
        self._doing = self._pool.submit(act)

    def wait(self) -> None:
        """Wait for the last act and raise its error."""
        doing, self._doing = self._doing, None
        if doing is not None:
            doing.result()

    def close(self) -> None:
        """Wait until the thread has ended."""
        self._pool.shutdown(wait=True)


class SceneWriter:
    """Writer of finished pieces and restored strips in scene order. Saves new strips as checkpoints.

    `digest` is that of the plan, `restored` has the files of saved strips, and `part` the strips that a part of the
    job computes; None for the whole job. With `behind`, a thread counts and writes each piece while the caller awaits
    the next tile output. The caller saves a strip when all of its pieces are written. With `followed`, other work of
    the job follows the scene.
    """

    def __init__(
        self,
        plan: Plan,
        digest: str,
        restored: Mapping[int, Path],
        part: range | None,
        writer: RasterWriter,
        sink: ArtifactSink,
        tally: Tally,
        *,
        behind: bool = False,
        followed: bool = False,
    ) -> None:
        self._behind = Behind() if behind else None
        self._digest, self._part, self._known = digest, part, restored.keys()
        self._writer, self._sink, self._tally = writer, sink, tally
        #: Strips that are saved. Not the last one of the job: no other strip follows, so saving it would gain little.
        self._kept = set(part if part is not None else plan.wanted_strips if followed else plan.wanted_strips[:-1])
        self._restored = deque(sorted(restored.items()) if part is None else ())
        self._checkpoint: strips.StripWriter | None = None
        self._saved: set[int] = set()
        self._suspects, self._any_data = SuspectCounts(), False

    @property
    def written(self) -> Written:
        """Facts about the pixels written so far."""
        return Written(self._suspects, self._any_data)

    def add(self, result: TilePieces) -> None:
        """Write the pieces of a tile result, and save its strip if the strip is final now."""
        for piece in result.pieces:
            if self._behind is None:
                self._add(result.strip.index, piece)
            else:
                self._behind.do(partial(self._add, result.strip.index, piece))
        if result.last:
            self._catch_up()
            if self._checkpoint is not None:
                self._save(self._checkpoint)
                self._checkpoint = None

    def write_restored(self, before: int | None = None) -> None:
        """Write the restored strips: all of them, or those before strip `before`."""
        while self._restored and (before is None or self._restored[0][0] < before):
            with closing(read_ahead(strips.read_strip(self._restored.popleft()[1]), depth=_AHEAD)) as pieces:
                for box, rasters, suspects, counts in pieces:
                    self._write(rasters, box, suspects, counts)

    def end(self) -> None:
        """Write the last restored strips; of a part, save the strips that have no data."""
        self._catch_up()
        self.write_restored()
        if self._part is not None:
            for index in sorted(self._kept - self._known - self._saved):
                self._save(self._open_checkpoint(index))
                self._checkpoint = None

    def _catch_up(self) -> None:
        if self._behind is not None:
            self._behind.wait()

    def _add(self, index: int, piece: Piece) -> None:
        self.write_restored(index)  # scene order: the restored strips before this strip come first
        counts = self._tally.of(piece.rasters, piece.box)
        self._write(piece.rasters, piece.box, piece.suspects, counts)
        if index in self._kept:
            self._open_checkpoint(index).write(piece.rasters, piece.box, piece.suspects, counts)

    def _write(self, rasters: RasterArrays, box: Box, suspects: SuspectCounts, counts: Counts) -> None:
        self._writer.write(rasters, box)
        self._tally.add(counts)
        add_suspects(self._suspects, suspects)
        self._any_data = True

    def _open_checkpoint(self, index: int) -> strips.StripWriter:
        if self._checkpoint is None:
            path = self._sink.path(f"strip-{index:05}")
            self._checkpoint = strips.StripWriter(path, self._digest, index)
        return self._checkpoint

    def _save(self, checkpoint: strips.StripWriter) -> None:
        checkpoint.end()
        self._sink.checkpoint(strips.strip_name(self._digest, checkpoint.index), checkpoint.path)
        checkpoint.path.unlink()
        self._saved.add(checkpoint.index)

    def close(self) -> None:
        """Close the file of an unfinished strip, after the piece that is being written."""
        if self._behind is not None:
            self._behind.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
