"""Output kinds of installed packages: found by entry point, written by processors, opened by the client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.output_kinds import GROUP, output_kind
from penstock.processors.geo.write.cog import RASTER_OUTPUTS
from penstock.processors.outputs import OUTPUTS
from penstock.processors.testing import FolderSink
from tests.unit.client.test_results import result_of

CODE = """
from penstock.output_kinds import output_kind


def read_track(path):
    return [tuple(map(float, line.split())) for line in path.read_text().splitlines()]


@output_kind("application/x-track", ".track", open=read_track)
def track(path, points):
    path.write_text("".join(f"{x} {y}\\n" for x, y in points))


@output_kind("image/png", ".ours")
def png(path, value):
    raise AssertionError("the kind of a package replaced one of Penstock's")


function = read_track
"""

POINTS = """
track = kinds_of_tracks:track
png = kinds_of_tracks:png
plain = kinds_of_tracks:function
gone = kinds_of_nothing:gone
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package with output kinds, one of which is broken."""
    site = tmp_path / "site"
    info = site / "kinds_of_tracks-1.dist-info"
    info.mkdir(parents=True)
    (site / "kinds_of_tracks.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kinds-of-tracks\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]{POINTS}")
    monkeypatch.syspath_prepend(site)
    return site


@pytest.mark.usefixtures("package")
def test_a_packages_kind_is_written_by_a_processor_and_opened_by_the_client(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path)
    OUTPUTS.put(sink, "line", [(1, 2), (3.5, 4)], kind="track")
    assert {name: kind for name, (kind, _) in sink.artifacts.items()} == {"line.track": "application/x-track"}
    assert RASTER_OUTPUTS.spec("line", "the way", kind="track").media_type == "application/x-track"
    assert result_of(tmp_path, "line.track", "application/x-track").open() == [(1.0, 2.0), (3.5, 4.0)]


@pytest.mark.usefixtures("package")
def test_a_file_of_another_media_type_is_opened_as_before(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("as before")
    assert result_of(tmp_path, "a.txt", "text/plain").open() == "as before"


@pytest.mark.usefixtures("package")
def test_penstocks_own_kinds_are_not_replaced() -> None:
    assert OUTPUTS.kind("png").suffix == ".png"


@pytest.mark.usefixtures("package")
def test_an_unknown_or_broken_kind_is_told_with_its_reason() -> None:
    with pytest.raises(ConfigError, match=r"no output kind 'mp4'; known kinds: gone, json, npy, plain, png, .*track"):
        OUTPUTS.kind("mp4")
    with pytest.raises(ConfigError, match="'gone': kinds_of_nothing:gone cannot be imported: ModuleNotFoundError"):
        OUTPUTS.kind("gone")
    with pytest.raises(ConfigError, match="kinds_of_tracks:function is no `Kind`; use `output_kind`"):
        OUTPUTS.kind("plain")


@pytest.mark.parametrize(
    ("media_type", "suffix"), [("video", ".mp4"), ("video/mp4", "mp4"), ("video/mp4\r\nX: y", ".mp4")]
)
def test_a_kind_without_a_media_type_or_a_suffix_is_refused(media_type: str, suffix: str) -> None:
    with pytest.raises(ConfigError, match="has a media type and a suffix"):
        output_kind(media_type, suffix)


def test_a_package_of_kinds_needs_no_numpy() -> None:
    code = "import sys, penstock.output_kinds; assert not {'numpy', 'PIL'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
