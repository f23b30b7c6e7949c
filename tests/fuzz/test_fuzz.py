"""The API fuzzed by its own description: every operation, every check of schemathesis, and chains along its links."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import structlog

from penstock.api_keys import Scope, new_key
from penstock.errors import InvalidInput
from penstock.jobs import State
from penstock.storage.journal.api_keys import put_key
from penstock.storage.redis.records import Outcome
from tests.support.api_server import listening
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess, start_valkey

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("schemathesis.toml")
SEED = 20260101
#: Requests per operation; `make fuzz` sends far more, with a new seed each time.
LONG = os.environ.get("PENSTOCK_FUZZ") == "long"
EXAMPLES, EXAMPLES_DOWN = (400, 40) if LONG else (12, 3)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if LONG else 300), pytest.mark.breadth]


#: A key that may do everything, and what the service keeps of it.
RECORD, KEY = new_key(
    "of the tests", tenant="default", name="fuzz", scopes=tuple(Scope), created_s=time.time(), expires_s=None
)


@pytest.fixture(params=["open", "key"])
def credentials(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Return the headers that say who asks: none of an open service, and a key of one that asks for keys."""
    return {} if request.param == "open" else {"Authorization": f"Bearer {KEY}"}


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """Return what the service logs, with nothing hidden from it."""
    stream = io.StringIO()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(file=stream),
    )
    yield stream
    structlog.reset_defaults()


@pytest.fixture
async def server(
    tmp_path: Path, credentials: Mapping[str, str], said: io.StringIO
) -> AsyncIterator[tuple[Service, ValkeyProcess, str]]:
    """Return an API with a worker on a job store of its own, and its address. It wrote the key down nowhere."""
    valkey, access = start_valkey(tmp_path / "valkey"), "keys" if credentials else "open"
    try:
        async with (
            serving(valkey.url, tmp_path / "data", access=access) as service,
            listening(service) as running,
        ):
            put_key(service.objects, RECORD)
            service.http.headers.update(credentials)
            yield service, valkey, running.url
    finally:
        valkey.stop()
    assert said.getvalue(), "nothing was logged: this test sees nothing"
    assert_unwritten(tmp_path, said.getvalue())


def assert_unwritten(folder: Path, said: str) -> None:
    """Check that neither logs nor anything on disk have the part of the key that nobody can guess."""
    secret = KEY.rpartition("_")[2][:30]
    assert secret not in said
    for path in folder.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


async def test_every_answer_is_as_described(
    server: tuple[Service, ValkeyProcess, str],
    credentials: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    service, _, url = server
    monkeypatch.setenv("PENSTOCK_FUZZ_KNOWN", json.dumps(await furnish(service)))
    async with working(service):
        await fuzz(tmp_path, f"{url}/openapi.json", credentials, "--max-examples", str(EXAMPLES))


async def test_without_the_job_store_nothing_is_answered_but_come_back_later(
    server: tuple[Service, ValkeyProcess, str],
    credentials: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    _, valkey, url = server
    valkey.kill()
    monkeypatch.setenv("PENSTOCK_FUZZ_DOWN", "1")
    checks = "status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance"
    phases = "coverage,fuzzing" if LONG else "fuzzing"
    await fuzz(
        tmp_path, f"{url}/openapi.json", credentials, "--max-examples", str(EXAMPLES_DOWN), "--phases", phases,
        "--checks", f"{checks},unavailable_for_a_reason",
    )  # fmt: skip


async def test_a_service_with_keys_answers_nobody_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    valkey = start_valkey(tmp_path / "valkey")
    monkeypatch.setenv("PENSTOCK_FUZZ_LOCKED", "1")
    try:
        async with (
            serving(valkey.url, tmp_path / "data", access="keys") as service,
            listening(service) as running,
        ):
            await fuzz(tmp_path, f"{running.url}/openapi.json", {}, "--max-examples", str(EXAMPLES_DOWN))
    finally:
        valkey.stop()


async def fuzz(folder: Path, described: str, headers: Mapping[str, str], *options: str, config: Path = CONFIG) -> None:
    """Run schemathesis by a description, in a folder for what it remembers; fail with what it found."""
    named = {"Accept": "application/json", **headers}  # a stream of events would not end with its job's silence
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run",
        described, "--no-color",
        *(word for name, value in named.items() for word in ("--header", f"{name}: {value}")),
        *([] if LONG else ["--seed", str(SEED)]), *options,
        cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    sys.stdout.write(said.decode())
    assert process.returncode == 0, "schemathesis found what stands above"


async def furnish(service: Service) -> dict[str, dict[str, str]]:
    """Leave a job with a result and a webhook and a dead one; return the paths to what the first has."""
    job = await service.submit(metadata={"who": "fuzz"}, webhook={"url": "http://files.test:80/hook"})
    await finish(service, 0)
    dead = await service.submit()
    await service.die(dead["id"])
    [delivery] = (await service.http.get(job["links"]["deliveries"])).json()["deliveries"]
    path = "/v1/jobs/{job_id}"
    return {
        f"GET {path}/artifacts/{{name}}": {"job_id": job["id"], "name": "a.txt"},
        "GET /ogc/processes/{process_id}": {"process_id": "echo"},
        "GET /ogc/jobs/{job_id}/results": {"job_id": job["id"]},
        "GET /ogc/jobs/{job_id}/results/{output}": {"job_id": job["id"], "output": "text"},
        f"POST {path}/deliveries/{{delivery_id}}/redeliver": {"job_id": job["id"], "delivery_id": delivery["id"]},
    }


@asynccontextmanager
async def working(service: Service) -> AsyncIterator[None]:
    """Work on whatever is submitted meanwhile: most jobs succeed, some fail."""

    async def work() -> None:
        number = 0
        while True:
            await asyncio.to_thread(service.hints.get)
            number += 1
            with suppress(ValueError):  # no job: it was canceled, or the queue is paused
                await finish(service, number)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        service.hints.put("default")  # ends the thread that waits
        with suppress(asyncio.CancelledError):
            await task


async def finish(service: Service, number: int) -> None:
    """Take the next job to an end."""
    claim = await service.claim()
    if number % 4 == 3:
        await service.end(claim, Outcome(State.FAILED, error=InvalidInput("bad").report()))
        return
    artifact = service.store_artifact(claim, "a.txt", b"a map", "text/plain")
    await service.succeed(claim, artifacts=(artifact,))
