"""Polygons of files that cannot be shown, at a server of the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import shapely

from penstock.errors import FetchFailed, MediaUnreadable, UnknownArtifact
from penstock.maps import polygons
from penstock.processors.geo.read.gdal import pyogrio
from tests.support.stack import free_port


class Ranges(BaseHTTPRequestHandler):
    """A server of a folder's files, by ranges, that says nothing."""

    def __init__(self, folder: Path, *connection: Any) -> None:
        self._folder = folder
        super().__init__(*connection)

    def do_GET(self) -> None:
        path = self._folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        content, wanted = path.read_bytes(), self.headers["Range"]
        first, last = 0, len(content) - 1
        if wanted is not None:
            first, last = (int(each) for each in wanted.removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        self.send_response(200 if wanted is None else 206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        with suppress(ConnectionError):  # GDAL leaves when it has what it needs
            self.wfile.write(part)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    polygons.prepare()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, tmp_path)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def write(path: Path, shapes: list[Any], crs: str | None = "EPSG:32633") -> None:
    pyogrio.raw.write(path, shapely.to_wkb(shapes), [], [], driver="FlatGeobuf", geometry_type="Polygon", crs=crs)


@pytest.mark.filterwarnings("ignore:'crs' was not provided")
def test_files_without_a_place_or_of_another_format_are_refused(url: str, tmp_path: Path) -> None:
    write(tmp_path / "nowhere.fgb", [shapely.box(0, 0, 1, 1)], None)
    (tmp_path / "other.fgb").write_text('<OGRVRTDataSource><OGRVRTLayer name="x"/></OGRVRTDataSource>')
    with pytest.raises(MediaUnreadable, match="no CRS"):
        polygons.page(f"{url}/nowhere.fgb")
    with pytest.raises(MediaUnreadable, match="no FlatGeobuf"):
        polygons.about(f"{url}/other.fgb")


def test_deleted_files_and_silent_stores_are_told_apart(url: str) -> None:
    with pytest.raises(UnknownArtifact, match="no longer exists"):
        polygons.page(f"{url}/none.fgb")
    with pytest.raises(FetchFailed, match="does not answer"):
        polygons.one(f"http://127.0.0.1:{free_port()}/none.fgb", 1)
