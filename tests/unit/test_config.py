"""Settings that cannot work are refused where they are read, with the place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from penstock.config import S3, DropRule, Settings, is_loopback, require_loopback
from penstock.errors import ConfigError
from penstock.up import up


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"port = 8080\nhost 1\n", "penstock: penstock.toml line 2: Expected '='"),
        (b'host = "x', "penstock: penstock.toml: Unterminated string"),
        (b"host = '\xff'\n", "penstock: penstock.toml is not UTF-8"),
        (b"port = 70000\n", "penstock: wrong settings: port: "),
        (b"nothing = 1\n", "penstock: wrong settings: nothing: "),
        (b'host = "0.0.0.0"\n', "penstock: host is 0.0.0.0, but without API keys"),
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


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "penstock.example"])
def test_nothing_is_started_for_others_than_this_machine(host: str, tmp_path: Path) -> None:
    settings = Settings(host=host, data=tmp_path / "data")

    with pytest.raises(ConfigError, match="without API keys"):
        require_loopback(settings)
    with pytest.raises(ConfigError, match="without API keys"):
        up(settings, lambda _who, _what: None)
    assert not settings.data.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "a.localhost"])
def test_this_machine_has_several_names(host: str) -> None:
    assert is_loopback(host)


def penstock(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
