"""A browser, and a service with API keys, for all tests of the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from penstock.api_keys import Scope
from tests.support.browser import chromium
from tests.support.made_jobs import MadeJobs, making
from tests.support.stack import Stack, running
from tests.support.webhook_receivers import Receiver, receiving

SECRET = "of the browser tests"


@dataclass(frozen=True)
class Site:
    """A running service that asks for keys; `all_key` may do everything, `read_key` may read.

    `receiver` gets webhooks, and may be named as one.
    """

    stack: Stack
    made: MadeJobs
    all_key: str
    read_key: str
    other_key: str
    receiver: Receiver

    @property
    def url(self) -> str:
        """The service's address."""
        return self.stack.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a browser for the tests of one file: those of others could not run beside Playwright's event loop."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data = tmp_path_factory.mktemp("page")
    keys = [
        _key(data, "ops", "acme", [scope.value for scope in Scope]),
        _key(data, "reader", "acme", ["read"]),
        _key(data, "others", "other", ["read", "submit"]),
    ]
    with (
        receiving(410, 200) as receiver,
        running(
            data, api_key=keys[0], options=("--keys",), PENSTOCK_SECRET=SECRET,
            PENSTOCK_ALLOWED_HOSTS=json.dumps([receiver.pair]),
        ) as stack,
        making(data, tenant="acme") as made,
    ):  # fmt: skip
        yield Site(stack, made, *keys, receiver)


def _key(data: Path, name: str, tenant: str, scopes: list[str]) -> str:
    command = [sys.executable, "-m", "penstock.cli", "keys", "create", "--data", str(data), "--name", name]
    command += ["--tenant", tenant, "--scopes", ",".join(scopes)]
    env = os.environ | {"PENSTOCK_SECRET": SECRET}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()
