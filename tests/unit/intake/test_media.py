"""Inputs that a job may name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import Settings
from penstock.config_tables import DropRule
from penstock.errors import MediaNotFound, MediaRefused
from penstock.intake.addresses import WebAddress
from penstock.intake.local_media import safe_name
from penstock.intake.media import (
    JobArtifact,
    Reference,
    S3Object,
    UploadReference,
    parse_reference,
    readable,
    upload_key,
)

JOB = "0195c0de-0000-7000-8000-00000000000a"
SETTINGS = Settings(
    object_store="s3://own/prefix",
    s3_input_buckets=("scenes", "own"),
    allowed_hosts=("data.example:443",),
    drops=(DropRule(name="inbox", bucket="s3://drops", prefix="in/", model="m", output_prefix="out/", tenant="acme"),),
)


def parse(reference: str, tenant: str = "acme") -> Reference:
    return parse_reference(reference, tenant=tenant, settings=SETTINGS)


@pytest.mark.parametrize(
    ("reference", "parsed"),
    [
        ("media://0198-a_B/scene.tif", UploadReference("tenants/acme/uploads/0198-a_B/scene.tif")),
        ("s3://scenes/a b/ü.tif", S3Object("scenes", "a b/ü.tif")),
        ("s3://scenes/a.tif#etag=abc-2", S3Object("scenes", "a.tif", "abc-2")),
        ("s3://scenes/a#b.tif", S3Object("scenes", "a#b.tif")),
        ("s3://drops/in/a.tif", S3Object("drops", "in/a.tif")),
        ("s3://own/other/a.tif", S3Object("own", "other/a.tif")),
        (f"job://{JOB.upper()}/é a.tif", JobArtifact(JOB, "é a.tif")),
        ("https://data.example/a.tif?x=1", WebAddress("https", "data.example", 443, "/a.tif?x=1", exempt=True)),
    ],
)
def test_a_reference_is_read_once(reference: str, parsed: Reference) -> None:
    assert parse(reference) == parsed


def test_an_upload_is_looked_for_under_the_asking_tenant_alone() -> None:
    assert parse("media://1/a.tif", "other") == UploadReference("tenants/other/uploads/1/a.tif")


@pytest.mark.parametrize("reference", ["abc", "scene.tif", "/etc/passwd", "media:/1/a.tif", ""])
def test_what_is_no_reference_is_told_what_one_is(reference: str) -> None:
    with pytest.raises(MediaRefused, match=r"media://UPLOAD/NAME \(upload a local file first\), s3://"):
        parse(reference)


@pytest.mark.parametrize(
    "reference",
    [
        "media://",
        "media://1",
        "media://1/",
        "media:///a.tif",
        "media://../a.tif",
        "media://1/..",
        "media://1/../../../other/uploads/1/a.tif",
        "media://1/a/b.tif",
        "media://1/.hidden",
        "media://1/ü.tif",
    ],
)
def test_what_cannot_be_an_upload_is_not_found(reference: str) -> None:
    with pytest.raises(MediaNotFound):
        parse(reference)


@pytest.mark.parametrize(
    "reference",
    [
        "s3://closed/a.tif",
        "s3://scenes",
        "s3://scenes/",
        "s3://SCENES/a.tif",
        "s3://drops/out/a.tif",
        "s3://own/prefix/tenants/other/uploads/1/a.tif",
        "file:///etc/passwd",
        "/etc/passwd",
        "/vsicurl/http://example.com/a.tif",
        "scene.tif",
        "https://other.example/a.tif",
    ],
)
def test_what_is_not_allowed_is_refused(reference: str) -> None:
    with pytest.raises(MediaRefused):
        parse(reference)


def test_another_tenants_drop_rule_opens_no_bucket() -> None:
    with pytest.raises(MediaRefused):
        parse("s3://drops/in/a.tif", "other")


def test_a_store_without_prefix_keeps_its_tenants_apart_too() -> None:
    settings = Settings(object_store="s3://own", s3_input_buckets=("own",))
    with pytest.raises(MediaRefused):
        parse_reference("s3://own/tenants/other/a.tif", tenant="acme", settings=settings)


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("scene.tif", "scene.tif"),
        ("/etc/pass wd", "pass_wd"),
        ("C:\\maps\\Übersicht (1).TIF", "Ubersicht_1_.TIF"),
        ("../../..", "upload"),
        (".hidden", "hidden"),
        ("", "upload"),
        ("日本.tif", "日本.tif"),
        ("猫.png", "猫.png"),
        ("Кадр №1 — Å.tif", "Кадр_No1_A.tif"),
        ("บ้าน.jpg", "บ้าน.jpg"),
        ("a\u202egpj.tif", "agpj.tif"),
        ("a__b.tif", "a__b.tif"),
        ("x" * 200 + ".tif", "x" * 96 + ".tif"),
        ("図" * 200 + ".tif", "図" * 32 + ".tif"),
        ("a\0b\nc", "a_b_c"),
        ("folder/", "upload"),
    ],
)
def test_an_uploads_name_is_made_safe(filename: str, name: str) -> None:
    assert safe_name(filename) == name
    assert safe_name(name) == name
    assert upload_key("acme", "1", name) == f"tenants/acme/uploads/1/{name}"


@given(st.text(max_size=150))
def test_a_safe_name_stays_as_it_is(filename: str) -> None:
    name = safe_name(filename)
    assert safe_name(name) == name
    assert 1 <= len(name.encode()) <= 100
    assert not set(name) & set("/\\\0")


def test_of_several_addresses_those_with_a_profile_come_first() -> None:
    profiles = [
        {"name": "a", "kind": "s3", "buckets": ["landsat"], "unsigned": True, "tenants": ["acme"]},
        {"name": "b", "kind": "bearer", "hosts": ["login.example.org"], "secret": {"env": "X"}},
    ]
    settings = Settings(allowed_hosts=("data.example:443",), access_profiles=profiles)
    addresses = [
        "https://far.example.org/a.tif", "https://data.example/a.tif", "ftp://x/a.tif", "s3://landsat/a.tif",
        "https://login.example.org/a.tif",
    ]  # fmt: skip
    ordered = {tenant: readable(addresses, tenant=tenant, settings=settings) for tenant in ("acme", "other")}
    assert ordered["acme"] == ["s3://landsat/a.tif", "https://login.example.org/a.tif", "https://data.example/a.tif"]
    assert ordered["other"] == ["https://login.example.org/a.tif", "https://data.example/a.tif"]
    assert readable(addresses[:1], tenant="acme", settings=settings) == addresses[:1]  # its fetch says why not
