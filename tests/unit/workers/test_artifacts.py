"""The sink of a processor's artifacts."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ProcessorFailed
from penstock.workers.artifacts import Preview, Sink


@pytest.mark.parametrize("media_type", ["image/png\r\nX-Own: 1", "image/png\n", "png", "", "imagé/png"])
def test_an_artifact_whose_media_type_no_header_can_hold_fails_its_processor(tmp_path: Path, media_type: str) -> None:
    shown: list[Preview] = []
    sink = Sink(tmp_path, show=shown.append)
    with pytest.raises(ProcessorFailed, match="invalid media type"):
        sink.add("a.png", sink.path("a.png"), media_type=media_type)
    with pytest.raises(ProcessorFailed, match="invalid media type"):
        sink.show("a.png", b"", media_type=media_type)
    assert (dict(sink.files), shown) == ({}, [])
    sink.add("a.png", sink.path("a.png"), media_type="image/png; a=b")
    assert list(sink.files) == ["a.png"]
