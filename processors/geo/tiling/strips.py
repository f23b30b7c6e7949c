"""Checkpoint files of finished strips, so that a later attempt does not compute them again.

header    JSON line: file type, digest of the plan, index of the strip, SHA-256 of everything below
gzip of   pieces     each a JSON line (box; names, dtypes, bands of the rasters; suspected nodata; counts of classes)
                     and the raster bytes
          end        an empty JSON object

A file that is damaged, truncated, or from another plan is ignored completely: its compressed bytes are checked, so that
a strip is decompressed once.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock.processors.base import Media
from penstock.processors.geo.read.suspected_nodata import Suspect, SuspectCounts
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.raster_set import RasterArrays
from penstock.processors.geo.write.stats import Counts

#: Version of the file format; part of the plan's digest.
FORMAT = 5
#: gzip level: class maps compress to a few percent, probabilities to a third; higher levels double the time.
_LEVEL = 1
_MAX_LINE_BYTES = 30_000
_CHUNK_BYTES = 2**20
_NAME = re.compile(r"(?P<digest>[0-9a-f]{32})/strip-(?P<index>[0-9]{5,})")
_DTYPE = re.compile(r"[<>|][uif][1248]")
#: Errors that a foreign or incomplete file can cause.
_BROKEN = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError)


def strip_name(digest: str, index: int) -> str:
    """Return the checkpoint name of a strip."""
    return f"{digest}/strip-{index:05}"


def saved_files(media: Media, digest: str, part: range | None) -> Mapping[str, Path]:
    """Return the job's checkpoints of a plan, by name; with `part`, only the checkpoints of these strips."""
    if part is None:
        return media.checkpoints(f"{digest}/")
    files: dict[str, Path] = {}
    for index in part:
        files |= media.checkpoints(strip_name(digest, index))
    return files


def found_strips(files: Mapping[str, Path], digest: str, part: range | None = None) -> dict[int, Path]:
    """Return the saved files that hold a complete strip of this plan, by index. Each file is read once.

    With `part`, only these strips are returned.
    """
    found = {}
    for name, path in sorted(files.items()):
        match = _NAME.fullmatch(name)
        if match and match["digest"] == digest and is_whole(path, digest, int(match["index"])):
            found[int(match["index"])] = path
    return found if part is None else {index: path for index, path in found.items() if index in part}


class StripWriter:
    """Writer of a strip, piece by piece. The file is complete only after `end`, not after `close` alone."""

    def __init__(self, path: Path, digest: str, index: int) -> None:
        self.path, self.index = path, index
        self._header = _header(digest, index)
        self._file = path.open("w+b")
        self._write_header("0" * 64)
        self._pieces = gzip.GzipFile("", "wb", _LEVEL, self._file, mtime=0)

    def write(self, rasters: RasterArrays, box: Box, suspects: SuspectCounts, counts: Counts) -> None:
        """Add a piece."""
        arrays = {name: np.ascontiguousarray(array) for name, array in rasters.items()}
        self._line(
            {
                "box": [box.top, box.left, box.bottom, box.right],
                "rasters": {name: [array.dtype.str, array.shape[0]] for name, array in arrays.items()},
                "fill": [[*suspect, pixels] for suspect, pixels in suspects.items()],
                "counts": counts,
            }
        )
        for array in arrays.values():
            self._pieces.write(array.reshape(-1).view(np.uint8).data)

    def end(self) -> None:
        """Write the checksum and close the file."""
        self._line({})
        self._pieces.close()
        self._file.seek(0)
        self._file.readline()
        digest = _sha256(self._file)
        self._file.seek(0)
        self._write_header(digest)
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._pieces.close()
        self._file.close()

    def _write_header(self, sha256: str) -> None:
        self._file.write(json.dumps({**self._header, "sha256": sha256}).encode() + b"\n")

    def _line(self, data: Mapping[str, Any]) -> None:
        self._pieces.write(json.dumps(data).encode() + b"\n")


def is_whole(path: Path, digest: str, index: int) -> bool:
    """Return True if the file holds a complete, undamaged strip of this plan."""
    own = _header(digest, index)
    try:
        with path.open("rb") as file:
            header = _line(file)
            # Other names may come from a newer release.
            return own == {name: header.get(name) for name in own} and header["sha256"] == _sha256(file)
    except _BROKEN:
        return False


def read_strip(path: Path) -> Iterator[tuple[Box, RasterArrays, SuspectCounts, Counts]]:
    """Yield the pieces of a complete file, in the order of writing."""
    with path.open("rb") as file:
        _line(file)
        with gzip.GzipFile(fileobj=file) as pieces:
            while line := _line(pieces):
                box, rasters = _layout(line)
                arrays, suspects = (
                    {name: _array(pieces, *raster, box) for name, raster in rasters.items()},
                    {Suspect(date, number): pixels for date, number, pixels in line["fill"]},
                )
                yield box, arrays, SuspectCounts(suspects), line["counts"]


def _header(digest: str, index: int) -> dict[str, Any]:
    return {"file": "a strip of a scene", "format": FORMAT, "plan": digest, "strip": index}


def _sha256(file: BinaryIO) -> str:
    """Return the SHA-256 of the rest of a file."""
    hashed = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        hashed.update(chunk)
    return hashed.hexdigest()


def _line(file: BinaryIO | gzip.GzipFile) -> dict[str, Any]:
    text = file.readline(_MAX_LINE_BYTES)
    if not text.endswith(b"}\n"):
        raise EOFError
    line: dict[str, Any] = json.loads(text)
    return line


def _layout(line: Mapping[str, Any]) -> tuple[Box, dict[str, tuple[np.dtype[Any], int]]]:
    match line:
        case {"box": [int(top), int(left), int(bottom), int(right)], "rasters": dict(rasters)}:
            if 0 <= top <= bottom and 0 <= left < right:
                return Box(top, left, bottom, right), {name: _raster(*each) for name, each in rasters.items()}
    raise ValueError("not the header of a piece")


def _raster(dtype: str, bands: int) -> tuple[np.dtype[Any], int]:
    if not _DTYPE.fullmatch(dtype) or type(bands) is not int or bands < 1:
        raise ValueError("not the header of a raster")
    return np.dtype(dtype), bands


def _array(file: gzip.GzipFile, dtype: np.dtype[Any], bands: int, box: Box) -> npt.NDArray[Any]:
    data = _exactly(file, _size(dtype, bands, box))
    return np.frombuffer(data, dtype).reshape(bands, box.height, box.width)


def _size(dtype: np.dtype[Any], bands: int, box: Box) -> int:
    return dtype.itemsize * prod((bands, box.height, box.width))


def _exactly(file: gzip.GzipFile, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise EOFError
    return data
