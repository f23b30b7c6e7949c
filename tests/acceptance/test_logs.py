"""The logs of a whole run at debug level: JSON line by line, without secrets, and nobody writes lines of his own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import psutil
import pytest

from penstock.api_keys import Scope
from penstock.client import Client, ClientError
from penstock.config import Settings
from penstock.config_tables import S3
from penstock.storage.objects.opening import open_store, tenant_webhook_secret
from tests.support.ceph import Ceph
from tests.support.stack import Stack, running
from tests.support.web_server import Server, reply

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: A text that a user may write anywhere, and that would change a log which wrote it as it is.
MARK = "canaryZq7"
FORGED = (
    f'{MARK}\n{{"event": "forged", "level": "error", "detail": "{MARK}"}}\r'
    "\x1b[31mred\x1b[0m\x9b31m\u2028\u2029\x85\u202e"
)
#: Secrets made for this run, which no log may contain.
API_SECRET = "api-secret-" + "Xk2Vw9" * 4
PASSWORD = "password-" + "Pw5Rt3" * 4
TOKEN = "token-" + "Tk8Nm1" * 4
#: The forms of a signed query string, whoever signed it.
SIGNED = re.compile(r"(?i)(signature|credential|security-token|sig|token)=(?!\[redacted\])[^&\s\"'\\<>]")


class Used:
    """Values that the run made and then searches for in its logs."""

    def __init__(self) -> None:
        self.secrets: set[str] = {API_SECRET, PASSWORD, TOKEN}
        self.links: list[str] = []
        #: The key of a service that asks for keys.
        self.api_key: str | None = None


@pytest.fixture(
    scope="module", params=["keys", *(pytest.param(name, marks=pytest.mark.breadth) for name in ("folder", "s3"))]
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Stack, Used]:
    """Return a stack that has ended, after users of every kind used it, and what was secret there."""
    data, used = tmp_path_factory.mktemp(f"logs-{request.param}"), Used()
    variables = {"PENSTOCK_LOG_LEVEL": "debug", "PENSTOCK_SECRET": API_SECRET}
    s3, store = S3(), None
    if request.param == "s3":
        ceph: Ceph = request.getfixturevalue("ceph")
        s3, store = ceph.s3, f"s3://{ceph.bucket()}"
        variables |= _variables(s3) | {"PENSTOCK_OBJECT_STORE": store}
        used.secrets.add(variables["PENSTOCK_S3__SECRET_ACCESS_KEY"])
    if request.param == "keys":
        variables["PENSTOCK_ACCESS"] = "keys"
        used.api_key = _made_key(data)
        # All of it, and the part that nobody can guess.
        used.secrets |= {used.api_key, used.api_key.rpartition("_")[2]}
    with Server(reply(500, f"{FORGED}".encode(), Retry_After="1")) as receiver:
        pair = f"127.0.0.1:{receiver.port}"
        variables["PENSTOCK_ALLOWED_HOSTS"] = json.dumps([pair])
        config = f'models = ["{_tried_twice(data / "models.toml")}"]'
        with running(data, config=config, api_key=used.api_key, **variables) as stack:
            _use(stack, pair, used)
            _break(stack)
            used.secrets |= _webhook_secret(stack, s3, store)
    return stack, used


@pytest.mark.breadth
def test_every_line_is_a_json_object_with_time_level_and_event(run: tuple[Stack, Used]) -> None:
    stack, _ = run
    for path in _logs(stack):
        lines = path.read_bytes().split(b"\n")
        assert lines.pop() == b"", f"{path.name} ends in the middle of a line"
        assert lines, path.name
        for line in lines:
            record = json.loads(line)
            assert {"at", "level", "event"} <= record.keys(), line


def test_nobody_writes_lines_or_names_or_controls_a_terminal(run: tuple[Stack, Used]) -> None:
    stack, _ = run
    found = 0
    for path in _logs(stack):
        raw = path.read_bytes()
        assert not re.search(rb"[^\x20-\x7e\n]", raw), f"{path.name} has more than printable ASCII"
        for line in raw.splitlines():
            record = json.loads(line)
            assert record["event"] != "forged"
            assert MARK not in "".join(_names(record)), line
            found += MARK in "".join(_texts(record))
    assert found, "nothing of what users wrote was logged: this test sees nothing"


def test_no_secret_and_no_signed_query_string_is_in_any_log(run: tuple[Stack, Used]) -> None:
    stack, used = run
    assert len(used.secrets) >= 5
    assert used.links
    for path in [*_logs(stack), stack.log, stack.data / "logs" / "valkey.log"]:
        text = path.read_text(errors="replace") if path.exists() else ""
        for secret in used.secrets:
            assert secret not in text, f"{path.name} has {secret}"
        for link in used.links:
            query = httpx2.URL(link).query.decode()
            assert query, link
            assert query not in text, f"{path.name} has the query of {link}"
        assert (leak := SIGNED.search(text)) is None, (
            f"{path.name}: {leak and text[leak.start() - 200 : leak.end() + 50]}"
        )


def test_what_the_supervisor_shows_in_a_terminal_cannot_control_it(run: tuple[Stack, Used]) -> None:
    stack, _ = run
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", stack.log.read_text())


def _tried_twice(path: Path) -> Path:
    """Write the shipped csmask whose jobs are tried twice: the lines of three more tries say the same, 45 s later."""
    shipped = (Path(__file__).parents[2] / "src" / "penstock" / "catalogue" / "models.toml").read_text()
    path.write_text(shipped.replace("[models.csmask]\n", "[models.csmask]\nmax_attempts = 2\n", 1))
    return path


def _variables(s3: S3) -> dict[str, str]:
    assert s3.secret_access_key is not None
    return {
        "PENSTOCK_S3__ENDPOINT_URL": str(s3.endpoint_url),
        "PENSTOCK_S3__ACCESS_KEY_ID": str(s3.access_key_id),
        "PENSTOCK_S3__SECRET_ACCESS_KEY": s3.secret_access_key.get_secret_value(),
    }


def _use(stack: Stack, pair: str, used: Used) -> None:
    """Do what users do, with marks in everything that they may write, and much of it wrong."""
    sample = stack.data / "scene.tif"
    stack.cli("sample", str(sample), "--size", "256")
    bad = stack.data / f"{MARK}.tif"
    bad.write_bytes(b"II*\0" + FORGED.encode() * 20)
    hook = {"url": f"http://{pair}/{MARK}?token={TOKEN}"}
    with stack.client() as client, httpx2.Client(base_url=stack.url, trust_env=False, timeout=60) as http:
        http.headers["Authorization"] = f"Bearer {used.api_key or TOKEN}"
        scene, broken = client.upload(sample), client.upload(bad)
        good = {"model": "csmask", "input": {"scene": scene}, "metadata": {"note": FORGED}, "webhook": hook}
        ids = [_post(http, good)["id"]]
        wrong = (broken, f"http://{pair}/{MARK}%1b?X-Amz-Signature={TOKEN}")
        ids += [_post(http, good | {"input": {"scene": reference}})["id"] for reference in wrong]
        for job_id in ids:
            for link in [a.url for a in client.wait(job_id).artifacts]:
                answer = http.get(str(link), follow_redirects=True)
                used.links += [str(each.url) for each in (*answer.history, answer) if each.url.query]
        grant = http.post(
            "/v1/uploads", json={"filename": FORGED, "content_type": "image/tiff", "size_bytes": 3}
        ).json()
        used.links.append(grant["url"])
        httpx2.put(grant["url"], content=b"abc", headers={"content-type": "image/tiff"}, trust_env=False)
        _mistakes(http, pair)
        _misplace(http, used.api_key or TOKEN, refused=used.api_key is not None)
    with suppress(ClientError), Client(stack.url, api_key=used.api_key) as client:
        client.submit(FORGED, {"scene": FORGED})


def _post(http: httpx2.Client, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Idempotency-Key": TOKEN + str(len(json.dumps(body)))}
    response = http.post("/v1/jobs", json=body, headers=headers)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    return job


def _mistakes(http: httpx2.Client, pair: str) -> None:
    for url in (
        f"http://user:{PASSWORD}@{pair}/",
        f"ftp://{pair}/?sig={TOKEN}",
        f"http://10.0.0.1/{FORGED}?token={TOKEN}",
    ):
        assert http.post("/v1/jobs", json={"model": "csmask", "input": {"scene": url}}).status_code == 422
    http.get(f"/v1/local/{MARK}?expires=1&signature={TOKEN}")
    http.get(f"/{MARK}%0a%0d%1b[31m?token={TOKEN}", headers={"X-Api-Key": TOKEN, "Cookie": f"session={TOKEN}"})
    http.post("/v1/jobs", content=FORGED.encode(), headers={"content-type": "application/json"})
    http.get("/v1/jobs/" + MARK, headers={"host": "127.0.0.1", "traceparent": MARK, "user-agent": MARK})


def _misplace(http: httpx2.Client, key: str, *, refused: bool) -> None:
    """Put a key, spoiled ones too, where keys do not belong."""
    for sent in (f"Bearer {key}x", f"Basic {key}", key, f"Bearer {key[:-1]}"):
        answer = http.get("/v1/jobs", headers={"Authorization": sent, "X-Api-Key": key, "Cookie": f"session={key}"})
        assert (answer.status_code == 401) == refused, answer.text
    http.get(f"/v1/jobs?api_key={key}")
    http.get(f"/v1/jobs/{key}/{key}")
    http.post("/v1/jobs", json={"model": key, "input": {}, "metadata": {key: key}})


def _break(stack: Stack) -> None:
    """Take Redis away: what every process says then, paths and tracebacks included, belongs to the run."""
    valkey = psutil.Process(stack.pid("valkey"))
    valkey.suspend()
    try:
        path = f"/v1/queues/{quote(FORGED, safe='')}?signature={TOKEN}"
        key = {"Authorization": f"Bearer {stack.api_key or TOKEN}"}
        assert httpx2.get(stack.url + path, headers=key, trust_env=False, timeout=60).status_code == 503
    finally:
        valkey.resume()
    stack.kill("valkey")
    with stack.client() as client:
        assert client.models()


def _made_key(data: Path) -> str:
    """Make a key that may do everything, as an operator does before the start."""
    env = os.environ | {"PENSTOCK_SECRET": API_SECRET}
    command = [sys.executable, "-m", "penstock.cli", "keys", "create", "--data", str(data), "--scopes", ",".join(Scope)]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


def _webhook_secret(stack: Stack, s3: S3, store: str | None) -> set[str]:
    settings = Settings(data=stack.data, secret=API_SECRET, s3=s3, object_store=store)
    secret = tenant_webhook_secret(open_store(settings.store_url, settings), "default")
    return {secret, secret.removeprefix("whsec_")}


def _logs(stack: Stack) -> list[Path]:
    found = [stack.data / "logs" / f"{name}.log" for name in ("api", "keeper", "worker")]
    assert all(path.stat().st_size for path in found)
    return found


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from _names(part)
    elif isinstance(value, list):
        for part in value:
            yield from _names(part)


def _texts(value: Any) -> Iterator[str]:
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict | list):
            yield from _texts(part)
