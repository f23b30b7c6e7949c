"""Listeners of log lines and prints: only of their own context."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from io import StringIO

import pytest
import structlog

from penstock.observation import log
from penstock.observation.listening import MAX_LINE_CHARS, HeardStream, listener, listening


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
    place = "(test_listening.py:49 in test_of_a_traceback_only_the_last_line_is_heard)"
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
