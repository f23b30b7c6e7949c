"""Sentences of the command line about a service that is waited for, or that does not answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from penstock.cli.options import UNAVAILABLE, Waits, host_and_port, needing
from penstock.client import PenstockAPIError, Unreachable

AWAY = Unreachable("no answer from http://127.0.0.1:9: Connection refused")
SCRIPT = Path(sys.executable).with_name("penstock")


def penstock(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, check=False, env={**kept, **variables})


def test_a_service_that_goes_away_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    waits = Waits(120)
    for pause_s in (0.2, 1, 2):
        waits(AWAY, pause_s)
    said = " ".join(capsys.readouterr().err.split())
    assert said == f"the service went away: {AWAY}; trying again for up to 120 s"


def test_a_wait_at_a_limit_says_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    limit = PenstockAPIError({"detail": "5 submissions a second are allowed", "retryable": True}, status=429)
    Waits(120)(limit, 12.4)
    said = " ".join(capsys.readouterr().err.split())
    assert said == "waiting 12 s at a limit of the service: 5 submissions a second are allowed"


def test_a_service_that_does_not_answer_is_asked_about() -> None:
    done = penstock("list", "--url", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (3, "")
    said = " ".join(done.stderr.split())
    assert said == (
        "penstock: no answer from http://127.0.0.1:9: Connection refused; is `penstock up` running? "
        "Else give its address with --url or PENSTOCK_URL"
    )


def test_a_missing_file_is_found_before_a_missing_service() -> None:
    for words in (("submit", "csmask", "none.tif"), ("upload", "none.tif")):
        done = penstock(*words, "--url", "http://127.0.0.1:9")
        assert done.returncode == 2
        assert "cannot read none.tif: No such file or directory" in done.stderr


def test_the_shell_completes_commands_and_asks_the_service_for_models() -> None:
    words = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": "penstock subm", "COMP_CWORD": "1"}
    assert penstock(**words).stdout.split() == ["submit"]
    away = {**words, "COMP_WORDS": "penstock submit cs", "COMP_CWORD": "2", "PENSTOCK_URL": "http://127.0.0.1:9"}
    assert penstock(**away).stdout.strip() == ""
    assert "--install-completion" in penstock("--help").stdout


def test_a_missing_package_of_an_extra_is_named_and_any_other_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, needing("tiles", "drawing tiles", "rio_tiler"):
        raise ModuleNotFoundError(name="rio_tiler")
    assert ended.value.exit_code == UNAVAILABLE
    assert "pip install 'penstock[tiles]'" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError), needing("tiles", "drawing tiles", "rio_tiler"):
        raise ModuleNotFoundError(name="numpy")


@pytest.mark.parametrize(
    ("text", "found"), [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:8085", ("::1", 8085)), ("h:0", ("h", 0))]
)
def test_an_address_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert host_and_port(text, "h:1") == found


@pytest.mark.parametrize("text", ["8085", ":8085", "host", "host:", "host:65536", "host:x"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write HOST:PORT, such as h:1"):
        host_and_port(text, "h:1")


@pytest.mark.parametrize("more", [("--wait",), ("--timeout", "0"), ("--out", "folder")])
def test_a_dry_run_takes_no_option_of_a_submission(more: tuple[str, ...]) -> None:
    ended = penstock("submit", "m", "hello", "--dry-run", *more, "--url", "http://127.0.0.1:9")
    assert ended.returncode == 2
    assert "--dry-run submits nothing" in " ".join(ended.stderr.split())
