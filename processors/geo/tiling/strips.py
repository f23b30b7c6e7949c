"""Checkpoint files of finished strips, so that a later attempt does not compute them again.

gzip of   header     JSON line: file type, digest of the plan, index of the strip
          pieces     each a JSON line (box; names, dtypes, bands of the rasters; suspected nodata; counts of classes)
                     and the raster bytes
          end        JSON line: SHA-256 of everything above

A file that is damaged, truncated, or from another plan is ignored completely.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.read.suspected_nodata import Suspect, SuspectCounts
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.raster_set import RasterArrays
from penstock.processors.geo.write.stats import Counts

#: Version of the file format; part of the plan's digest.
FORMAT = 4
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


def found_strips(files: Mapping[str, Path], digest: str) -> dict[int, Path]:
    """Return the saved files that hold a complete strip of this plan, by index. Each file is read once."""
    found = {}
    for name, path in sorted(files.items()):
        match = _NAME.fullmatch(name)
        if match and match["digest"] == digest and is_whole(path, digest, int(match["index"])):
            found[int(match["index"])] = path
    return found


class StripWriter:
    """Writer of a strip, piece by piece. The file is complete only after `end`, not after `close` alone."""

    def __init__(self, path: Path, digest: str, index: int) -> None:
        self.path, self.index = path, index
        self._file = gzip.GzipFile(path, "wb", _LEVEL, mtime=0)
        self._hash = hashlib.sha256()
        self._line(_header(digest, index))

    def write(self, rasters: RasterArrays, box: Box, suspects: SuspectCounts, counts: Counts) -> None:
        """Add a piece."""
        arrays = {name: np.ascontiguousarray(array) for name, array in rasters.items()}
        self._line(
            {
                "box": list(asdict(box).values()),
                "rasters": {name: [array.dtype.str, array.shape[0]] for name, array in arrays.items()},
                "fill": [[*suspect, pixels] for suspect, pixels in suspects.items()],
                "counts": counts,
            }
        )
        for array in arrays.values():
            self._write(array.reshape(-1).view(np.uint8).data)

    def end(self) -> None:
        """Write the checksum and close the file."""
        self._line({"sha256": self._hash.hexdigest()})
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _line(self, data: Mapping[str, Any]) -> None:
        self._write(json.dumps(data).encode() + b"\n")

    def _write(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._file.write(data)


def is_whole(path: Path, digest: str, index: int) -> bool:
    """Return True if the file holds a complete, undamaged strip of this plan."""
    try:
        with gzip.GzipFile(path) as file:
            return _is_whole(file, digest, index)
    except _BROKEN:
        return False


def read_strip(path: Path) -> Iterator[tuple[Box, RasterArrays, SuspectCounts, Counts]]:
    """Yield the pieces of a complete file, in the order of writing."""
    with gzip.GzipFile(path) as file:
        _line(file)
        while (line := _line(file)).keys() != {"sha256"}:
            box, rasters = _layout(line)
            arrays, suspects = (
                {name: _array(file, *raster, box) for name, raster in rasters.items()},
                {Suspect(date, number): pixels for date, number, pixels in line["fill"]},
            )
            yield box, arrays, SuspectCounts(suspects), line["counts"]


def _is_whole(file: gzip.GzipFile, digest: str, index: int) -> bool:
    hashed = hashlib.sha256()
    header, own = _line(file, hashed), _header(digest, index)
    if {name: header.get(name) for name in own} != own:  # other names may come from a newer release
        return False
    while True:
        before = hashed.hexdigest()
        line = _line(file, hashed)
        if line.keys() == {"sha256"}:
            return line["sha256"] == before and not file.read(1)
        box, rasters = _layout(line)
        for dtype, bands in rasters.values():
            left = _size(dtype, bands, box)
            while left:
                chunk = _exactly(file, min(left, _CHUNK_BYTES))
                hashed.update(chunk)
                left -= len(chunk)


def _header(digest: str, index: int) -> dict[str, Any]:
    return {"file": "a strip of a scene", "format": FORMAT, "plan": digest, "strip": index}


def _line(file: gzip.GzipFile, hashed: Any = None) -> dict[str, Any]:
    text = file.readline(_MAX_LINE_BYTES)
    if hashed is not None:
        hashed.update(text)
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
