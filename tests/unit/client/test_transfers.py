"""Multipart uploads of files that change meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.client.answers import ClientError
from penstock.client.protocol import Flow, Reply, Request, Step, Together
from penstock.client.transfers import upload_parts

REFUSED = ClientError("the object store answers BadDigest (HTTP 400)")


def begun(path: Path) -> tuple[Flow[str], Step]:
    """Return the flow of an upload, and its parts as what it waits for."""

    def exchange(request: Request) -> Flow[Reply]:
        reply = yield request
        assert isinstance(reply, Reply)
        return reply

    flow = upload_parts(exchange, path, path.stat().st_size, None, "key")
    assert isinstance(next(flow), Request)
    place = {"media": "media://1/scene.tif", "uploaded": False, "parts": [], "part_bytes": 4}
    return flow, flow.send(Reply(201, {}, json.dumps(place).encode()))


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "scene.tif"
    path.write_bytes(b"0123456789")
    return path


def test_a_part_that_is_refused_since_the_file_changed_is_told_as_the_change(scene: Path) -> None:
    flow, step = begun(scene)
    assert isinstance(step, Together)
    scene.write_bytes(b"longer than it was")
    with pytest.raises(ClientError, match="was changed while it was sent") as caught:
        flow.throw(REFUSED)
    assert caught.value.__cause__ is REFUSED


def test_parts_that_arrived_of_a_file_that_changed_are_not_joined(scene: Path) -> None:
    flow, _ = begun(scene)
    scene.write_bytes(b"longer than it was")
    with pytest.raises(ClientError, match="was changed while it was sent"):
        flow.send(["a", "b", "c"])


def test_another_error_of_a_part_stays_as_it_is(scene: Path) -> None:
    flow, _ = begun(scene)
    with pytest.raises(ClientError) as caught:
        flow.throw(REFUSED)
    assert caught.value is REFUSED


def test_an_upload_that_is_given_up_ends_without_a_word(scene: Path) -> None:
    flow, _ = begun(scene)
    scene.write_bytes(b"longer than it was")
    flow.close()
