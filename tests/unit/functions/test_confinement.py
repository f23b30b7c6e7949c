from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.functions.confinement import environment, socket_filter

ASK = """
import socket, sys
from penstock.functions import confinement
{limit}
pair = socket.socketpair()
pair[0].sendall(b"a")
assert pair[1].recv(1) == b"a"
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5).close()
except PermissionError as error:
    print("refused:", error)
else:
    print("connected")
"""


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("confinement.refuse_sockets(bytes.fromhex(sys.argv[2]))", "refused: [Errno 13]"),
        ("confinement.no_network()", "refused: the model has no network"),
        ("confinement.allow_hosts(('example.org',))", "refused: the model may not call '127.0.0.1'"),
        ("confinement.allow_hosts(('localhost',))", "connected"),
    ],
)
def test_sockets_of_networks_are_refused_and_others_work(limit: str, said: str) -> None:
    import socket

    made = socket_filter()
    if made is None:
        pytest.skip("needs libseccomp")
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", ASK.format(limit=limit), str(server.getsockname()[1]), made.hex()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(said)


def test_a_function_sees_the_workers_device_if_it_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    assert [environment(gpu=gpu)["CUDA_VISIBLE_DEVICES"] for gpu in (True, False)] == ["GPU-a", ""]
