"""Listeners of log lines and prints: only of their own context."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from io import StringIO

import pytest
import structlog

from penstock.errors import InvalidInput
from penstock.json_body import parse_json
from penstock.observation import log
from penstock.observation.listening import (
    MAX_BYTES,
    MAX_LINE_CHARS,
    MAX_LINES,
    HeardStream,
    RecentLines,
    error_of,
    listener,
    listening,
    place_of,
    text_of,
)


class Heard(list[tuple[str, str]]):
    """The heard lines."""

    def __call__(self, level: str, text: str) -> None:
        self.append((level, text))


@pytest.fixture
def out() -> Iterator[StringIO]:
    out = StringIO()
    log.configure(stream=out)
    yield out
    log.configure()


def test_lines_of_structlog_logging_and_warnings_are_heard_without_ids_and_secrets(out: StringIO) -> None:
    heard = Heard()
    with structlog.contextvars.bound_contextvars(job="default/a"), listening(heard):
        structlog.get_logger().warning("it.began", tiles=3, password="hunter2")
        logging.getLogger("library").error("see %s", "https://h/x?X-Amz-Signature=abc")
        logging.getLogger("py.warnings").warning("UserWarning: old")
    assert heard == [
        ("warning", "it.began tiles=3 password=[redacted]"), ("error", "see https://h/x?[redacted]"),
        ("warning", "UserWarning: old"),
    ]  # fmt: skip
    assert len(out.getvalue().splitlines()) == 3  # the service's own log has them too


def test_of_a_traceback_only_the_last_line_is_heard(out: StringIO) -> None:
    heard = Heard()
    with listening(heard):
        try:
            raise ValueError("no such band")  # noqa: TRY301
        except ValueError:
            structlog.get_logger().exception("it.failed")
    place = "(test_listening.py:63 in test_of_a_traceback_only_the_last_line_is_heard)"
    assert heard == [("error", f"it.failed: ValueError: no such band {place}")]
    assert "Traceback" in out.getvalue()


def test_prints_are_heard_line_by_line_as_a_terminal_shows_them() -> None:
    heard, below = Heard(), StringIO()
    stream = HeardStream(below, "info")
    print("unheard", file=stream)  # type: ignore[call-overload]
    with listening(heard):
        stream.write("a b")
        stream.write("c\n\n10 %\r50 %\r100 %\nno end")
    assert heard == [("info", "a bc"), ("info", "100 %"), ("info", "no end")]
    assert below.getvalue() == "unheard\na bc\n\n10 %\r50 %\r100 %\nno end"


def test_another_thread_is_not_heard_unless_it_listens_for_the_context(out: StringIO) -> None:  # noqa: ARG001
    heard = Heard()

    def say(text: str, whose: object = None) -> None:
        with listening(whose):  # type: ignore[arg-type]
            structlog.get_logger().info(text)

    with listening(heard):
        for args in (("own",), ("for it", listener())):
            thread = threading.Thread(target=say, args=args)
            thread.start()
            thread.join()
    structlog.get_logger().info("afterwards")
    assert heard == [("info", "for it")]


def test_a_listener_that_fails_or_logs_harms_nothing(out: StringIO) -> None:
    def fail(_level: str, _text: str) -> None:
        structlog.get_logger().info("from.inside")
        raise OSError("the disk is full")

    with listening(fail):
        structlog.get_logger().info("it.began")
    assert [line.count("it.began") for line in out.getvalue().splitlines()] == [0, 1]


def test_a_long_line_is_shortened(out: StringIO) -> None:  # noqa: ARG001
    heard = Heard()
    with listening(heard):
        structlog.get_logger().info("x" * 10_000)
    assert len(heard[0][1]) == MAX_LINE_CHARS + 1


def told(recent: RecentLines, text: str, **fields: object) -> None:
    recent.keep(None, "info", {"event": text, "level": "info", **fields})


def test_lines_have_the_ids_of_their_job_and_model_and_no_secrets() -> None:
    recent = RecentLines()
    log.configure(stream=StringIO(), recent=recent)
    structlog.get_logger("x").warning("job.retried", job="acme/1", model="csmask", api_key="penstock_x", tries=2)
    [line] = recent.read()[1]
    assert (line.level, line.text) == ("warning", "job.retried api_key=[redacted] tries=2 job=acme/1 model=csmask")


def test_the_latest_lines_are_kept_and_all_are_counted() -> None:
    recent = RecentLines()
    for number in range(MAX_LINES + 5):
        told(recent, f"line {number}")
    count, lines = recent.read()
    assert (count, len(lines), lines[0].text, lines[-1].text) == (
        MAX_LINES + 5, MAX_LINES, "line 5", f"line {MAX_LINES + 4}",
    )  # fmt: skip


def test_long_lines_leave_room_for_fewer() -> None:
    recent = RecentLines()
    for number in range(100):
        told(recent, f"{number} " + "ä" * 1_000)
    _, lines = recent.read()
    assert sum(len(line.text.encode()) for line in lines) <= MAX_BYTES
    assert lines[-1].text.startswith("99 ")
    assert len(lines) == MAX_BYTES // 2_003


def raised(fault: Callable[[], object]) -> str:
    with pytest.raises(Exception) as found:  # noqa: PT011
        fault()
    return "".join(traceback.format_exception(found.value))


def of_their_own() -> None:
    raise ValueError("boom\nof two lines")


def by_a_library() -> None:
    int("no number")
    raise AssertionError


def by_the_standard_library() -> None:
    import json

    json.loads("{")


def wrapped() -> None:
    try:
        by_a_library()
    except ValueError as error:
        raise InvalidInput("no") from error


def deep_in_penstock() -> None:
    parse_json(b"{")


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (of_their_own, "of_their_own"),
        (by_a_library, "by_a_library"),
        (by_the_standard_library, "by_the_standard_library"),
        (wrapped, "wrapped"),
        (deep_in_penstock, "deep_in_penstock"),
    ],
)
def test_the_place_is_the_innermost_frame_of_the_authors_own_code(fault: Callable[[], object], name: str) -> None:
    place = place_of(raised(fault)) or ""
    file, _, where = place.partition(":")
    assert (file, where.partition(" in ")[2]) == ("test_listening.py", name)


def test_without_own_code_the_innermost_frame_is_named() -> None:
    frames = '  File "/v/site-packages/x/a.py", line 3, in run\n  File "/v/site-packages/y/b.py", line 7, in go\n'
    assert place_of(f"Traceback (most recent call last):\n{frames}ValueError: boom") == "b.py:7 in go"
    assert place_of("ValueError: boom") is None
    assert (error_of("a\n\nValueError: boom\n"), error_of("")) == ("ValueError: boom", "")


def test_a_line_of_a_job_names_the_place_and_the_model_and_no_folder() -> None:
    trace = "Traceback (most recent call last):\n  File \"/srv/secret/mine.py\", line 12, in prepare\nKeyError: 'b'"
    event = {"event": "processor.failed", "level": "error", "model": "mine", "job": "default/1", "exception": trace}
    assert text_of(event) == "processor.failed: KeyError: 'b' (mine.py:12 in prepare, model mine)"
