"""The guard against those who mean harm: whom it may not ask, servers without an end. Canaries sit at the sockets.

Servers that wait, wait until the test is over: a bound that does not hold is a test that does not end.
"""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from structlog.testing import capture_logs

from penstock.config import Settings
from penstock.errors import Canceled, FetchFailed, MediaRefused, MediaTooLarge, PenstockError
from penstock.intake.guard import GuardedClient, TimeLimits
from tests.support.canary import Canary, canary
from tests.support.guards import LIMIT, SHORT, Names, client, url
from tests.support.web_server import Server, reply
from tests.unit.intake.test_addresses import NOT_PUBLIC, REFUSED

#: Idle times are long: only the total can end what drips.
PATIENT = TimeLimits(connect_s=60, idle_s=60, total_s=1)
#: The same, where the end alone counts: whatever the server had sent by then.
HASTY = TimeLimits(connect_s=60, idle_s=60, total_s=0.2)

#: Only the least rate can end what drips.
WATCHFUL = TimeLimits(connect_s=60, idle_s=60, total_s=600, rate_window_s=0.2)

Ask = Callable[[GuardedClient, str, Path], object]


def fetch(guard: GuardedClient, where: str, path: Path) -> object:
    return guard.fetch(where, path, LIMIT)


def post(guard: GuardedClient, where: str, _: Path) -> object:
    return guard.post(where, b"{}", {}, 1)


@pytest.mark.parametrize(
    "where", ["http://user:s3cr3t@media.example/x", "https://s3cr3t@media.example", "http://a:s3cr3t@b"]
)
def test_the_credentials_of_a_refused_address_are_in_no_log(where: str, tmp_path: Path) -> None:
    with capture_logs() as logs, pytest.raises(MediaRefused) as refused:
        GuardedClient(Settings()).fetch(where, tmp_path / "media", LIMIT)
    assert [each["event"] for each in logs] == ["url.refused"]
    assert "s3cr3t" not in f"{logs} {refused.value}"


both = pytest.mark.parametrize("ask", [fetch, post])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "media"


@pytest.fixture
def seen(path: Path) -> Iterator[Canary]:
    """Return a canary; after the test no file was opened where the media would lie."""
    with canary() as singing:
        yield singing
    assert [name for name in singing.opened if name.startswith(str(path.parent))] == []
    assert not path.exists()


def test_the_canary_sings(tmp_path: Path) -> None:
    with canary() as singing, Server(reply(200, b"x")) as server:
        client(server).fetch(url(server), tmp_path / "media", LIMIT)
        GuardedClient(Settings()).resolver("localhost", 80)
    assert singing.connected == [("127.0.0.1", server.port)]
    assert singing.looked_up == ["localhost"]
    assert str(tmp_path / "media") in singing.opened


class TestWhoIsNeverAsked:
    @both
    @pytest.mark.parametrize("address", NOT_PUBLIC)
    def test_a_name_that_leads_to_a_special_address(self, path: Path, seen: Canary, ask: Ask, address: str) -> None:
        for found in ([address], ["8.8.8.8", address], [address, "2606:4700:4700::1111"]):
            with pytest.raises(MediaRefused):
                ask(client(sneaky=found), "http://sneaky.example:8080/", path)
        assert (seen.connected, seen.looked_up) == ([], [])

    @both
    @pytest.mark.parametrize("answer", ["", "localhost", "8.8.8.8 127.0.0.1", "8.8.8.8/32", "::ffff:8.8.8.8%1"])
    def test_a_name_whose_address_is_none(self, path: Path, seen: Canary, ask: Ask, answer: str) -> None:
        with pytest.raises(MediaRefused):
            ask(client(sneaky=["8.8.8.8", answer]), "http://sneaky.example:8080/", path)
        assert (seen.connected, seen.looked_up) == ([], [])

    @both
    @pytest.mark.parametrize(
        "where", [*REFUSED, *(f"http://[{a}]/" if ":" in a else f"http://{a}/" for a in NOT_PUBLIC)]
    )
    def test_a_url_that_is_refused_as_it_stands_is_not_even_looked_up(
        self, path: Path, seen: Canary, ask: Ask, where: str
    ) -> None:
        names = Names()
        with pytest.raises(MediaRefused):
            ask(GuardedClient(Settings(fetch_any_public_host=True), names, SHORT), where, path)
        assert (names.asked, seen.connected, seen.looked_up) == ([], [], [])

    @both
    @pytest.mark.parametrize("where", ["https://public.example/", "http://8.8.8.8/", "http://media.example:80/"])
    def test_anybody_who_is_not_on_the_list_in_closed_mode(
        self, path: Path, seen: Canary, ask: Ask, where: str
    ) -> None:
        closed = Settings(allowed_hosts=("media.example:8080",), webhook_any_public_host=False)
        names = Names({"public.example": ["8.8.8.8"]})
        with pytest.raises(MediaRefused):
            ask(GuardedClient(closed, names, SHORT), where, path)
        assert (names.asked, seen.connected, seen.looked_up) == ([], [], [])

    @pytest.mark.parametrize("location", [where for where in REFUSED if "://" in where and where.isprintable()])
    def test_where_a_redirect_leads_that_would_be_refused(self, path: Path, seen: Canary, location: str) -> None:
        answer = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + location.encode() + b"\r\n\r\n"
        with Server(answer) as server:
            with pytest.raises((MediaRefused, FetchFailed)):
                client(server).fetch(url(server), path, LIMIT)
            ours = ("127.0.0.1", server.port)
        # Some of them are a path on the same server when they are read as a reference: those it may ask again.
        assert set(seen.connected) == {ours}
        assert seen.looked_up == []

    @pytest.mark.parametrize("address", NOT_PUBLIC)
    def test_a_redirect_to_a_name_that_leads_to_a_special_address(self, path: Path, seen: Canary, address: str) -> None:
        with Server(reply(302, Location="http://sneaky.example:8080/")) as server, pytest.raises(MediaRefused):
            client(server, sneaky=["8.8.8.8", address]).fetch(url(server), path, LIMIT)
        assert seen.connected == [("127.0.0.1", server.port)]

    def test_a_name_that_moves_between_two_hops(self, path: Path, seen: Canary) -> None:
        class Moving(Names):
            def __call__(self, host: str, port: int) -> object:
                found = super().__call__(host, port)
                self.known[host] = ["169.254.169.254"]
                return found

        with Server(reply(302, Location="http://media.example:8080/")) as server:
            names = Moving({"media.example": ["127.0.0.1"]})
            settings = Settings(allowed_hosts=(f"media.example:{server.port}",), fetch_any_public_host=True)
            with pytest.raises(MediaRefused):
                GuardedClient(settings, names, SHORT).fetch(url(server), path, LIMIT)
        assert names.asked == ["media.example", "media.example"]
        assert seen.connected == [("127.0.0.1", server.port)]

    def test_every_refusal_says_the_same(self, path: Path, seen: Canary) -> None:
        said = set()
        for found, where in (
            (["10.0.0.1"], "http://sneaky.example/"), (["8.8.8.8", "::1"], "http://sneaky.example/"),
            ([""], "http://sneaky.example/"), *(([], where) for where in REFUSED),
        ):  # fmt: skip
            with pytest.raises(MediaRefused) as caught:
                client(sneaky=found).fetch(where, path, LIMIT)
            said.add((caught.value.code, caught.value.detail, caught.value.retryable))
        assert len(said) == 1
        assert seen.connected == []


class TestTheEnvironment:
    def test_nothing_of_it_is_sent(self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / ".netrc").write_text("machine media.example login me password canary\n")
        (tmp_path / ".netrc").chmod(0o600)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
        moved = reply(302, Location="/next", Set_Cookie="session=canary", WWW_Authenticate="Basic")
        with Server(moved, reply(200, b"x")) as server, canary() as singing:
            client(server).fetch(url(server), path, LIMIT)
        assert [_names(request) for request in server.requests] == [
            {"host", "user-agent", "accept", "accept-encoding"}
        ] * 2
        assert b"canary" not in b"".join(server.requests)
        assert str(tmp_path / ".netrc") not in singing.opened

    @both
    @pytest.mark.parametrize("scheme", ["http", "https", "all"])
    def test_no_proxy_of_it_is_used(self, path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask, scheme: str) -> None:
        with Server(reply(200, b"proxy")) as proxy, Server(reply(200, b"origin")) as server:
            for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            ask(client(server), url(server), path)
            assert (proxy.accepted, server.accepted) == (0, 1)


class TestWhyThereWasNoAnswer:
    @both
    def test_is_told_of_hosts_that_the_operator_allowed(self, path: Path, ask: Ask) -> None:
        with Server(b"") as nobody:
            pass
        unknown = Server(b"")
        unknown.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("media.example").configure_cert(unknown.tls)
        with Server(lambda _: _wait(slow)) as slow, Server(b"SSH-2.0-OpenSSH_9.2\r\n") as liar, unknown:
            for server, scheme, why in (
                (nobody, "http", "the connection was refused"),
                (slow, "http", "the server did not respond in time"),
                (liar, "http", "the server did not respond properly"),
                (unknown, "https", "the TLS handshake failed"),
            ):
                settings = Settings(allowed_hosts=(f"media.example:{server.port}",))
                guard = GuardedClient(settings, Names({"media.example": ["127.0.0.1"]}), PATIENT)
                assert _said(guard, f"{scheme}://media.example:{server.port}/", path, ask) == why
        gone = GuardedClient(Settings(allowed_hosts=("gone.example:80",)), Names({}))
        assert _said(gone, "http://gone.example/", path, ask) == "the host's name was not found"

    @both
    def test_is_one_sentence_for_all_others(self, path: Path, ask: Ask) -> None:
        over = threading.Event()

        def silent(_host: str, _port: int) -> list[str]:
            over.wait()
            return []

        def refusing(_host: str, _port: int) -> list[str]:
            raise ConnectionRefusedError

        settings = Settings(fetch_any_public_host=True)
        guards = [GuardedClient(settings, resolver, HASTY) for resolver in (silent, refusing, Names({}))]
        try:
            told = {_said(guard, "http://gone.example/", path, ask) for guard in guards}
        finally:
            over.set()
        assert told == {"the server did not respond properly in time"}


def _said(guard: GuardedClient, where: str, path: Path, ask: Ask) -> str:
    with pytest.raises(FetchFailed) as caught:
        ask(guard, where, path)
    return caught.value.detail


class TestServersWithoutAnEnd:
    @pytest.mark.parametrize(
        "head",
        [
            b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n",
        ],
        ids=["status line", "head", "body", "body with a length", "chunk"],
    )  # fmt: skip
    def test_one_byte_at_a_time_ends_with_the_whole_time(self, path: Path, head: bytes) -> None:
        with Server(lambda c: _drip(c, server, head)) as server, pytest.raises(FetchFailed):
            client(server, patience=HASTY).fetch(url(server), path, LIMIT)
        assert not path.exists()

    @pytest.mark.parametrize(
        "head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["status line", "head", "body"]
    )
    def test_one_byte_at_a_time_ends_below_the_least_rate(self, path: Path, head: bytes) -> None:
        with (
            Server(lambda c: _drip(c, server, head)) as server,
            pytest.raises(FetchFailed, match="fewer than 1,000 bytes a second"),
        ):
            client(server, patience=WATCHFUL).fetch(url(server), path, LIMIT)
        assert not path.exists()

    def test_a_server_that_delays_each_of_many_ranges_ends_below_the_least_rate(self, tmp_path: Path) -> None:
        def late(_: socket.socket) -> bytes:
            server.over.wait(0.19)  # less than the window, and too long for the 100 bytes of a reply's head
            return reply(206, b"x", Content_Range="bytes 0-0/100000", Etag='"a"')

        with Server(late) as server, (tmp_path / "part").open("wb") as file:
            guard = client(server, patience=WATCHFUL)
            rate = guard.least_rate()

            def fetch_ranges() -> None:
                while True:
                    guard.fetch_part(url(server), file, 0, 1, limit_bytes=LIMIT, etag="a", rate=rate)

            with pytest.raises(FetchFailed, match="fewer than 1,000 bytes a second"):
                fetch_ranges()

    def test_a_receiver_that_drips_its_answer_ends_with_the_whole_time(self) -> None:
        with Server(lambda c: _drip(c, server, b"HTTP/1.1 200")) as server, pytest.raises(FetchFailed):
            client(server, patience=HASTY).post(url(server), b"{}", {}, 1)

    def test_a_receiver_that_does_not_read_ends_with_the_whole_time(self) -> None:
        with Server(lambda _: _wait(server)) as server, pytest.raises(FetchFailed):
            client(server, patience=HASTY).post(url(server), bytes(50_000_000), {}, 1)

    def test_a_receiver_that_reads_a_little_at_a_time_ends_with_the_whole_time(self) -> None:
        def sip(connection: socket.socket) -> None:
            while not server.over.wait(0.05):
                connection.recv(65536)

        with Server(sip) as server, pytest.raises(FetchFailed):
            client(server, patience=HASTY).post(url(server), bytes(500_000_000), {}, 1)

    @both
    def test_a_handshake_that_is_never_answered_ends_with_the_whole_time(self, path: Path, ask: Ask) -> None:
        with Server(b"") as server:
            server.before = lambda: _wait(server)
            settings = Settings(allowed_hosts=(f"media.example:{server.port}",))
            guard = GuardedClient(
                settings, Names({"media.example": ["127.0.0.1"]}), HASTY, tls=ssl.create_default_context()
            )
            with pytest.raises(FetchFailed):
                ask(guard, f"https://media.example:{server.port}/", path)

    @both
    def test_a_name_server_that_never_answers_ends_with_the_whole_time(
        self, path: Path, seen: Canary, ask: Ask
    ) -> None:
        over = threading.Event()

        def silent(_host: str, _port: int) -> list[str]:
            over.wait()
            return ["8.8.8.8"]

        try:
            with pytest.raises(FetchFailed):
                ask(GuardedClient(Settings(fetch_any_public_host=True), silent, HASTY), "http://slow.example/", path)
        finally:
            over.set()
        assert seen.connected == []

    @pytest.mark.breadth(but=("100", "header", "chunk extensions", "body"))
    @pytest.mark.parametrize(
        ("head", "again"),
        [
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
            (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
            (b"HTTP/1.1 200 OK\r\n", b"X-More: of the same\r\n"),
            (b"HTTP/1.1 200 OK\r\nX: ", b"y" * 1000),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1;why=" + b"y" * 1000 + b"\r\nx\r\n"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: of the same\r\n"),
            (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1000),
        ],
        ids=["100", "103", "headers", "header", "chunk extensions", "trailers", "body", "chunks"],
    )  # fmt: skip
    def test_a_flood_ends_by_its_size(self, path: Path, head: bytes, again: bytes) -> None:
        sent = 0

        def flood(connection: socket.socket) -> None:
            nonlocal sent
            connection.sendall(head)
            with suppress(OSError):
                while not server.over.is_set():
                    connection.sendall(again)
                    sent += len(again)

        with Server(flood) as server, pytest.raises((FetchFailed, MediaTooLarge)):
            client(server, patience=TimeLimits()).fetch(url(server), path, LIMIT // 10)
        assert sent < 20 * LIMIT  # with what lies in the sockets' buffers
        assert not path.exists()

    def test_a_job_that_is_over_ends_its_download(self, path: Path) -> None:
        asked = threading.Event()

        def check() -> None:
            if asked.is_set():
                raise Canceled

        def drip(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            asked.set()
            _drip(connection, server, b"")

        with Server(drip) as server, pytest.raises(Canceled):
            client(server, patience=TimeLimits()).fetch(url(server), path, LIMIT, check=check)
        assert not path.exists()


class TestServersThatLie:
    @pytest.mark.parametrize(
        "head",
        [
            "Content-Length: 4\r\nContent-Length: 5", "Content-Length: 4, 5", "Content-Length: -4",
            "Content-Length: +4", "Content-Length: 0x4", "Content-Length: 4.0", "Content-Length: four",
            "Content-Length:", "Content-Length: 400", f"Content-Length: {'9' * 19}", f"Content-Length: {'9' * 5000}",
            "Content-Length: \xb2", "Transfer-Encoding: gzip", "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: identity",
            "Transfer-Encoding: chunked\r\nContent-Length: 4",
        ],
    )  # fmt: skip
    def test_about_the_length_of_the_body(self, path: Path, head: str) -> None:
        said = f"HTTP/1.1 200 OK\r\n{head}\r\n\r\nbody".encode("latin-1")
        with Server(said) as server, pytest.raises((FetchFailed, MediaTooLarge)):
            client(server).fetch(url(server), path, LIMIT)
        assert not path.exists()

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"\r\n", b"-1\r\nx\r\n", b"0x4\r\nbody\r\n0\r\n\r\n", b"4\r\nbod", b"4\r\nbodyx\r\n0\r\n\r\n",
            b"4\r\nbody\r\n", b"4\r\nbody\r\n0\r\n", b"4 4\r\nbody\r\n0\r\n\r\n", b"f" * 21 + b"\r\n", b"\xff\r\n",
            b"4;" + b"e" * 300_000 + b"\r\nbody\r\n0\r\n\r\n",
        ],
    )  # fmt: skip
    def test_about_its_chunks(self, path: Path, body: bytes) -> None:
        with (
            Server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body) as server,
            pytest.raises(FetchFailed),
        ):
            client(server).fetch(url(server), path, LIMIT)
        assert not path.exists()

    @pytest.mark.parametrize(
        "head",
        [b"X: a\0b", b"X: a\rb", b"X : y", b"X\0: y", b": y", b"no colon", b"Location: /\nX: y", b"\xff: y"],
    )
    def test_about_what_a_header_is(self, path: Path, head: bytes) -> None:
        said = b"HTTP/1.1 302 Found\r\nLocation: /again\r\n" + head + b"\r\nContent-Length: 0\r\n\r\n"
        with Server(said) as server:
            with pytest.raises((FetchFailed, MediaRefused)):
                client(server).fetch(url(server), path, LIMIT)
            assert all(b"X: y" not in request for request in server.requests)

    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP", "x-gzip"])
    def test_a_bomb_is_never_unpacked(self, path: Path, encoding: str) -> None:
        bomb = gzip.compress(bytes(50 * LIMIT))
        with Server(reply(200, bomb, Content_Encoding=encoding)) as server:
            with pytest.raises(PenstockError) as caught:
                client(server).fetch(url(server), path, LIMIT)
            assert caught.value.code == "media_unreadable"
            answer = client(server).post(url(server), b"{}", {}, 5)
        assert answer.body == bomb[: 64 << 10]
        assert not path.exists()

    def test_a_bomb_that_says_nothing_is_a_file_of_the_size_that_was_sent(self, path: Path) -> None:
        bomb = gzip.compress(bytes(50 * LIMIT))
        with Server(reply(200, bomb, Content_Type="application/gzip")) as server:
            assert client(server).fetch(url(server), path, LIMIT).size_bytes == len(bomb)
        assert path.read_bytes() == bomb

    def test_a_stream_that_switches_protocols_is_no_media(self, path: Path) -> None:
        said = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nsecret"
        with Server(said) as server, pytest.raises(PenstockError):
            client(server).fetch(url(server), path, LIMIT)
        assert not path.exists()


def _drip(connection: socket.socket, server: Server, head: bytes) -> None:
    connection.sendall(head)
    with suppress(OSError):
        while not server.over.wait(0.05):
            connection.sendall(b"x")


def _wait(server: Server) -> None:
    server.over.wait()


def _names(request: bytes) -> set[str]:
    head = request.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    return {line.split(b":")[0].decode().lower() for line in head}
