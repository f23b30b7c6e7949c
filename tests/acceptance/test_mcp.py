"""Agents at the service by the Model Context Protocol: the SDK's own client against `penstock up`.

Needs the package `mcp`: `pip install '.[mcp]'`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock.processors.geo.sample import write_sample
from tests.support.polling import wait_for
from tests.support.stack import Stack, free_port, listens, running

pytest.importorskip("mcp", reason="needs the Model Context Protocol's SDK: pip install '.[mcp]'")

from mcp import Client, MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, ImageContent, RequestParams, Result, TextContent
from mcp_types import Request as McpRequest
from pydantic import ConfigDict, Field

COUNT = '''
import time

import penstock


@penstock.model
def count_words(text: str, again: int = 1) -> dict[str, int]:
    """Count the words of a text."""
    return {"words": len(text.split()) * again}


@penstock.model
def slow(seconds: float) -> dict[str, float]:
    """Wait."""
    time.sleep(seconds)
    return {"waited": seconds}
'''
SECRET = "a secret of this test, long enough for the service"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("mcp")
    (folder / "words.py").write_text(COUNT)
    config = f'models = ["{folder}/words.py"]\n'
    with running(folder / "data", config=config, model="count_words") as stack:
        yield stack


def stdio(stack: Stack, *words: str) -> Any:
    env = {"PENSTOCK_URL": stack.url, "PATH": os.environ["PATH"]}
    return stdio_client(
        StdioServerParameters(command=sys.executable, args=["-m", "penstock.cli", "mcp", *words], env=env)
    )


@contextmanager
def http(stack: Stack) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "penstock.cli", "mcp", "--http", f"127.0.0.1:{port}", "--url", stack.url]
    process = subprocess.Popen(command)
    try:
        wait_for(lambda: listens(port), "the server did not listen", timeout_s=30)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(20)


def texts(result: CallToolResult) -> str:
    return "\n".join(one.text for one in result.content if isinstance(one, TextContent))


def test_a_model_is_a_tool_with_its_schema_and_its_answer_is_structured(stack: Stack) -> None:
    async def talk() -> None:
        async with Client(stdio(stack)) as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert {"count_words", "csmask", "penstock_wait", "penstock_upload"} <= set(listed)
            assert listed["count_words"].input_schema["required"] == ["text"]
            assert "Count the words of a text" in (listed["count_words"].description or "")
            done = await client.call_tool("count_words", {"text": "one two three", "again": 2})
            assert not done.is_error
            assert done.structured_content["output"] == {"words": 6}
            assert done.structured_content["status"] == "succeeded"
            assert '{"words": 6}' in texts(done)
            wrong = await client.call_tool("count_words", {"text": 3})
            assert wrong.is_error
            assert "text" in texts(wrong)
            assert (await client.call_tool("no_such_tool", {})).is_error

    asyncio.run(talk())


@pytest.mark.breadth
def test_a_scene_of_this_machine_becomes_pictures_and_files(stack: Stack, tmp_path: Path) -> None:
    write_sample(tmp_path / "scene.tif", size_px=256)
    (tmp_path.parent / "secret.txt").write_text("x")

    async def talk() -> None:
        async with Client(stdio(stack, "--folder", str(tmp_path))) as client:
            sent = await client.call_tool("penstock_upload", {"path": "scene.tif"})
            reference = sent.structured_content["reference"]
            assert reference.startswith("media://")
            done = await client.call_tool("csmask", {"scene": reference})
            assert not done.is_error, texts(done)
            [picture] = [one for one in done.content if isinstance(one, ImageContent)]
            assert base64.b64decode(picture.data).startswith(b"\x89PNG")
            files = {one["name"]: one for one in done.structured_content["files"]}
            assert {"classes.tif", "preview.png", "stats.json"} <= set(files)
            [stats] = (await client.read_resource(files["stats.json"]["uri"])).contents
            assert '"classes"' in stats.text
            [map_] = (await client.read_resource(files["classes.tif"]["uri"])).contents
            assert base64.b64decode(map_.blob)[:2] in (b"II", b"MM")
            for path in ("../secret.txt", "/etc/passwd", "none.tif"):
                assert (await client.call_tool("penstock_upload", {"path": path})).is_error
            with pytest.raises(MCPError, match="no file of a job"):
                await client.read_resource("file:///etc/passwd")

    asyncio.run(talk())


@pytest.mark.breadth
def test_a_long_job_outlasts_the_call_and_is_waited_for(stack: Stack) -> None:
    async def talk() -> None:
        async with Client(stdio(stack)) as client:
            job = (
                await client.call_tool("penstock_submit", {"model": "slow", "input": {"seconds": 3}})
            ).structured_content
            assert job["status"] in ("queued", "running")
            at_once = await client.call_tool("penstock_wait", {"job_id": job["job_id"], "seconds": 0})
            assert at_once.structured_content["status"] in ("queued", "running")
            assert "penstock_wait" in texts(at_once)
            done = await client.call_tool("penstock_wait", {"job_id": job["job_id"]})
            assert done.structured_content["output"] == {"waited": 3}
            too_long = await client.call_tool("penstock_wait", {"job_id": job["job_id"], "seconds": 600})
            assert too_long.is_error
            other = (
                await client.call_tool("penstock_submit", {"model": "slow", "input": {"seconds": 60}})
            ).structured_content
            await client.call_tool("penstock_cancel", {"job_id": other["job_id"]})
            ended = await client.call_tool("penstock_wait", {"job_id": other["job_id"]})
            assert ended.structured_content["status"] == "canceled"
            usage = await client.call_tool("penstock_usage", {})
            assert any(row["model"] == "slow" for row in usage.structured_content["rows"])

    asyncio.run(talk())


class CreatedTask(Result):
    """The answer of a call that became a task."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str


class Task(Result):
    """A task, with its result where it has ended."""

    model_config = ConfigDict(extra="allow")
    status: str = ""
    result: dict[str, Any] | None = None


class TaskParams(RequestParams):
    """The parameters of the methods of tasks."""

    task_id: str = Field(alias="taskId")


class TasksExtension(ClientExtension):
    """A client's side of the Tasks extension: asks for the task until it has ended."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self.finish)]

    async def finish(self, made: CreatedTask, context: ClaimContext) -> CallToolResult:
        while True:
            task = await asked(context.session, "tasks/get", made.task_id)
            self.seen.append(task.status)
            if task.status != "working":
                return CallToolResult.model_validate(task.result or {"content": [], "isError": True})
            await asyncio.sleep(0.2)


async def asked(session: Any, method: str, task_id: str) -> Task:
    request = McpRequest[TaskParams, str](method=method, params=TaskParams(taskId=task_id))
    return await session.send_request(request, Task)


def test_a_job_is_a_task_for_clients_that_know_tasks(stack: Stack) -> None:
    async def talk() -> None:
        extension = TasksExtension()
        async with Client(stdio(stack), extensions=[extension]) as client:
            done = await client.call_tool("slow", {"seconds": 1})
            assert done.structured_content["output"] == {"waited": 1}
            assert extension.seen[-1] == "completed"
            failed = await client.call_tool("csmask", {"scene": "https://127.0.0.1:9/none.tif"})
            assert failed.is_error
            made = await client.session.call_tool("slow", {"seconds": 60}, allow_claimed=True)
            assert isinstance(made, CreatedTask)
            assert made.status == "working"
            await asked(client.session, "tasks/cancel", made.task_id)
            while (task := await asked(client.session, "tasks/get", made.task_id)).status == "working":
                await asyncio.sleep(0.2)
            assert task.status == "cancelled"
            with pytest.raises(MCPError, match="no such job"):
                await asked(client.session, "tasks/get", "00000000-0000-4000-8000-000000000000")

    asyncio.run(talk())


@pytest.mark.breadth
def test_over_http_a_call_has_the_key_of_its_request(tmp_path: Path) -> None:
    from httpx2 import AsyncClient
    from mcp.client.streamable_http import streamable_http_client

    @asynccontextmanager
    async def talker(address: str, key: str | None) -> AsyncIterator[Any]:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with AsyncClient(headers=headers) as sender, streamable_http_client(address, http_client=sender) as ways:
            yield ways

    (tmp_path / "words.py").write_text(COUNT)
    config, data = f'access = "keys"\nmodels = ["{tmp_path}/words.py"]\n', tmp_path / "data"
    data.mkdir()
    alphas, betas = (made_key(data, tenant) for tenant in ("alpha", "beta"))
    options = {"api_key": alphas, "model": "count_words", "PENSTOCK_SECRET": SECRET}
    with running(data, config=config, **options) as stack, http(stack) as address:

        async def talk() -> None:
            async with Client(talker(address, alphas)) as alpha:
                done = await alpha.call_tool("count_words", {"text": "a b"})
                job_id = done.structured_content["job_id"]
                assert done.structured_content["output"] == {"words": 2}
            async with Client(talker(address, betas)) as beta:
                foreign = await beta.call_tool("penstock_wait", {"job_id": job_id})
                assert foreign.is_error
                assert "words" not in texts(foreign)
            async with Client(talker(address, None)) as nobody:
                with pytest.raises(MCPError, match="key"):
                    await nobody.list_tools()

        asyncio.run(talk())


def made_key(data: Path, tenant: str) -> str:
    command = [sys.executable, "-m", "penstock.cli", "keys", "create", "--tenant", tenant, "--data", str(data)]
    env = os.environ | {"PENSTOCK_SECRET": SECRET}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
