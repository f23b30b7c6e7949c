"""Fixtures of all tests: one real S3 server per run."""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import signal
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest
import structlog
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, settings

from tests.support.ceph import Ceph, missing_binaries, shared_ceph

# No test judges by the clock: a busy machine takes seconds for what usually takes milliseconds.
settings.register_profile("untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
#: `pytest --hypothesis-profile=nightly`: many more examples of everything.
settings.register_profile("nightly", settings(), max_examples=2000)


def pytest_configure() -> None:
    """Let torch compute in one thread, and Ctrl-C reach what the tests start.

    Networks as small as the tests' are slower in several threads, which spin while they wait for each other. A run in
    the background ignores Ctrl-C, and its children would too.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


#: Without a GPU `tests/gpu` is not even imported.
collect_ignore = [] if shutil.which("nvidia-smi") else ["gpu"]


def pytest_report_header() -> str | None:
    return "tests/gpu is left out: this machine has no nvidia-smi" if collect_ignore else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="run the K-th of N parts of the tests: K/N")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of one part. Their names decide, so that a test stays in its part when others come."""
    text = config.getoption("part")
    part, parts = map(int, text.split("/")) if re.fullmatch(r"\d+/\d+", text) else (0, 0)
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"--part {text}: no part; the second of three is 2/3")
    if parts > 1:
        kept, left = [], []
        for item in items:
            (kept if crc32(item.nodeid.encode()) % parts == part - 1 else left).append(item)
        config.hook.pytest_deselected(items=left)
        items[:] = kept


#: The marks of all tests of a file.
_FILES_MARKS = re.compile(r"^pytestmark = (?:\[[^\]]*\]|.*$)", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files whose tests all have a mark out of a run without it: importing them would take a good part of it."""
    without = re.findall(r"not (breadth|library)\b", config.getoption("markexpr"))
    if not without or not collection_path.match("test_*.py"):
        return None
    marks = _FILES_MARKS.search(collection_path.read_text(encoding="utf-8"))
    return True if marks and re.search(rf"\bpytest\.mark\.({'|'.join(without)})\b(?!\()", marks[0]) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Remove the mark `breadth` from the parameters that `make test` runs too.

    `@pytest.mark.breadth(but=("id",))` names them; with `@pytest.mark.breadth(every=4)` they are each fourth.
    """
    item.own_markers = [mark for mark in item.own_markers if mark.name != "breadth" or not _is_core(item, mark)]


def _is_core(item: pytest.Item, mark: pytest.Mark) -> bool:
    case = getattr(item, "callspec", None)
    if case is None:
        return False
    # Of a grid each row and each column stays, where `every` is not larger than the shorter of them.
    place = sum(_place(grid, case.params) for grid in item.iter_markers("parametrize"))
    return case.id in mark.kwargs.get("but", ()) or ("every" in mark.kwargs and place % mark.kwargs["every"] == 0)


def _place(grid: pytest.Mark, params: Mapping[str, object]) -> int:
    """Return the place of a case's values in the list of a `parametrize`."""
    names = grid.args[0].replace(",", " ").split() if isinstance(grid.args[0], str) else grid.args[0]
    rows = [row.values if isinstance(row, ParameterSet) else row if len(names) > 1 else (row,) for row in grid.args[1]]
    return next(place for place, row in enumerate(rows) if row[0] is params[names[0]])


def pytest_collection_finish() -> None:
    """Give all tests GDAL's usual settings, which `penstock.maps` has changed for a process of its own.

    Keep what was imported and collected from the garbage collector: it stays until the end, and there is much.
    """
    if "GDAL_SKIP" in os.environ:
        from penstock.processors.geo.read.gdal import SKIPPED

        os.environ["GDAL_SKIP"] = SKIPPED
    gc.set_threshold(50_000)
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests measured: `record_property("figures", "...")`."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if name == "figures":
                terminalreporter.write_line(value)


@contextmanager
def same_logs() -> Iterator[None]:
    """Undo what was set up for all logs of the process meanwhile, such as an `Engine` that has them at errors only.

    Else later tests would write to a standard error that pytest has closed.
    """
    configured, before, root = structlog.is_configured(), structlog.get_config(), logging.getLogger()
    handlers = list(root.handlers)
    yield
    if configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()
    # Handlers of pytest's come and go by themselves; they are of other types.
    root.handlers[:] = [each for each in root.handlers if each in handlers or type(each) is not logging.StreamHandler]


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Undo what a test set up for all logs."""
    with same_logs():
        yield


@pytest.fixture(autouse=True, scope="module")
def logs_as_before_the_module() -> Iterator[None]:
    """Undo what fixtures of a module set up for all logs."""
    with same_logs():
        yield


@pytest.fixture(autouse=True, scope="module")
def frozen_imports() -> Iterator[None]:
    """Keep what a module of tests imported from the garbage collector too, which took a third of the time otherwise."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ceph]:
    """Return the run's S3 server. Without its programs the test is skipped, and fails in CI."""
    missing = missing_binaries()
    if missing:
        reason = f"needs Ceph, the S3 server of the tests (infra/apt.txt): no {', '.join(missing)}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    own = tmp_path_factory.getbasetemp()  # beside those of the run's other processes, where there are any
    with shared_ceph(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) as cluster:
        yield cluster


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
