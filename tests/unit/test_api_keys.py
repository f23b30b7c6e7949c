"""The text of API keys, what is kept of them, and whom they admit."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api_keys import KeyRecord, Scope, admits, id_in, is_signed, new_key, parse, secret_fingerprint

SECRET = "of the service"
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def a_key(secret: str = SECRET, *, expires_s: float | None = None) -> tuple[KeyRecord, str]:
    return new_key(
        secret, tenant="acme", name="ci", scopes=[Scope.SUBMIT, Scope.READ], created_s=1.0, expires_s=expires_s
    )


def is_admitted(record: KeyRecord | None, text: str, *, secret: str = SECRET, at: float = 5.0) -> bool:
    given_text = parse(text)
    assert given_text is not None
    return admits(secret, record, given_text, at=at)


def test_a_key_is_recognised_by_its_prefix_and_a_checksum_that_needs_no_secret() -> None:
    _, text = a_key()

    body, checksum = text[:-6], text[-6:]
    number = 0
    for digit in checksum:
        number = number * 62 + DIGITS.index(digit)
    assert body.startswith("penstock_")
    assert number == zlib.crc32(body.encode())


def test_a_key_admits_and_its_record_does_not_hold_it() -> None:
    record, text = a_key()
    kept = json.dumps(record.to_json())

    assert is_admitted(record, text)
    assert is_admitted(KeyRecord.from_json(json.loads(kept)), text)
    chance = text.split("_")[2]
    assert not any(chance[at : at + 8] in kept for at in range(len(chance) - 8))


def test_no_two_keys_are_alike() -> None:
    made = [a_key() for _ in range(50)]
    assert len({record.id for record, _ in made}) == len({text.split("_")[2][:32] for _, text in made}) == 50


@given(st.integers(0, 68), st.sampled_from(DIGITS + "_-"))
def test_a_mistyped_key_is_no_key(at: int, character: str) -> None:
    _, text = a_key()
    changed = text[:at] + character + text[at + 1 :]
    assert (parse(changed) is None) == (changed != text)


@given(st.text(max_size=100))
def test_whatever_else_is_sent_is_no_key(text: str) -> None:
    assert parse(text) is None


def test_what_another_service_made_is_not_ours() -> None:
    record, text = a_key("of another service")
    given_text = parse(text)
    assert given_text is not None
    assert is_signed("of another service", given_text)
    assert not is_signed(SECRET, given_text)
    assert not is_admitted(record, text)


def test_a_lost_secret_ends_every_key() -> None:
    record, text = a_key()
    assert not is_admitted(record, text, secret="a new one")
    assert record.secret_mark == secret_fingerprint(SECRET) != secret_fingerprint("a new one")


def test_a_key_opens_no_other_record() -> None:
    (one, _), (_, other_text) = a_key(), a_key()
    given_text = parse(other_text)
    assert given_text is not None
    assert not is_admitted(one, other_text)
    assert not is_admitted(replace(one, id=given_text.id), other_text)
    assert not is_admitted(None, other_text)


@pytest.mark.parametrize(
    "change", [{"scopes": (Scope.ADMIN,)}, {"tenant": "other"}, {"expires_s": 99.0}, {"id": "k3v09x1m2qwe4r"}]
)
def test_who_writes_into_the_store_gives_no_key_more_rights(change: dict[str, object]) -> None:
    record, text = a_key(expires_s=9.0)
    assert is_admitted(record, text)
    assert not is_admitted(replace(record, **change), text)  # type: ignore[arg-type]


def test_a_key_ends_at_its_time_or_when_it_is_revoked() -> None:
    record, text = a_key(expires_s=9.0)
    assert is_admitted(record, text, at=8.999)
    assert not is_admitted(record, text, at=9.0)
    assert not is_admitted(replace(record, revoked_s=4.0), text)
    assert [record.state(at=8), record.state(at=9), replace(record, revoked_s=4.0).state(at=9)] == [
        "active", "expired", "revoked"
    ]  # fmt: skip


def test_a_key_is_found_by_its_id_or_its_text() -> None:
    record, text = a_key()
    assert id_in(text) == id_in(record.id) == record.id
    assert id_in("../webhook-secret") is None
