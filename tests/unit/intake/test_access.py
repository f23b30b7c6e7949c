"""The pure core of access profiles: the profile of an address, and its request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import Settings
from penstock.config_tables import AccessProfile
from penstock.errors import ConfigError
from penstock.intake.access import bucket_profile, container, profile_for, signature, with_credentials
from penstock.intake.addresses import WebAddress, check_url


def bearer(name: str, *hosts: str, tenants: tuple[str, ...] = ()) -> AccessProfile:
    return AccessProfile(name=name, kind="bearer", hosts=hosts, secret={"env": "X"}, tenants=tenants)


def address(url: str, *allowed: str) -> WebAddress:
    return check_url(url, allowed, any_public=True)


@pytest.mark.parametrize(
    ("pattern", "url", "fits"),
    [
        ("data.example.org", "https://data.example.org/a", True),
        ("data.example.org", "https://DATA.example.org:443/a", True),
        ("data.example.org", "https://other.example.org/a", False),
        ("data.example.org", "https://data.example.org.evil.net/a", False),
        ("data.example.org", "https://data.example.org:8443/a", False),
        ("data.example.org:8443", "https://data.example.org:8443/a", True),
        ("*.example.org", "https://a.b.example.org/a", True),
        ("*.example.org", "https://example.org/a", False),
        ("*.example.org", "https://badexample.org/a", False),
        ("data.example.org", "http://data.example.org/a", False),  # never in clear over the internet
        ("data.example.org:80", "http://data.example.org/a", False),
    ],
)
def test_a_profile_names_hosts(pattern: str, url: str, fits: bool) -> None:
    found = profile_for([bearer("a", pattern)], address(url), "acme")
    assert (found is not None) is fits


def test_credentials_go_over_http_only_to_a_host_of_allowed_hosts() -> None:
    own = address("http://127.0.0.1:9000/a", "127.0.0.1:9000")
    assert profile_for([bearer("a", "127.0.0.1:9000")], own, "acme") is not None
    assert profile_for([bearer("a", "[::1]:9000")], address("http://[::1]:9000/a", "[::1]:9000"), "acme") is not None


def test_a_tenants_own_profile_comes_first_and_no_tenant_has_none() -> None:
    profiles = [bearer("all", "a.b"), bearer("own", "a.b", tenants=("acme",)), bearer("second", "a.b")]
    at = address("https://a.b/")
    assert [getattr(profile_for(profiles, at, tenant), "name", None) for tenant in ("acme", "other", None)] == [
        "own", "all", None,
    ]  # fmt: skip
    assert profile_for(profiles[1:2], at, "other") is None


def test_buckets_are_named_or_share_a_beginning() -> None:
    profile = AccessProfile(name="a", kind="s3", buckets=("eodata", "sentinel-*"), unsigned=True)
    named = {
        name for name in ("eodata", "eodata2", "sentinel-cogs", "sentinel") if bucket_profile([profile], name, "t")
    }
    assert named == {"eodata", "sentinel-cogs"}


@pytest.mark.parametrize(
    ("target", "made"),
    [
        ("/a", "/a?token=s%26%23"),
        ("/a?b=1", "/a?b=1&token=s%26%23"),
        ("/a?token=old&b=1", "/a?b=1&token=s%26%23"),
        ("/a?b=1&&c", "/a?b=1&c&token=s%26%23"),
    ],
)
def test_a_query_token_replaces_an_older_one(target: str, made: str) -> None:
    profile = AccessProfile(name="a", kind="query", hosts=("a.b",), parameter="token", secret={"env": "X"})
    assert with_credentials(profile, WebAddress("https", "a.b", 443, target), "s&#").target == made


@given(st.lists(st.tuples(st.sampled_from(["se", "sig", "sv", "x", "size"]), st.text("ab", max_size=2)), max_size=5))
def test_a_new_signature_leaves_all_but_the_old_one(pairs: list[tuple[str, str]]) -> None:
    profile = AccessProfile(name="a", kind="planetary-computer", hosts=("*.blob.core.windows.net",))
    query = "&".join(f"{name}={value}" for name, value in pairs)
    at = WebAddress("https", "acc.blob.core.windows.net", 443, f"/box/a.tif?{query}")
    kept = [f"{name}={value}" for name, value in pairs if name in ("x", "size")]
    assert with_credentials(profile, at, "se=1&sig=2").target == f"/box/a.tif?{'&'.join([*kept, 'se=1&sig=2'])}"
    assert container(at) == ("acc", "box")


@pytest.mark.parametrize(
    "answer",
    [
        None, [], {}, {"token": "a"}, {"token": 1, "msft:expiry": "2026-01-01T00:00:00Z"},
        {"token": "a", "msft:expiry": "soon"}, {"token": "a", "msft:expiry": "2026-01-01T00:00:00"},
        {"token": "a b", "msft:expiry": "2026-01-01T00:00:00Z"}, {"token": "a\r\nX: y", "msft:expiry": "2026-01-01Z"},
        {"token": "a#b", "msft:expiry": "2026-01-01T00:00:00Z"},
    ],
)  # fmt: skip
def test_an_answer_without_a_signature_is_none(answer: Any) -> None:
    assert signature(answer) is None


def test_a_signature_has_its_end() -> None:
    assert signature({"token": "?se=1&sig=x%3D", "msft:expiry": "1970-01-01T00:01:00Z"}) == ("se=1&sig=x%3D", 60)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"kind": "bearer", "hosts": ["a.b"]}, "needs secret"),
        ({"kind": "basic", "hosts": ["a.b"], "secret": {"env": "X"}}, "needs username"),
        ({"kind": "bearer", "secret": {"env": "X"}}, "needs hosts"),
        ({"kind": "bearer", "hosts": ["a.b"], "secret": {"env": "X"}, "header": "X-Key"}, "has no header"),
        ({"kind": "s3", "buckets": ["abc"], "secret": {"env": "X"}}, "belong together"),
        ({"kind": "s3", "buckets": ["abc"], "unsigned": True, "requester_pays": True}, "neither keys"),
        ({"kind": "s3"}, "needs buckets"),
        ({"kind": "bearer", "hosts": ["*"], "secret": {"env": "X"}}, "pattern"),
        ({"kind": "bearer", "hosts": ["*.org"], "secret": {"env": "X"}}, "pattern"),
        ({"kind": "bearer", "hosts": ["a.b"], "secret": "s3cr3t"}, "secret"),
        ({"kind": "bearer", "hosts": ["a.b"], "secret": {"env": "X", "file": "/x"}}, "env"),
        ({"kind": "earthdata", "hosts": ["a.b"], "secret": {"env": "X"}, "service_url": "urs"}, "http"),
    ],
)
def test_a_profile_that_does_not_fit_its_kind_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Settings(access_profiles=[{"name": "a", **given}])


def test_settings_with_profiles_are_handed_on_to_processes() -> None:
    profiles = [
        {"name": "a", "kind": "header", "hosts": ["a.b"], "header": "X-Key", "secret": {"file": "x"}},
        {"name": "b", "kind": "s3", "buckets": ["eodata"], "unsigned": True},
    ]
    settings = Settings(access_profiles=profiles)
    dumped = settings.model_dump(mode="json")["access_profiles"]
    assert Settings(access_profiles=dumped).access_profiles == settings.access_profiles


def test_a_secret_is_read_from_its_place(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.config_tables import Secret

    monkeypatch.setenv("THEIR_TOKEN", "one")
    (tmp_path / "token").write_text("two\n")
    assert Secret(env="THEIR_TOKEN").read() == "one"
    assert Secret(file=tmp_path / "token").read() == "two"
    for wrong in ("", "  \n", "a\r\nX-Evil: b", "\u00fc"):
        (tmp_path / "token").write_text(wrong)
        with pytest.raises(ConfigError) as caught:
            Secret(file=tmp_path / "token").read()
        assert str(tmp_path / "token") in caught.value.detail
        assert not wrong.strip() or wrong.strip() not in caught.value.detail
    with pytest.raises(ConfigError, match="NOBODY_SET_THIS is not set"):
        Secret(env="NOBODY_SET_THIS").read()
