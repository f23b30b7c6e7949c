"""The hosts of a request."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.storage.redis.fetch_hosts import MAX_HOSTS, hosts_in, is_on_the_web


@pytest.mark.parametrize(
    ("value", "hosts"),
    [
        ({}, ""),
        ({"image": "media://up/a.png", "s3": "s3://bucket/key", "n": [1, 2.5, None, True]}, ""),
        ({"image": "https://host.example/a.png"}, "host.example"),
        ({"image": "HTTPS://Host.Example:8443/a?b#c"}, "host.example"),
        ({"image": "http://[::1]:80/"}, "[::1]"),
        ({"image": "http://127\u30020\uff0e0.1./"}, "127.0.0.1"),
        ({"image": "http://\uff48ost\u00a8.example/", "b": "http://./"}, ". host\u0308.example"),
        ({"items": [{"href": "http://a.example/"}, {"href": "http://a.example/2"}]}, "a.example"),
        ({"text": "see http://host.example", "bad": ["http://", "http:// a", "https:/a"]}, ""),
    ],
)
def test_every_text_that_is_a_web_address_names_its_host_once(value: dict[str, Any], hosts: str) -> None:
    assert hosts_in(value) == hosts


def test_the_hosts_are_bounded() -> None:
    found = hosts_in({"images": [f"http://{number}.example/" for number in range(1000)]})
    assert len(found.split()) == MAX_HOSTS


def test_an_input_of_any_depth_is_read() -> None:
    value: Any = "http://deep.example/"
    for _ in range(100_000):
        value = [value]
    assert hosts_in({"x": value}) == "deep.example"


@pytest.mark.parametrize(
    ("reference", "on_the_web"), [("HTTP://a/", True), ("media://a/b", False), ("s3://a/b", False)]
)
def test_a_reference_is_on_the_web_if_only_the_guard_can_fetch_it(reference: str, *, on_the_web: bool) -> None:
    assert is_on_the_web(reference) is on_the_web
