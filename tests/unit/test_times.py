"""Times from outside: written out with their zone, and never taken for something that they do not say."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from penstock.json_body import sentence
from penstock.times import Time

TIMES: TypeAdapter[datetime] = TypeAdapter(Time)
SCHEMA = Draft202012Validator(TIMES.json_schema())

NO_TIME = "must be a time such as 2026-01-31T12:00:00Z"
NO_ZONE = "must have a time zone, such as Z"


@pytest.mark.parametrize(
    ("text", "offset_h"),
    [
        ("2024-04-02T16:50:00Z", 0),
        ("2024-04-02t16:50:00.000z", 0),
        ("2024-04-02T16:50Z", 0),
        ("2024-04-02T19:50:00+03:00", 3),
        ("2024-04-02T08:50:00,000-0800", -8),
    ],
)
def test_a_time_with_its_zone_is_what_it_says(text: str, offset_h: int) -> None:
    found = TIMES.validate_python(text)
    assert found == datetime.fromisoformat("2024-04-02T16:50:00+00:00")
    assert found.utcoffset() == timedelta(hours=offset_h)
    assert SCHEMA.is_valid(text)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *((number, NO_TIME) for number in (2020, 2020.5, 0, -1, True, None, "2020", "1577836800", "1.5", "-5", "+5")),
        *((text, NO_TIME) for text in ("", "now", "20240402T165000Z", "2024-04-02 16:50:00Z", "2024-04-02Z")),
        ("2024-04-02T16:50:00Z\n", NO_TIME),
        ("\u0662024-04-02T16:50:00Z", NO_TIME),
        *((text, NO_ZONE) for text in ("2024-04-02", "2024-04-02T16:50", "2024-04-02T16:50:00.5")),
    ],
)
def test_what_is_no_time_or_of_no_zone_is_refused_in_words(given: Any, said: str) -> None:
    assert refusal(given) == said
    assert given == "2024-04-02T16:50:00Z\n" or not SCHEMA.is_valid(given)


@pytest.mark.parametrize("text", ["2024-13-02T16:50:00Z", "2024-02-30T16:50:00Z", "2024-04-02T25:00:00Z"])
def test_a_time_that_never_was_is_refused(text: str) -> None:
    assert refusal(text).startswith("must be a valid datetime")


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"])
def test_a_time_that_utc_cannot_tell_is_refused(text: str) -> None:
    assert refusal(text) == "must lie in the years 1 to 9999 of UTC"


def test_a_program_may_give_a_time_as_such() -> None:
    time = datetime.fromisoformat("2024-04-02T16:50:00+02:00")
    assert TIMES.validate_python(time) == time
    assert refusal(time.replace(tzinfo=None)) == NO_ZONE


def refusal(given: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        TIMES.validate_python(given)
    [error] = refused.value.errors(include_context=False)
    return sentence(error)
