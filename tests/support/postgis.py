"""A PostgreSQL server with PostGIS, in a folder of its own and reached by a socket there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

#: Debian's places of the programs and of the extension, by version.
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
EXTENSIONS = sorted(Path("/usr/share/postgresql").glob("*/extension/postgis.control"))
USER = "postgres"


@dataclass(frozen=True)
class PostGIS:
    """A running server with an empty database that has the extension."""

    #: The database, as libpq and GDAL take it after `PG:`.
    database: str

    def rows(self, query: str) -> list[list[str]]:
        """Return the rows of a query as texts."""
        command = ["psql", "--no-align", "--tuples-only", "-v", "ON_ERROR_STOP=1", self.database, "-c", query]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [line.split("|") for line in done.stdout.splitlines()]


@contextmanager
def postgis() -> Iterator[PostGIS]:
    """Start a server; skip without its programs, and fail in CI."""
    if not PROGRAMS or not EXTENSIONS:
        reason = "needs PostGIS: apt-get install postgresql postgresql-15-postgis-3 (infra/apt.txt)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    programs = PROGRAMS[-1].parent
    # A server does not run as root, and another user cannot enter the folders of pytest.
    folder = Path(tempfile.mkdtemp(prefix="postgis-"))
    owner = USER if os.geteuid() == 0 else None
    if owner is not None:
        shutil.chown(folder, owner)

    def run(name: str, *words: str) -> None:
        subprocess.run([programs / name, *words], user=owner, cwd=folder, check=True, stdout=subprocess.DEVNULL)

    data = str(folder / "data")
    try:
        run("initdb", "-D", data, "-U", USER, "--auth=trust", "--no-sync")
        # It listens at a socket in its folder alone.
        settings = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", settings, "start")
        try:
            found = PostGIS(f"host={folder} user={USER} dbname={USER}")
            found.rows("CREATE EXTENSION postgis")
            yield found
        finally:
            run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
