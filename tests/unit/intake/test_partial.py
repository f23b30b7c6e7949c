"""Partial files: what a server sent less than it was asked for is an error, and never a hole that reads as zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from penstock.errors import FetchFailed
from penstock.intake.guard import FetchedPart, GuardedClient
from penstock.intake.partial import HEAD_BYTES, WebSource, begin_partial


class Sparing:
    """A guard whose server sends the beginning of each range only, as RFC 9110 allows."""

    def fetch_part(self, url: str, file: BinaryIO, start: int, end: int, **_: Any) -> FetchedPart:  # noqa: ARG002
        sent = b"II*\0".ljust(1000, b"x")[: end - start]
        file.write(sent)
        return FetchedPart(size_bytes=100 * HEAD_BYTES, etag="v1", received_bytes=len(sent))


def test_a_server_that_sends_less_than_the_first_bytes_fails_the_fetch(tmp_path: Path) -> None:
    source = WebSource(cast("GuardedClient", Sparing()), "https://files.test/scene.tif", limit_bytes=10**9)
    path = tmp_path / "scene.tif"
    with pytest.raises(FetchFailed, match="a part of the requested range"):
        begin_partial(path, source, 10**9)
    assert not path.exists()
