"""The local files of batches: the requests of a large one, and the results."""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.client.answers import ClientError, LineOutcome
from penstock.client.decoding import read
from penstock.client.downloads import file_errors

RESULTS, ERRORS = "results.jsonl", "errors.jsonl"
#: Requests and bytes of the largest batch that is sent inline; larger ones are uploaded as a file.
MAX_INLINE, MAX_INLINE_BYTES = 1000, 500_000
#: A custom id that can name a folder, and that is no name of a line's number.
_FOLDER = re.compile(r"(?!line-)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_small(requests: Sequence[Mapping[str, Any]]) -> bool:
    """Return True for requests that are sent inline; raise `ClientError` for none."""
    if not requests:
        raise ClientError("a batch needs at least one request")
    return len(requests) <= MAX_INLINE and sum(len(json.dumps(dict(r))) for r in requests) <= MAX_INLINE_BYTES


def write_requests(requests: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write requests to a new JSONL file in a folder and return its path."""
    path = folder / "requests.jsonl"
    with file_errors("save", path), path.open("x", encoding="utf-8") as file:
        file.writelines(json.dumps(dict(request)) + "\n" for request in requests)
    return path


def outcomes(folder: Path) -> Iterator[LineOutcome]:
    """Yield the outcomes of a batch's lines, in order, from the files saved in a folder."""
    streams = [_rows(folder / name) for name in (RESULTS, ERRORS)]
    yield from heapq.merge(*streams, key=lambda outcome: outcome.line)


def _rows(path: Path) -> Iterator[LineOutcome]:
    with path.open("rb") as file:
        for row in file:
            yield read(LineOutcome, json.loads(row))


def line_folders(folder: Path) -> dict[Path, LineOutcome]:
    """Return the lines with files of a batch saved in a folder, by the folder of each.

    It has the name of a unique and valid `custom_id`, or else `line-` and the line's number.
    """
    named = Counter(outcome.custom_id for outcome in outcomes(folder))
    found = [outcome for outcome in outcomes(folder) if outcome.artifacts and outcome.job_id]
    return {folder / _line_folder(outcome, named): outcome for outcome in found}


def _line_folder(outcome: LineOutcome, named: Counter[str | None]) -> str:
    name = outcome.custom_id or ""
    if _FOLDER.fullmatch(name) and named[outcome.custom_id] == 1 and name not in (RESULTS, ERRORS):
        return name
    return f"line-{outcome.line}"
