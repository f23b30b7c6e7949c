"""A real S3 server for tests: Ceph's RADOS Gateway on one monitor and one disk file, all on loopback.

About 20 seconds to set up; needs Debian's `ceph-mon ceph-osd ceph-base radosgw` and no root services.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from penstock.config_tables import S3
from penstock.storage.objects.s3 import s3_client

BINARIES = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
ACCESS_KEY = "penstock-test"
SECRET_KEY = "penstock-test-secret"
COMMAND_TIMEOUT_S = 120

_CONF = """
[global]
fsid = {fsid}
mon initial members = a
mon host = [v2:127.0.0.1:{ports[0]},v1:127.0.0.1:{ports[1]}]
ms bind ipv4 = true
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {folder}/keyring
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
mon cluster log file = {folder}/cluster.log
crash dir = {folder}/crash
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd max object name len = 256
osd max object namespace len = 64
mon allow pool size one = true
mon max pg per osd = 1000
mon data avail crit = 1
mon data avail warn = 1
[mon.a]
mon data = {folder}/mon
[osd.0]
osd data = {folder}/osd
osd objectstore = bluestore
bluestore block size = 10737418240
[client.rgw]
# Requests may say that they came by https: a topic whose address holds a password is made by no others.
rgw trust forwarded https = true
rgw frontends = beast tcp_nodelay=1 endpoint=127.0.0.1:{ports[2]}
"""


def missing_binaries() -> list[str]:
    """Return the programs that this machine lacks."""
    return [name for name in BINARIES if shutil.which(name) is None]


@dataclass
class Ceph:
    """A running cluster. `s3` are the settings that reach it."""

    folder: Path
    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def s3(self) -> S3:
        """Return the settings of a user who may do everything."""
        return S3(endpoint_url=f"http://127.0.0.1:{self.port}", access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY)

    def bucket(self) -> str:
        """Make a new bucket and return its name."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        self._maker.create_bucket(Bucket=name)
        return name

    @cached_property
    def _maker(self) -> Any:
        """One client for all buckets: botocore reads the description of S3 anew for each."""
        return s3_client(self.s3)

    def client(self, service: str) -> Any:
        """Return boto3's client of `s3`, or of `sns` for topics of notifications."""
        client = boto3.session.Session().client(
            service,
            endpoint_url=self.s3.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        client.meta.events.register("before-sign", _say_https)
        return client

    def start_gateway(self) -> None:
        """Start the gateway; return when it answers."""
        self.start("radosgw", "-n", "client.rgw", "-f")
        self._wait_for_gateway()

    def stop(self) -> None:
        """End every process of the cluster, the youngest first."""
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(COMMAND_TIMEOUT_S)
        self.processes.clear()

    def start(self, program: str, *words: str) -> None:
        """Start one of the cluster's daemons."""
        with (self.folder / f"{program}.out").open("ab") as log:
            # They end with the test run, even with one that is killed.
            command = ["setpriv", "--pdeathsig", "KILL", program, "-c", str(self.folder / "ceph.conf"), *words]
            self.processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    def run(self, program: str, *words: str) -> str:
        """Run one of the cluster's commands to its end and return what it said."""
        command = [program, "-c", str(self.folder / "ceph.conf"), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout

    def _wait_for_gateway(self) -> None:
        # botocore's own retries do the waiting, so that a gateway that comes up late is no failure.
        retries = Config(retries={"mode": "standard", "total_max_attempts": 20}, connect_timeout=1, read_timeout=60)
        boto3.session.Session().client(
            "s3",
            endpoint_url=self.s3.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=retries,
        ).list_buckets()


def start_ceph(folder: Path) -> Ceph:
    """Set up a cluster in an empty folder, with a short path (it holds Unix sockets); return when it answers."""
    ports = _free_ports(3)
    cluster = Ceph(folder, ports[2])
    fsid = str(uuid.uuid4())
    (folder / "ceph.conf").write_text(_CONF.format(fsid=fsid, folder=folder, ports=ports))
    try:
        _make_keys(cluster)
        _start_monitor(cluster, fsid, ports)
        _start_disk(cluster)
        cluster.run(
            "radosgw-admin", "-n", "client.rgw", "user", "create", "--uid", "test", "--display-name", "test",
            "--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY,
        )  # fmt: skip
        cluster.start_gateway()
    except BaseException:
        cluster.stop()
        raise
    return cluster


@contextmanager
def shared_ceph(folder: Path) -> Iterator[Ceph]:
    """Share a cluster between the processes of a test run, which share `folder`.

    The first process starts it, and ends it when the others have left.
    """
    state = folder / "ceph.json"
    with (folder / "ceph.lock").open("a") as lock, (folder / "ceph.users").open("a") as users:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mine = None if state.exists() else start_ceph(Path(tempfile.mkdtemp(prefix="ceph-")))
        if mine is not None:
            state.write_text(json.dumps([str(mine.folder), mine.port]))
        place, port = json.loads(state.read_text())
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_UN)
        yield mine or Ceph(Path(place), port)
        fcntl.flock(users, fcntl.LOCK_UN)
        if mine is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)  # nobody enters
            fcntl.flock(users, fcntl.LOCK_EX)  # all have left
            mine.stop()
            state.unlink()
            shutil.rmtree(mine.folder, ignore_errors=True)


def _say_https(request: Any, **_: object) -> None:
    request.headers["X-Forwarded-Proto"] = "https"


def _make_keys(cluster: Ceph) -> None:
    ring = str(cluster.folder / "keyring")
    everything = ("--cap", "osd", "allow *", "--cap", "mgr", "allow *")
    for name, caps in {
        "mon.": ("--cap", "mon", "allow *"),
        "client.admin": ("--cap", "mon", "allow *", *everything),
        "client.rgw": ("--cap", "mon", "allow rwx", "--cap", "osd", "allow rwx"),
        "osd.0": ("--cap", "mon", "allow profile osd", *everything),
    }.items():
        create = [] if Path(ring).exists() else ["--create-keyring"]
        cluster.run("ceph-authtool", ring, *create, "--gen-key", "-n", name, *caps)


def _start_monitor(cluster: Ceph, fsid: str, ports: list[int]) -> None:
    folder = cluster.folder
    address = f"[v2:127.0.0.1:{ports[0]},v1:127.0.0.1:{ports[1]}]"
    cluster.run(
        "monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, "--set-min-mon-release", "pacific",
        str(folder / "monmap"),
    )  # fmt: skip
    (folder / "mon").mkdir()
    cluster.run(
        "ceph-mon", "--mkfs", "-i", "a", "--monmap", str(folder / "monmap"), "--keyring", str(folder / "keyring")
    )
    cluster.start("ceph-mon", "-f", "-i", "a")


def _start_disk(cluster: Ceph) -> None:
    folder, disk = cluster.folder / "osd", str(uuid.uuid4())
    folder.mkdir()
    ring = str(cluster.folder / "keyring")
    cluster.run("ceph", "auth", "import", "-i", ring)
    cluster.run("ceph", "osd", "new", disk, "0")
    key = cluster.run("ceph-authtool", ring, "-n", "osd.0", "--print-key").strip()
    (folder / "keyring").write_text(f"[osd.0]\n\tkey = {key}\n")
    cluster.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
    cluster.run("ceph", "osd", "crush", "add", "osd.0", "1", "root=default")
    cluster.start("ceph-osd", "-f", "-i", "0")


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
