"""The example in TypeScript: types generated from `docs/openapi.json`, run by Node.js against a live service."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from penstock.errors import MediaUnreadable
from penstock.jobs import State
from penstock.storage.redis.records import Outcome
from tests.support.api_server import listening
from tests.support.service import serving
from tests.support.stack import free_port
from tests.support.valkey import ValkeyProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "typescript"

pytestmark = [pytest.mark.breadth, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def built() -> Path:
    """Return the compiled program."""
    if shutil.which("npm") is None:
        pytest.fail("needs Node.js") if os.environ.get("CI") else pytest.skip("needs Node.js")
    for command in (["npm", "ci", "--silent"], ["npm", "run", "--silent", "build"]):
        done = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return EXAMPLE / "dist" / "run.js"


async def test_the_example_submits_a_file_and_saves_the_result(
    built: Path, valkey: ValkeyProcess, tmp_path: Path
) -> None:
    (tmp_path / "scene.tif").write_bytes(b"II*\0")
    async with (
        serving(valkey.url, tmp_path / "service", port=free_port()) as service,
        listening(service, service.settings.port),
    ):
        command = ["node", str(built), "parrot", "scene", str(tmp_path / "scene.tif")]
        env = {**os.environ, "PENSTOCK_URL": service.settings.base_url}

        async def started() -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=env, stdout=PIPE, stderr=PIPE)

        refused = await started()
        _, said = await asyncio.wait_for(refused.communicate(), 60)
        assert refused.returncode == 1
        assert b"invalid_request: the input does not fit echo" in said

        command += ['{"text": "hi"}']
        process = await started()
        await asyncio.to_thread(service.hints.get, timeout=60)
        claim = await service.claim()
        assert claim.submission.input["text"] == "hi"
        file = service.store_artifact(claim, "map.tif", b"a map", "image/tiff")
        await service.succeed(claim, artifacts=(file,))
        out, said = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, said.decode()
        assert json.loads(out) == {"id": claim.key.id, "status": "succeeded", "files": ["map.tif"]}
        assert (tmp_path / "map.tif").read_bytes() == b"a map"

        process = await started()
        await asyncio.to_thread(service.hints.get, timeout=60)
        failed = Outcome(State.FAILED, error=MediaUnreadable("a poem").report())
        await service.end(await service.claim(), failed)
        _, said = await asyncio.wait_for(process.communicate(), 60)
        assert b"media_unreadable: a poem" in said


def test_nothing_generated_is_committed_and_the_lock_names_no_registry() -> None:
    listed = subprocess.run(["git", "ls-files", "."], cwd=EXAMPLE, capture_output=True, text=True, check=True).stdout
    assert "schema.d.ts" not in listed
    assert "dist/" not in listed
    assert '"resolved"' not in (EXAMPLE / "package-lock.json").read_text()
