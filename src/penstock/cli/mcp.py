"""`penstock mcp`: the service's models as tools of agents, over stdio or HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import DEFAULT_URL, Url, host_and_port, listen, needing

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from penstock.client import AsyncClient

#: Addresses that stand for all of a machine.
_EVERY = ("0.0.0.0", "::")  # noqa: S104  (refused without a name)
#: Seconds for which a request is sent again, at most: a call ends before its client gives up.
_PATIENCE_S = 5.0


def mcp(
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve http://HOST:PORT/mcp, with each request's own key, not stdio."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--host-name", metavar="NAME", help="With --http: a name under which clients reach it."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Over stdio: agents may upload files below this folder."),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Offer the service's models to agents by the Model Context Protocol: over stdio, for an agent of this machine.

    An agent's settings name the command: {"mcpServers": {"penstock": {"command": "penstock", "args": ["mcp"]}}}.
    """
    with needing("mcp", "the Model Context Protocol", "mcp", "mcp_types"):
        from penstock.mcp.server import mcp_server
    import anyio

    if http is None:
        anyio.run(_over_stdio, mcp_server(lambda _: _client(url, None), url, folder))
    elif folder is not None:
        raise typer.BadParameter("--folder is for stdio: callers over HTTP are on other machines")
    else:
        host, port = host_and_port(http, "127.0.0.1:8090")
        if host in _EVERY and not names:
            raise typer.BadParameter(f"--http {http} needs --host-name: the name or address that clients use")
        _over_http(mcp_server(lambda headers: _client(url, headers or {}), url), host, port, names or ())


def _client(url: str, headers: Mapping[str, str] | None) -> AsyncClient:
    """Return a client with the key of a request's headers; with that of the environment for a request over stdio."""
    from penstock.client import AsyncClient
    from penstock.config import api_key

    if headers is None:
        return AsyncClient(url, api_key=api_key(), patience_s=_PATIENCE_S)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return AsyncClient(url, api_key=key if scheme.lower() == "bearer" else None, patience_s=_PATIENCE_S)


async def _over_stdio(server: Server[Any]) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (requests, answers):
        await server.run(requests, answers, server.create_initialization_options())


def _over_http(server: Server[Any], host: str, port: int, names: Sequence[str]) -> None:
    from mcp.server.transport_security import TransportSecuritySettings

    ours = f"[{host}]" if ":" in host else host
    own = [f"{name}{end}" for name in (ours, "127.0.0.1", "localhost", *names) for end in ("", ":*")]
    origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in own]
    # A page of another site must not reach a server of this machine by a name that it made point here.
    security = TransportSecuritySettings(allowed_hosts=own, allowed_origins=origins)
    app = server.streamable_http_app(stateless_http=True, transport_security=security, host=host)
    listen(app, host, port, "/mcp")
