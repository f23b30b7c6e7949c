"""A real primary, a real replica and a real Sentinel that watches them, on loopback."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from penstock.up.valkey import server_program
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess, free_port, start_valkey

#: Name under which the Sentinels watch the primary.
SERVICE = "penstock"
#: Milliseconds after which a silent primary is taken for dead: more than a busy machine stalls.
SILENT_MS = 3000


class Watched:
    """Two servers of which one is the primary. Where a test takes a `ValkeyProcess`, it is that one."""

    def __init__(self, servers: list[ValkeyProcess], sentinel_port: int) -> None:
        self._servers = servers
        self._sentinel_port = sentinel_port
        self._primary = servers[0]
        self._died_s = 0.0
        #: Times without a primary, from the death of one to the promotion of the other.
        self.downs: list[tuple[float, float]] = []

    @property
    def address(self) -> str:
        """The address for `redis_url`: of a Sentinel that has gone, and of the one that is there."""
        return f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{self._sentinel_port}/{SERVICE}"

    @property
    def url(self) -> str:
        """The address of the primary itself."""
        return self._primary.url

    @property
    def port(self) -> int:
        """The port of the primary."""
        return self._primary.port

    def kill(self) -> None:
        """SIGKILL the primary and wait for its end."""
        self._died_s = time.time()
        self._primary.kill()

    def await_promotion(self) -> ValkeyProcess:
        """Return the dead server when the other one has become the primary."""
        dead, other = sorted(self._servers, key=lambda server: server is not self._primary)
        wait_for(lambda: self._named() == other.port and _role(other) == "master", "no promotion")
        self.downs.append((self._died_s, time.time()))
        self._primary = other
        return dead

    def restart(self) -> None:
        """Wait for the promotion of the other server; start the dead one, and return when one copies the other.

        On a machine that stalled, the Sentinel may have taken the new primary for dead and promoted the old one again.
        """
        dead = self.await_promotion()
        dead.restart()
        wait_for(self._is_settled, "none of the servers copies the other")

    def flush(self) -> None:
        """Forget all data."""
        self._primary.flush()

    def _is_settled(self) -> bool:
        named = self._named()
        self._primary, copy = sorted(self._servers, key=lambda server: server.port != named)
        return _role(self._primary) == "master" and _is_copying(copy)

    def _named(self) -> int:
        with Redis(port=self._sentinel_port, decode_responses=True) as client:
            return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])


@contextmanager
def watched_pair(folder: Path) -> Iterator[Watched]:
    """Start a primary with a replica and a Sentinel; end them on leaving.

    One Sentinel, because several with the short times of a test elect twice now and then.
    """
    with ExitStack() as stack:
        first = start_valkey(folder / "first")
        stack.callback(first.stop)
        second = start_valkey(folder / "second", replicaof=f"127.0.0.1 {first.port}")
        stack.callback(second.stop)
        wait_for(lambda: _is_copying(second), "the replica has no link")
        port = free_port()
        stack.callback(_end, _sentinel(folder / "sentinel", port, first.port))
        wait_for(lambda: _knows_the_replica(port), "the Sentinel does not see the replica")
        yield Watched([first, second], port)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _sentinel(folder: Path, port: int, primary: int) -> subprocess.Popen[bytes]:
    folder.mkdir()
    rows = [
        f"port {port}", "bind 127.0.0.1", f"dir {folder}",
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary} 1",
        f"sentinel down-after-milliseconds {SERVICE} {SILENT_MS}",
        f"sentinel failover-timeout {SERVICE} 5000",
    ]  # fmt: skip
    (folder / "sentinel.conf").write_text("\n".join(rows) + "\n")
    with (folder / "sentinel.log").open("ab") as log:
        command = [str(server_program()), str(folder / "sentinel.conf"), "--sentinel"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _knows_the_replica(port: int) -> bool:
    with suppress(RedisError), Redis(port=port, decode_responses=True) as client:
        row = client.execute_command("SENTINEL", "MASTER", SERVICE)
        found = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
        return int(found["num-slaves"]) == 1
    return False


def _role(server: ValkeyProcess) -> str:
    with suppress(RedisError), Redis.from_url(server.url, decode_responses=True) as client:
        return str(client.info("replication")["role"])
    return ""


def _is_copying(server: ValkeyProcess) -> bool:
    with suppress(RedisError), Redis.from_url(server.url, decode_responses=True) as client:
        return client.info("replication").get("master_link_status") == "up"
    return False
