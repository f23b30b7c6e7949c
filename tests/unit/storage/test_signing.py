"""Signed links and the secrets behind them."""

from __future__ import annotations

import base64
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, LinkRefused
from penstock.storage.signing import SignedLink, load_or_create_secret, new_webhook_secret, sign_link, verify_link

SECRET = "a secret"
GET = SignedLink("GET", "tenants/default/jobs/1/ü &+.tif", 1000, filename='my "map" ü.tif')
PUT = SignedLink("PUT", "tenants/default/uploads/1/scene.tif", 1000, size_bytes=42, content_type="image/tiff")


def query(link: SignedLink, secret: str = SECRET) -> dict[str, str]:
    return dict(parse_qsl(sign_link(secret, link)))


@pytest.mark.parametrize("link", [GET, PUT])
def test_a_link_says_what_was_signed_until_it_ends(link: SignedLink) -> None:
    assert verify_link(SECRET, link.method, link.key, query(link), at=999.9) == link
    with pytest.raises(LinkRefused):
        verify_link(SECRET, link.method, link.key, query(link), at=1000)


@pytest.mark.parametrize(
    "change",
    [
        {"size": "43"},
        {"size": "-1"},
        {"size": "42.0"},
        {"type": "text/html"},
        {"expires": "9999"},
        {"expires": "soon"},
        {"filename": "x"},
        {"signature": ""},
        {"signature": "ü"},
        {"signature": "0" * 64},
    ],
)
def test_a_changed_link_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(LinkRefused):
        verify_link(SECRET, "PUT", PUT.key, query(PUT) | change, at=0)


@pytest.mark.parametrize("missing", ["size", "type", "expires", "signature"])
def test_a_link_with_a_part_missing_is_refused(missing: str) -> None:
    with pytest.raises(LinkRefused):
        verify_link(SECRET, "PUT", PUT.key, {k: v for k, v in query(PUT).items() if k != missing}, at=0)


@pytest.mark.parametrize(
    ("method", "key"), [("GET", PUT.key), ("DELETE", PUT.key), ("PUT", PUT.key + "x"), ("PUT", "")]
)
def test_a_link_is_good_for_one_method_and_key(method: str, key: str) -> None:
    with pytest.raises(LinkRefused):
        verify_link(SECRET, method, key, query(PUT), at=0)


def test_another_secret_signs_nothing_here() -> None:
    with pytest.raises(LinkRefused):
        verify_link(SECRET, "PUT", PUT.key, query(PUT, "another secret"), at=0)


@given(st.text(), st.text(), st.text(), st.text())
def test_no_two_links_share_a_signature(key: str, name: str, other_key: str, other_name: str) -> None:
    link, other = replace(GET, key=key, filename=name), replace(GET, key=other_key, filename=other_name)
    assert (query(link)["signature"] == query(other)["signature"]) == (link == other)


def test_the_secret_is_made_once_and_is_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(load_or_create_secret, [path] * 8))
    assert secrets == {path.read_text()}
    assert len(path.read_text()) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_secret_that_cannot_be_had_is_the_operators_error(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match="empty"):
        load_or_create_secret(tmp_path / "empty")
    with pytest.raises(ConfigError, match="cannot"):
        load_or_create_secret(tmp_path / "empty" / "below")


def test_webhook_secrets_are_what_standard_webhooks_expects() -> None:
    first, second = new_webhook_secret(), new_webhook_secret()
    assert first != second
    assert first.startswith("whsec_")
    assert len(base64.b64decode(first.removeprefix("whsec_"), validate=True)) == 32
