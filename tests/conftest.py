"""What all tests share: one real S3 server per run."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from tests.ceph import Ceph, missing_binaries, start_ceph

#: `pytest --hypothesis-profile=nightly`: many more examples of everything.
settings.register_profile("nightly", max_examples=2000, deadline=None)


def pytest_configure() -> None:
    """Let torch compute in one thread, and Ctrl-C reach what the tests start.

    Networks as small as the tests' are slower in several threads, which spin while they wait for each other. A run in
    the background ignores Ctrl-C, and its children would too.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep what was imported and collected from the garbage collector: it stays until the end, and there is much."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests measured: `record_property("figures", "...")`."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if name == "figures":
                terminalreporter.write_line(value)


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Undo what a test set up for all logs of the process, such as an `Engine` that has them at errors only."""
    before = structlog.is_configured()
    yield
    if not before:
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def ceph() -> Iterator[Ceph]:
    """Return the run's S3 server. Without its programs the test is skipped, and fails in CI."""
    missing = missing_binaries()
    if missing:
        reason = f"needs Ceph, the S3 server of the tests (infra/apt.txt): no {', '.join(missing)}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="ceph-", ignore_cleanup_errors=True) as folder:
        cluster = start_ceph(Path(folder))
        yield cluster
        cluster.stop()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a text that is no UTF-8 in ASCII: pytest-xdist sends names as UTF-8, and ends the whole run otherwise."""
    if not isinstance(val, str):
        return None
    try:
        val.encode()
    except UnicodeEncodeError:
        return ascii(val)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what a test wrote sendable, for the same reason."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
