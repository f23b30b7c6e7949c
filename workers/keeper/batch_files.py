"""The two result files of a batch: one JSON line for each of its lines, successes and errors apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from penstock.batches import Line, Verdict
from penstock.errors import Canceled, ErrorReport, PenstockError
from penstock.jobs import Artifact, Job
from penstock.json_body import parse_json

RESULTS, ERRORS = "results.jsonl", "errors.jsonl"
CONTENT_TYPE = "application/jsonl"
MAX_CUSTOM_ID_CHARS = 256


class OutcomeFile:
    """A JSONL file that is being written; its digest is updated with each line."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self._file = self.path.open("xb")
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a line."""
        data = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self._file.write(data)
        self._sha256.update(data)
        self._size_bytes += len(data)

    def artifact(self, prefix: str) -> Artifact:
        """Return the closed file as an artifact under the prefix."""
        name = self.path.name
        return Artifact(name, CONTENT_TYPE, self._size_bytes, self._sha256.hexdigest(), prefix + name)


def result_row(line: Line, job: Job, base_url: str) -> dict[str, Any]:
    """Return the row in `results.jsonl` of a line whose job succeeded."""
    here = f"{base_url}/v1/jobs/{job.key.id}"
    artifacts = [
        {
            "name": artifact.name,
            "content_type": artifact.content_type,
            "size_bytes": artifact.size_bytes,
            "sha256": artifact.sha256,
            "url": f"{here}/artifacts/{quote(artifact.name)}",
        }
        for artifact in job.artifacts
    ]
    output = {"text": job.text, "json": None if job.data is None else dict(job.data)}
    head = _head(line.number, job.submission.custom_id, job.key.id, Verdict.SUCCEEDED)
    return {**head, "output": output, "artifacts": artifacts, "metadata": dict(job.submission.metadata)}


def error_row(
    line: Line, verdict: Verdict, error: ErrorReport, *, custom_id: str | None, job_id: str | None
) -> dict[str, Any]:
    """Return the row in `errors.jsonl` of a line that did not succeed."""
    return {**_head(line.number, custom_id, job_id, verdict), "error": error.to_json()}


def job_row(line: Line, job: Job, verdict: Verdict) -> dict[str, Any]:
    """Return the row in `errors.jsonl` of a line whose job ended without success."""
    error = job.error or Canceled("the job was canceled").report()
    return error_row(line, verdict, error, custom_id=job.submission.custom_id, job_id=job.key.id)


def custom_id_of(line: Line) -> str | None:
    """Return the `custom_id` of a line that is no job, if it can be read."""
    try:
        found = parse_json(line.data or b"")
    except PenstockError:
        return None
    name = found.get("custom_id") if isinstance(found, dict) else None
    return name[:MAX_CUSTOM_ID_CHARS] if isinstance(name, str) else None


def _head(number: int, custom_id: str | None, job_id: str | None, verdict: Verdict) -> dict[str, Any]:
    return {"line": number, "custom_id": custom_id, "job_id": job_id, "status": verdict.value}
