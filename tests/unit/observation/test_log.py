"""Contents of the log: fields that get in, and secrets that do not."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from penstock.observation.log import HIDDEN, configure, log_uncaught, plain, redact_text


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    stream = io.StringIO()
    configure("info", stream=stream)
    yield stream
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


def only(stream: io.StringIO) -> dict[str, Any]:
    """Return the one line that was logged."""
    (line,) = stream.getvalue().splitlines()
    record: dict[str, Any] = json.loads(line)
    return record


def test_a_line_is_an_event_with_its_ids(lines: io.StringIO) -> None:
    structlog.get_logger("x").info("attempt.started", job="default/1", attempt=2)

    record = only(lines)
    assert record["event"] == "attempt.started"
    assert (record["job"], record["attempt"], record["level"]) == ("default/1", 2, "info")
    assert record["at"].endswith("Z")


def test_what_is_below_the_level_is_left_out(lines: io.StringIO) -> None:
    structlog.get_logger().debug("too.small")
    logging.getLogger("somebody").debug("too small")

    assert lines.getvalue() == ""


def test_libraries_log_the_same_way(lines: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("cannot reach %s", "redis://:hunter2@127.0.0.1:6379/0")

    record = only(lines)
    assert record["logger"] == "uvicorn.error"
    assert record["event"] == f"cannot reach redis://{HIDDEN}@127.0.0.1:6379/0"


def test_secrets_are_hidden_by_name_at_any_depth(lines: io.StringIO) -> None:
    structlog.get_logger().info("x", secret="s", headers={"webhook-signature": "v1,abc", "accept": "a"}, tokens=3)

    record = only(lines)
    assert record["secret"] == HIDDEN
    assert record["headers"] == {"webhook-signature": HIDDEN, "accept": "a"}
    assert record["tokens"] == 3


def test_an_exception_keeps_its_traceback_and_loses_its_secrets(lines: io.StringIO) -> None:
    error = RuntimeError("GET https://bucket.test/k?X-Amz-Signature=abc failed")
    structlog.get_logger().error("fetch.failed", exc_info=error)

    text = only(lines)["exception"]
    assert "abc" not in text
    assert f"https://bucket.test/k?{HIDDEN} failed" in text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("see https://h.test/a/b?sig=1&x=2.", f"see https://h.test/a/b?{HIDDEN}"),
        (
            '"GET /v1/local/k?expires=9&signature=abc HTTP/1.1"',
            f'"GET /v1/local/k?expires=9&signature={HIDDEN} HTTP/1.1"',
        ),
        ("redis://user:pw@h:6379/0", f"redis://{HIDDEN}@h:6379/0"),
        ("key whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw ends", f"key {HIDDEN} ends"),
        ("s3://bucket/key.tif and mail@host.test", "s3://bucket/key.tif and mail@host.test"),
    ],
)
def test_what_a_text_loses(text: str, clean: str) -> None:
    assert redact_text(text) == clean


def test_an_api_key_is_hidden_and_its_id_is_not(lines: io.StringIO) -> None:
    key = "penstock_k3v09x1m2qwe4r_" + "aB3" * 15 + "x"
    structlog.get_logger().info("said", text=f"Bearer {key} and more")
    logging.getLogger("library").warning("sent %s", key)

    said = lines.getvalue()
    assert "aB3" not in said
    assert said.count("penstock_k3v09x1m2qwe4r_") == 2


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abc.def-1", f"Authorization: Bearer {HIDDEN}"),
        ("AWS4-HMAC-SHA256 Credential=A/b, SignedHeaders=host, Signature=f00", f"AWS4-HMAC-SHA256 {HIDDEN}"),
        ("/k?AWSAccessKeyId=A1&Signature=x&sig=y", f"/k?AWSAccessKeyId={HIDDEN}&Signature={HIDDEN}&sig={HIDDEN}"),
        ("/k?X-Amz-Security-Token=t&x=1", f"/k?X-Amz-Security-Token={HIDDEN}&x=1"),
    ],
)
def test_what_a_header_or_a_path_loses(text: str, clean: str) -> None:
    assert redact_text(text) == clean


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\nb", "a\x1b[31m", "a\x9b31m", "a\u2028b", "a\x85b", "a\u202eb", "a\udc80", "a\0"]
)
def test_no_text_ends_a_line_or_controls_a_terminal(lines: io.StringIO, text: str) -> None:
    structlog.get_logger().info(text, value=text, name=[text])
    logging.getLogger("somebody").warning("%s", text)

    assert all(0x20 <= ord(c) < 0x7F or c == "\n" for c in lines.getvalue())
    first, second = map(json.loads, lines.getvalue().splitlines())
    assert (first["event"], first["value"], first["name"], second["event"]) == (text, text, [text], text)


def test_a_terminal_shows_what_would_control_it() -> None:
    assert plain("a\n\x1b[31m\x9b\u2028\udc80ü") == "a\\n\\x1b[31m\\x9b\\u2028\\udc80ü"
    assert plain("Traceback:\n  x\x1b", lines=True) == "Traceback:\n  x\\x1b"


def test_a_terminal_shows_the_trace_of_a_function_in_lines(lines: io.StringIO) -> None:
    shown = io.StringIO()
    configure("info", stream=shown, as_text=True)
    structlog.get_logger().error(
        "function.failed", error="x\ny", trace='\n  File "a.py", line 3, in f\n    1 / 0\x1b[2J\n'
    )

    assert '\n  File "a.py", line 3, in f\n    1 / 0\\x1b[2J' in shown.getvalue()
    assert "trace=" not in shown.getvalue()
    assert lines.getvalue() == ""


def test_the_pretty_log_of_a_terminal_cannot_be_controlled(lines: io.StringIO) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    configure("info", stream=terminal)
    structlog.get_logger().info("x", value="a\n2026 [error] forged\x1b[2J")

    assert "\x1b[2J" not in terminal.getvalue()
    assert len(terminal.getvalue().splitlines()) == 1
    assert lines.getvalue() == ""


def test_what_nobody_caught_is_a_line_too(lines: io.StringIO) -> None:
    def fail() -> None:
        raise ValueError("GET https://h.test/k?sig=abc")

    log_uncaught()
    thread = threading.Thread(target=fail, name="worker")
    thread.start()
    thread.join()

    record = only(lines)
    assert (record["event"], record["thread"], record["error"]) == ("thread.broke", "worker", "ValueError")
    assert "abc" not in record["exception"]
