"""Settings that cannot work are refused where they are read, with the place."""

from __future__ import annotations

import subprocess
import sys
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Settings, is_loopback, load_settings, require_safe_access
from penstock.config_tables import DropRule, TenantLimits
from penstock.errors import ConfigError
from penstock.up.supervisor import check, up


@pytest.mark.breadth(every=3)
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"port = 8080\nhost 1\n", "penstock: penstock.toml line 2: Expected '='"),
        (b'host = "x', "penstock: penstock.toml: Unterminated string"),
        (b"host = '\xff'\n", "penstock: penstock.toml is not UTF-8"),
        (b"port = 70000\n", "penstock: the settings are invalid: port: must be less than or equal to 65535\n"),
        (b"nothing = 1\n", "penstock: the settings are invalid: nothing: is not known\n"),
        (
            b'object_store = "disk"\n',
            "penstock: the settings are invalid: object_store: 'disk' is neither s3://bucket nor",
        ),
        (b'host = "0.0.0.0"\naccess = "open"\n', "penstock: host is 0.0.0.0, but without API keys"),
        (b'host = "0.0.0.0"\n', "penstock: host is 0.0.0.0, every address of this machine: set public_url"),
        (b'models = ["none.toml"]\n', "penstock: cannot read the catalogue none.toml"),
    ],
)
def test_what_cannot_work_stops_the_start_with_one_sentence(tmp_path: Path, text: bytes, sentence: str) -> None:
    (tmp_path / "penstock.toml").write_bytes(text)

    done = penstock(tmp_path, "up")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["penstock.toml"]


def test_a_variable_that_should_be_json_is_named(tmp_path: Path) -> None:
    done = penstock(tmp_path, "up", PENSTOCK_DROPS="[")

    assert done.returncode == 2
    assert 'field "drops"' in done.stderr
    assert "Traceback" not in done.stderr


def test_rules_that_would_replace_each_others_results_are_not_started() -> None:
    common: dict[str, Any] = {"bucket": "s3://b", "model": "m", "output_prefix": "out/"}
    rules = (DropRule(name="one", prefix="a/", **common), DropRule(name="two", prefix="b/", **common))

    with pytest.raises(ConfigError, match=r"'two'.*'one'"):
        check(Settings(drops=rules))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "penstock.example"])
def test_nothing_is_started_for_others_than_this_machine(host: str, tmp_path: Path) -> None:
    settings = Settings(host=host, data=tmp_path / "data", access="open")

    with pytest.raises(ConfigError, match="without API keys"):
        require_safe_access(settings)
    with pytest.raises(ConfigError, match="without API keys"):
        up(settings, lambda _who, _what: None)
    assert not settings.data.exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_who_listens_everywhere_says_where_links_lead(host: str) -> None:
    with pytest.raises(ConfigError, match="public_url"):
        require_safe_access(Settings(host=host))
    require_safe_access(Settings(host=host, public_url="https://maps.test"))


@pytest.mark.parametrize(
    ("given", "with_keys"),
    [
        ({}, False),
        ({"host": "::1"}, False),
        ({"public_url": "http://localhost:8080"}, False),
        ({"host": "10.0.0.1"}, True),
        ({"host": "0.0.0.0"}, True),
        ({"public_url": "https://maps.test"}, True),  # a proxy stands before it
        ({"public_url": "https://maps.test", "access": "open"}, False),
        ({"access": "keys"}, True),
    ],
)
def test_keys_are_asked_for_wherever_others_can_reach_the_service(given: dict[str, Any], with_keys: bool) -> None:
    assert Settings(**given).with_keys is with_keys


def test_a_tenants_limits_are_its_own_or_those_for_all() -> None:
    settings = Settings(
        tenants={"acme": TenantLimits(max_jobs=5, max_running=2, max_upload_bytes=7)}, max_tenant_jobs=9,
        max_body_bytes=11, max_upload_bytes=13,
    )  # fmt: skip

    assert (settings.max_jobs("acme"), settings.max_jobs("other")) == (5, 9)
    assert (settings.body_limit_bytes("acme"), settings.upload_limit_bytes("acme")) == (11, 7)
    assert settings.upload_limit_bytes("other") == 13
    assert settings.running_caps == {"acme": 2}


def test_a_tenants_limits_stand_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[tenants.acme]\nmax_jobs = 5\n")
    code = "from penstock.config import load_settings; print(load_settings().max_jobs('acme'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "5\n"


def test_a_byte_order_mark_before_the_settings_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "penstock.toml").write_bytes(BOM_UTF8 + b"max_tenant_jobs = 5\n")
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "penstock.toml"))
    assert load_settings().max_tenant_jobs == 5


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "a.localhost"])
def test_this_machine_has_several_names(host: str) -> None:
    assert is_loopback(host)


def penstock(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_an_unknown_setting_suggests_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "penstock.toml").write_text("retention = 3\nnothing_like_it = 1\n")
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "penstock.toml"))
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert "retention: is not known (did you mean retention_s?)" in str(caught.value)
    assert "nothing_like_it: is not known" in str(caught.value)
