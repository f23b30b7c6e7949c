"""The media that a request names, where some may be missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import FetchFailed, MediaNotFound, ProcessorFailed
from penstock.intake.local_media import LocalMedia
from penstock.intake.partial import PartialFile
from penstock.models import MAY_LACK
from penstock.workers.job_media import JobMedia
from penstock.workers.named_media import fetch_named

MEDIUM = {"type": "string", "format": "media"}
SCHEMA: dict[str, Any] = {
    "properties": {
        "scene": MEDIUM,
        "dates": {"type": "array", "items": {"properties": {"scene": MEDIUM}}, MAY_LACK: "series"},
        "series": {"type": "object"},
    }
}


def media(folder: Path, errors: dict[str, Exception]) -> JobMedia:
    """Return the media of a job whose files are there, but for those with an error."""

    def get(reference: str, place: Path, **_: object) -> tuple[LocalMedia, PartialFile | None]:
        if reference in errors:
            raise errors[reference]
        path = place / reference
        path.write_text(reference)
        return LocalMedia(path), None

    return JobMedia(get, folder, lambda _: None)


def test_a_file_that_may_be_missing_gives_its_error_to_the_processor(tmp_path: Path) -> None:
    found = media(tmp_path, {"b": MediaNotFound("b is away")})
    request = {"dates": [{"scene": "a"}, {"scene": "b"}, {"scene": "c"}], "series": {}}
    fetch_named(found, SCHEMA, request)
    assert list(found.files) == ["a", "c"]
    with pytest.raises(MediaNotFound, match="b is away"):
        found.fetch("b", by_range=False)
    with pytest.raises(ProcessorFailed):
        found.fetch("d", by_range=False)


@pytest.mark.parametrize(
    "request_", [{"dates": [{"scene": "b"}]}, {"scene": "b"}, {"scene": "b", "dates": [{"scene": "b"}], "series": {}}]
)
def test_any_other_file_that_is_missing_ends_the_job(request_: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(MediaNotFound, match="b is away") as caught:
        fetch_named(media(tmp_path, {"b": MediaNotFound("b is away")}), SCHEMA, request_)
    assert caught.value.errors[0].pointer.startswith("/input/")


def test_a_server_that_does_not_answer_has_the_job_tried_again(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed):
        fetch_named(media(tmp_path, {"b": FetchFailed("away")}), SCHEMA, {"dates": [{"scene": "b"}], "series": {}})
