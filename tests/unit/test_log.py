"""What gets into the log, and what does not."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from penstock.log import HIDDEN, configure, redact_text


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure("info", stream=stream)
    yield stream
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


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
