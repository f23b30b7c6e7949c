"""The places of artifacts in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client.answers import ClientError
from penstock.client.downloads import artifact_path


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "a\\..\\x"])
def test_an_artifact_does_not_leave_its_folder(name: str) -> None:
    with pytest.raises(ClientError):
        artifact_path(Path("out"), name)


def test_an_artifact_may_lie_in_a_folder_of_its_own() -> None:
    assert artifact_path(Path("out"), "tiles/1.tif") == Path("out/tiles/1.tif")
