"""The server of the Model Context Protocol: each request becomes requests to a Penstock service, with its sender's key.

It keeps nothing: a job's id is its task's id, and the service decides what a key may see.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

import anyio
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestParams,
    ResourceTemplate,
    TextResourceContents,
)
from pydantic import Field, ValidationError

import penstock
from penstock.client import AsyncClient, ClientError, Job, PenstockAPIError
from penstock.mcp import answers, tools

#: The extension whose task is a job.
TASKS: Final = "io.modelcontextprotocol/tasks"
#: Seconds between two reports of progress.
_REPORT_S = 2.0
#: Seconds for the request that cancels the job of a call that was given up.
_CANCEL_S = 5.0
#: Bytes of a file that is read as a resource, at most.
MAX_RESOURCE_BYTES: Final = 8 << 20
_INSTRUCTIONS = (
    "Each model is a tool. A call runs a job and waits for it, less than a minute; a longer job goes on, and "
    "penstock_wait returns its result. Files of results are resources and links."
)

_Context = ServerRequestContext[Any, Any]
#: Function from the headers of a request, None for one without, to a client of the service.
Connect = Callable[[Mapping[str, str] | None], AsyncClient]


class TaskParams(RequestParams):
    """The parameters of `tasks/get`, `tasks/update` and `tasks/cancel`."""

    task_id: str = Field(alias="taskId")


class Doors:
    """The requests of the protocol."""

    def __init__(self, connect: Connect, service: str, folder: Path | None = None) -> None:
        """Answer by the service at an address; `connect` makes a client of it with the key of a request."""
        self._connect, self._service, self._tools = connect, service, tools.Tools(folder)

    @asynccontextmanager
    async def client(self, context: _Context) -> AsyncIterator[AsyncClient]:
        """Yield a client for one request; the errors of the service become errors of the protocol."""
        headers = None if context.request is None else context.request.headers
        try:
            async with self._connect(headers) as client:
                yield client
        except PenstockAPIError as error:
            code = INVALID_PARAMS if error.status in range(400, 500) else INTERNAL_ERROR
            raise MCPError(code, str(error), {"code": error.code, "status": error.status}) from error
        except ClientError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from error

    async def list_tools(self, context: _Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        """Return the tools beside the models, and the models that the key may use."""
        listed = self._tools.listed()
        taken = {tool.name for tool in listed}
        async with self.client(context) as client:
            models = [model for model in await client.models() if model.problem is None and model.name not in taken]
        return ListToolsResult(tools=[*listed, *map(answers.model_tool, models)])

    async def call_tool(self, context: _Context, params: CallToolRequestParams) -> CallToolResult | dict[str, Any]:
        """Run a tool. A model's call is a task for a client with the extension, else it waits for the job a while."""
        given = params.arguments or {}
        try:
            wanted = self._tools.arguments(params.name, given)
            async with self._connect(None if context.request is None else context.request.headers) as client:
                if wanted is not None:
                    return await self._beside(client, context, wanted)
                if context.session.check_client_capability(ClientCapabilities(extensions={TASKS: {}})):
                    job = await client.submit(params.name, given)
                    return {"resultType": "task", **await self._task(client, job)}
                return await self._run(client, context, params.name, given)
        except ValidationError as error:
            return answers.refusal(_plainly(error))
        except ClientError as error:
            return answers.refusal(str(error))

    async def _beside(self, client: AsyncClient, context: _Context, wanted: tools.Arguments) -> CallToolResult:
        match wanted:
            case tools.Submit():
                job = await client.submit(wanted.model, wanted.input)
                return answers.answer(job, self._service, {})
            case tools.Wait():
                job = await client.job(wanted.job_id)
                return await self._awaited(client, context, job, wanted.seconds)
            case tools.Cancel():
                return answers.said({"job_id": wanted.job_id}, answers.sentence(await client.cancel(wanted.job_id)))
            case tools.Upload():
                return await self._tools.upload(client, wanted)
            case tools.Usage():
                found = await client.usage(first=wanted.first, last=wanted.last)
                return answers.said(found.raw, f"{len(found.rows)} rows, one for each day and model")
            case _:
                raise AssertionError(wanted)

    async def _run(
        self, client: AsyncClient, context: _Context, model: str, given: Mapping[str, Any]
    ) -> CallToolResult:
        """Run a job. A call that its client gives up cancels the job: nobody else knows its id."""
        job_id = str(uuid4())
        try:
            job = await client.submit(model, given, job_id=job_id)
            return await self._awaited(client, context, job, tools.USUAL_S)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_CANCEL_S, shield=True), suppress(ClientError):
                await client.cancel(job_id)
            raise

    async def _awaited(self, client: AsyncClient, context: _Context, job: Job, seconds: float) -> CallToolResult:
        """Return a job when it has ended, or as it is after so many seconds, and report its progress meanwhile."""
        ends = anyio.current_time() + seconds
        while not job.over and (left_s := ends - anyio.current_time()) > 0:
            await context.session.report_progress(job.progress.done, job.progress.total or None, answers.sentence(job))
            job = await client.job(job.id, wait_s=min(_REPORT_S, left_s))
        return answers.answer(job, self._service, await self._images(client, job))

    async def _images(self, client: AsyncClient, job: Job) -> dict[str, bytes]:
        """Return the bytes of the images that are part of an answer."""
        return {one.name: await _read(client, job, one.name) for one in answers.shown_images(job)}

    async def _task(self, client: AsyncClient, job: Job) -> dict[str, Any]:
        return answers.task(job, self._service, await self._images(client, job))

    async def get_task(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        """Return the task of a job, with the result of one that has ended."""
        async with self.client(context) as client:
            return await self._task(client, await client.job(params.task_id))

    async def cancel_task(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        """Cancel a job; one that has ended stays as it is."""
        async with self.client(context) as client:
            if not (await client.job(params.task_id)).over:
                await client.cancel(params.task_id)
        return {}

    async def update_task(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        """Acknowledge input for a task: no job ever asks for any."""
        async with self.client(context) as client:
            await client.job(params.task_id)
        return {}

    async def resources(self, _: _Context, __: PaginatedRequestParams | None) -> ListResourcesResult:
        """Return nothing: the files of jobs are named in their answers."""
        return ListResourcesResult(resources=[])

    async def templates(self, _: _Context, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        """Return the template of the files of jobs."""
        about = f"A file of a job's result, {MAX_RESOURCE_BYTES >> 20} MiB at most"
        template = ResourceTemplate(uri_template="penstock://jobs/{job}/{+name}", name="file", description=about)
        return ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(self, context: _Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """Return a file of a job's result: text as it is, everything else in base64."""
        try:
            job_id, name = answers.file_of(params.uri)
        except ValueError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        async with self.client(context) as client:
            job = await client.job(job_id)
            kinds = {one.name: one for one in job.artifacts}
            if name in kinds and kinds[name].size_bytes > MAX_RESOURCE_BYTES:
                size = f"{kinds[name].size_bytes} bytes, more than {MAX_RESOURCE_BYTES}"
                raise MCPError(
                    INVALID_PARAMS, f"{name} has {size}: fetch {answers.address(self._service, kinds[name])}"
                )
            content = await _read(client, job, name)
        kind = kinds[name].content_type
        if kind.startswith("text/") or kind.endswith("json"):
            text = content.decode("utf-8", "replace")
            return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type=kind, text=text)])
        blob = base64.b64encode(content).decode()
        return ReadResourceResult(contents=[BlobResourceContents(uri=params.uri, mime_type=kind, blob=blob)])


def mcp_server(connect: Connect, service: str, folder: Path | None = None) -> Server[Any]:
    """Return the server for the service at an address; see `Doors`."""
    doors = Doors(connect, service, folder)
    server: Server[Any] = Server(
        "penstock",
        version=penstock.__version__,
        title="Penstock",
        instructions=_INSTRUCTIONS,
        on_list_tools=doors.list_tools,
        on_call_tool=doors.call_tool,  # type: ignore[arg-type]  # a task is a result of the extension
        on_list_resources=doors.resources,
        on_list_resource_templates=doors.templates,
        on_read_resource=doors.read_resource,
    )
    server.add_request_handler("tasks/get", TaskParams, doors.get_task)
    server.add_request_handler("tasks/update", TaskParams, doors.update_task)
    server.add_request_handler("tasks/cancel", TaskParams, doors.cancel_task)
    server.extensions[TASKS] = {}
    return server


async def _read(client: AsyncClient, job: Job, name: str) -> bytes:
    with TemporaryDirectory(prefix="penstock-mcp-") as folder:
        [path] = await client.download(job, folder, names=[name])
        return path.read_bytes()


def _plainly(error: ValidationError) -> str:
    """Return the faults of a call's arguments as a sentence."""
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in error.errors())
