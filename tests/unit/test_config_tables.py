"""Tables of the settings that cannot work are refused where they are read, with the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from penstock.config import Settings, load_settings
from penstock.config_tables import S3, DropRule
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("nan", "input: radiometry.0.scale is not a number (drop rule 'inbox')"),
        ("inf", "input: radiometry.0.scale is too large a number (drop rule 'inbox')"),
        ("-inf", "input: radiometry.0.scale is too large a number (drop rule 'inbox')"),
        ("1_000_000_000_000_000_000_000", "input: radiometry.0.scale is too large a number (drop rule 'inbox')"),
        ("2026-11-22", "input: radiometry.0.scale is a date, which JSON does not have: write a text in quotes"),
        ('"\\u0000"', "input: radiometry.0.scale holds a character that is not text (drop rule"),
    ],
)
def test_an_input_of_a_rule_that_no_job_could_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    (tmp_path / "penstock.toml").write_text(
        "[[drops]]\nname = 'inbox'\nbucket = 's3://b'\nmodel = 'm'\nprefix = 'in/'\noutput_prefix = 'out/'\n"
        f"[[drops.input.radiometry]]\nscale = {value}\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        load_settings()
    assert refused.value.detail.startswith(f"the settings are invalid: drops.0.{said}")


def test_an_input_of_a_rule_may_hold_whatever_json_holds() -> None:
    given = {"bands": ["a", "b"], "scale": 1e-4, "offset": -3, "clip": True, "note": None, "more": {"x": []}}
    rule = DropRule(name="inbox", bucket="s3://b", model="m", prefix="a/", output_prefix="b/", input=given)
    assert rule.input == given


@pytest.mark.parametrize("url", ["/srv/scenes", "srv", "s3://", "file://host/folder", "https://h/b", "file:"])
def test_a_store_has_an_address_that_can_be_opened(url: str) -> None:
    with pytest.raises(ValidationError, match="neither s3://bucket nor file:///folder"):
        DropRule(name="inbox", bucket=url, model="m", prefix="a/", output_prefix="b/")
    with pytest.raises(ValidationError, match="neither s3://bucket nor file:///folder"):
        Settings(object_store=url)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/prefix", "file:///folder", "file://localhost/folder"])
def test_buckets_and_folders_are_stores(url: str) -> None:
    assert Settings(object_store=url).object_store == url


def test_an_s3_service_has_an_address_with_its_scheme() -> None:
    with pytest.raises(ValidationError, match="localhost:9000"):
        S3(endpoint_url="localhost:9000")
    assert S3(endpoint_url="http://localhost:9000").endpoint_url
