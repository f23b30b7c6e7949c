"""The receiver's side of webhooks, against the reference implementation in both directions."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook as Reference

from penstock.storage.signing import new_webhook_secret
from penstock.webhooks import TOLERANCE_S, WebhookRefused, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"type": "job.succeeded", "data": {"id": "0199", "note": "\xc3\xbc \xe2\x82\xac"}}'
NOW = 1_700_000_000


def signed(body: bytes = BODY, *secrets: str, at: float = NOW, message_id: str = "msg_1") -> dict[str, str]:
    """Return the headers that the reference implementation makes."""
    moment = datetime.fromtimestamp(int(at), UTC)
    made = [Reference(secret).sign(message_id, moment, body.decode()) for secret in secrets or (SECRET,)]
    return {"webhook-id": message_id, "webhook-timestamp": str(int(at)), "webhook-signature": " ".join(made)}


def test_what_the_reference_signs_is_verified() -> None:
    assert verify(BODY, signed(), SECRET, at=NOW)["data"]["note"] == "ü €"
    assert verify(BODY.decode(), signed(), SECRET, at=NOW)["type"] == "job.succeeded"


def test_what_is_verified_here_the_reference_verifies() -> None:
    headers = signed(at=time.time())
    assert Reference(SECRET).verify(BODY, headers) == verify(BODY, headers, SECRET)


@given(st.binary(min_size=24, max_size=64), st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_any_secret_and_text_agree_with_the_reference(key: bytes, text: str) -> None:
    import base64
    import json

    secret, body = "whsec_" + base64.b64encode(key).decode(), json.dumps({"text": text}, ensure_ascii=False).encode()
    assert verify(body, signed(body, secret), secret, at=NOW) == {"text": text}


def test_while_a_secret_is_replaced_either_of_two_will_do() -> None:
    old, new = new_webhook_secret(), new_webhook_secret()
    for headers in (signed(BODY, old), signed(BODY, new), signed(BODY, old, new)):
        assert verify(BODY, headers, [new, old], at=NOW)
    assert verify(BODY, signed(BODY, old, new), new, at=NOW)
    with pytest.raises(WebhookRefused, match="no signature"):
        verify(BODY, signed(BODY, old, new), new_webhook_secret(), at=NOW)


@pytest.mark.parametrize("size", [24, 31, 32])
def test_a_secret_may_lack_its_padding(size: int) -> None:
    import base64

    padded = "whsec_" + base64.b64encode(bytes(range(size))).decode()
    bare = padded.rstrip("=")
    assert (bare == padded) is (size % 3 == 0)
    for signer, receiver in ((padded, bare), (bare, padded), (bare, bare)):
        assert verify(BODY, signed(BODY, signer), receiver, at=NOW)["type"] == "job.succeeded"


def test_headers_may_be_in_any_case() -> None:
    assert verify(BODY, {name.title(): value for name, value in signed().items()}, SECRET, at=NOW)


def other(name: str, value: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda headers: {**headers, name: value}


@pytest.mark.parametrize(
    "change",
    [
        other("webhook-id", "msg_2"),
        other("webhook-timestamp", str(NOW + 1)),
        other("webhook-timestamp", "soon"),
        other("webhook-signature", ""),
        other("webhook-signature", "v1,"),
        other("webhook-signature", "v1,ü"),
        lambda headers: {**headers, "webhook-signature": headers["webhook-signature"].replace("v1,", "v1a,")},
        lambda headers: {name: value for name, value in headers.items() if name != "webhook-id"},
        lambda _headers: {},
    ],
)
def test_changed_headers_are_refused(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    with pytest.raises(WebhookRefused):
        verify(BODY, change(signed()), SECRET, at=NOW)


@pytest.mark.parametrize("body", [BODY + b" ", BODY[:-1], b"", BODY.replace(b"0199", b"0198")])
def test_a_changed_body_is_refused(body: bytes) -> None:
    with pytest.raises(WebhookRefused, match="no signature"):
        verify(body, signed(), SECRET, at=NOW)


@pytest.mark.parametrize("body", [b"[]", b"{", b"1"])
def test_a_body_that_is_no_object_is_refused_although_it_is_signed(body: bytes) -> None:
    with pytest.raises(WebhookRefused, match="JSON"):
        verify(body, signed(body), SECRET, at=NOW)


@pytest.mark.parametrize("offset_s", [TOLERANCE_S + 1, -TOLERANCE_S - 1])
def test_what_is_old_or_from_the_future_is_refused(offset_s: float) -> None:
    verify(BODY, signed(), SECRET, at=NOW + offset_s * 0.99)
    with pytest.raises(WebhookRefused, match=r"301 s"):
        verify(BODY, signed(), SECRET, at=NOW + offset_s)
    assert verify(BODY, signed(), SECRET, at=NOW + offset_s, tolerance_s=1000)


@pytest.mark.parametrize("secrets", ["", "whsec_", "whsec_?", "whsec_A", "whsec_AAAAA", [], [SECRET, "nonsense!"]])
def test_a_secret_that_is_none_is_the_receivers_own_mistake(secrets: Any) -> None:
    with pytest.raises(ValueError, match="secret"):
        verify(BODY, signed(), secrets, at=NOW)


@pytest.mark.parametrize("part", ["id", "timestamp", "signature"])
@pytest.mark.parametrize("text", ["", "9" * 400, "1e9", "\udcff", "v1,\udcff", "٣"])
def test_nobody_makes_it_fail_otherwise(part: str, text: str) -> None:
    with pytest.raises(WebhookRefused):
        verify(BODY, signed() | {f"webhook-{part}": text}, SECRET, at=NOW)


def test_a_body_that_is_too_deep_is_refused() -> None:
    body = b"[" * 99_999
    with pytest.raises(WebhookRefused, match="JSON"):
        verify(body, signed(body), SECRET, at=NOW)


def test_a_secret_in_bytes_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="str"):
        verify(BODY, signed(), SECRET.encode(), at=NOW)  # type: ignore[arg-type]


def test_it_needs_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; before = set(sys.modules); import penstock.webhooks; "
        "print(sorted({n.partition('.')[0] for n in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['penstock']"
