"""`penstock install systemd`: units for the processes of a service on one server, hardened as far as they work.

Left out on purpose: `MemoryDenyWriteExecute`, because torch compiles kernels at run time, and `ProcSubset`, because
memory and processors are read from /proc. For workers also `RestrictNamespaces`, because IO processes confine
themselves by namespaces, and `PrivateDevices`, because of GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.display import err
from penstock.cli.options import EPILOG, USAGE

#: Seconds that a worker waits for its jobs at SIGTERM, and those that it needs to return the rest.
DRAIN_S, RETURN_S = 30, 30

_UNIT = """\
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target{after}
# Restart without a limit: accepted jobs wait for this process.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
User={user}
Group={user}
UMask=0077
WorkingDirectory={data}
{service}
Restart=always
RestartSec=2
# SIGTERM goes to the main process alone: a worker ends its IO processes when their jobs have been returned.
KillMode=mixed
TimeoutStopSec={stop_s}

NoNewPrivileges=true
CapabilityBoundingSet=
ProtectSystem=strict
ReadWritePaths={data}
ProtectHome=read-only
PrivateTmp=true
ProtectClock=true
ProtectControlGroups=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectProc=invisible
LockPersonality=true
RemoveIPC=true
RestrictRealtime=true
RestrictSUIDSGID=true
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service{calls}
SystemCallErrorNumber=EPERM
{hardening}
[Install]
WantedBy=multi-user.target
"""
#: For processes that need neither devices nor namespaces.
_CLOSED = "PrivateDevices=true\nRestrictNamespaces=true\n"
#: System calls by which IO processes confine themselves.
_SANDBOX = " seccomp unshare landlock_create_ruleset landlock_add_rule landlock_restrict_self"


@dataclass(frozen=True, slots=True)
class Installation:
    """The places of a service on a server."""

    #: The programs `penstock` and `valkey-server`.
    penstock: Path
    valkey: Path
    #: Folder of all data, which belongs to `user`.
    data: Path
    #: Folder of penstock.toml, penstock.env and valkey.conf.
    config: Path
    user: str


def units(where: Installation) -> Mapping[str, str]:
    """Return the text of each unit by its file's name."""
    return {
        "penstock-valkey.service": _valkey(where),
        "penstock-api.service": _process(where, "api", "Penstock API", hardening=_CLOSED),
        "penstock-keeper.service": _process(where, "keeper", "Penstock keeper", hardening=_CLOSED),
        "penstock-worker@.service": _worker(where),
    }


def _process(
    where: Installation, command: str, description: str, *, stop_s: int = 30, service: str = "", **more: str
) -> str:
    environment = (
        f"Environment=PENSTOCK_CONFIG={where.config}/penstock.toml PENSTOCK_DATA={where.data} HOME={where.data}\n"
        f"EnvironmentFile={where.config}/penstock.env"
    )
    return _UNIT.format(
        description=description,
        after=" penstock-valkey.service",
        command=f"{where.penstock} {command}",
        user=where.user,
        data=where.data,
        service=environment + service,
        stop_s=stop_s,
        **{"calls": "", "hardening": "", **more},
    )


def _worker(where: Installation) -> str:
    """Return the unit of workers: `penstock-worker@0` uses the first GPU where there is one."""
    service = (
        f"\nEnvironment=CUDA_VISIBLE_DEVICES=%i\nEnvironmentFile=-{where.config}/worker-%i.env\n"
        "# The kernel may end an IO process for its memory: its job fails, and the worker goes on.\n"
        "OOMPolicy=continue\nTasksMax=16384\nLimitNOFILE=65536"
    )
    command = f"worker --drain {DRAIN_S}"
    stop_s = DRAIN_S + RETURN_S
    return _process(where, command, "Penstock worker %i", stop_s=stop_s, service=service, calls=_SANDBOX)


def _valkey(where: Installation) -> str:
    options = "--appendonly yes --appendfsync always --save '' --maxmemory-policy noeviction"
    return _UNIT.format(
        description="Valkey of Penstock: jobs and their events",
        after="",
        command=f"{where.valkey} {where.config}/valkey.conf --dir {where.data}/valkey {options}",
        user=where.user,
        data=where.data,
        service=f"ExecStartPre=mkdir -p {where.data}/valkey\nLimitNOFILE=65536",
        stop_s=120,
        calls="",
        hardening=_CLOSED,
    )


install_app = typer.Typer(
    help="Files that run Penstock as a service of this machine.", epilog=EPILOG, no_args_is_help=True
)


@install_app.callback()
def install() -> None:
    """Keep `systemd` a command of its own: typer merges a single command into its parent."""


@install_app.command()
def systemd(
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", file_okay=False, help="Folder to write the units to [print them].")
    ] = None,
    user: Annotated[str, typer.Option(help="User of all processes.")] = "penstock",
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder of all data.")] = Path("/var/lib/penstock"),
    config: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of penstock.toml, penstock.env and valkey.conf.")
    ] = Path("/etc/penstock"),
    force: Annotated[bool, typer.Option("--force", help="Replace units that are there.")] = False,
) -> None:
    """Print or write the units of systemd: API, keeper, workers and Valkey.

    The units start the programs of this installation. docs/howto/server.md has the steps before and after.
    """
    from penstock.up.valkey import server_program

    for folder in (data, config):
        if not folder.is_absolute() or any(character.isspace() or character in "%\"'\\" for character in str(folder)):
            raise typer.BadParameter(f"{folder} is no absolute path without spaces, quotes and per cent signs")
    program = Path(sys.executable).with_name("penstock")
    found = units(Installation(program, server_program(), data, config, user))
    if to is None:
        sys.stdout.write("\n".join(f"# {name}\n{text}" for name, text in found.items()))
        return
    there = [name for name in found if (to / name).exists()]
    if there and not force:
        err.print(f"penstock: {', '.join(there)} exist in {to}: --force replaces them")
        raise typer.Exit(USAGE)
    to.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        (to / name).write_text(text)
        err.print(f"wrote {to / name}")
