"""Fixtures of integration tests: one real Valkey per run, empty at the start of each test."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import structlog
from structlog.dev import ConsoleRenderer, plain_traceback

from penstock.catalogue.records import read_catalogue
from penstock.models import Model
from penstock.storage.redis.records import JobStore
from tests.support.batch_keeper import KeeperMoves
from tests.support.deadly_runner import install, record
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess, start_valkey


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """Log exceptions without the values of variables, which takes structlog's default seconds for each."""
    if not structlog.is_configured():
        processors = structlog.get_config()["processors"][:-1]
        structlog.configure(processors=[*processors, ConsoleRenderer(exception_formatter=plain_traceback)])


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    """Return the run's server. It syncs each write to its file, which takes most of its time on a disk."""
    with ExitStack() as stack:
        in_memory = Path("/dev/shm")
        if in_memory.is_dir() and shutil.disk_usage(in_memory).free > 2 * 2**30:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-valkey-", dir=in_memory)))
        else:
            folder = tmp_path_factory.mktemp("valkey")
        server = start_valkey(folder)
        yield server
        server.stop()


@pytest.fixture
def valkey(valkey_server: ValkeyProcess) -> ValkeyProcess:
    """Return a running server without data. A test that kills it restarts it, or starts one of its own."""
    valkey_server.flush()
    return valkey_server


@pytest.fixture
def store(valkey: ValkeyProcess) -> Iterator[JobStore]:
    """Return a job store without jobs."""
    store = JobStore.open(valkey.url)
    yield store
    store.close()


@pytest.fixture
async def service(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    """Return a running API with an empty job store, a local object store, and the models `echo` and `broken`."""
    async with serving(valkey.url, tmp_path) as running:
        yield running


@pytest.fixture
async def keeper(service: Service) -> AsyncIterator[KeeperMoves]:
    """Return what a keeper of the service's batches does."""
    moves = KeeperMoves(service)
    yield moves
    moves.close()


@pytest.fixture
def model_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Model]:
    """Return a function that gives a model whose load ends as its name says."""
    for name, value in install(tmp_path / "site").items():
        monkeypatch.setenv(name, value)

    def make(how: str, **fields: Any) -> Model:
        file = tmp_path / f"{how}.toml"
        file.write_text(record(how, how, tmp_path, **fields))
        return read_catalogue(file)[how]

    return make
