"""The guard against real sockets, with a resolver under the test's control."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
import trustme

from penstock.config import Settings
from penstock.errors import (
    FetchFailed,
    MediaNotFound,
    MediaRefused,
    MediaTooLarge,
    MediaUnreadable,
    PenstockError,
)
from penstock.intake.guard import GuardedClient, TimeLimits
from penstock.workers.keeper.webhooks import signed_headers
from tests.support.guards import LIMIT, SHORT, Names, client, url
from tests.support.web_server import Server, reply

#: Loopback, but nobody else's: the usual port 8080 of it is free for servers that nobody may reach.
FORBIDDEN = "127.9.8.7"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "media"


class TestFetch:
    def test_the_bytes_come_in_with_etag_and_type(self, path: Path) -> None:
        with Server(reply(200, b"II*\0data", ETag='W/"abc"', Content_Type="image/tiff")) as server:
            fetched = client(server).fetch(url(server, "/a?b=c%2F"), path, LIMIT)
        assert (fetched.size_bytes, fetched.etag, fetched.content_type) == (8, "abc", "image/tiff")
        assert path.read_bytes() == b"II*\0data"
        (request,) = server.requests
        assert request.startswith(b"GET /a?b=c%2F HTTP/1.1\r\n")
        assert f"host: media.example:{server.port}\r\n".encode() in request.lower()

    def test_a_body_without_a_length_is_taken_to_its_end(self, path: Path) -> None:
        with Server(b"HTTP/1.1 200 OK\r\n\r\nall of it") as server:
            assert client(server).fetch(url(server), path, LIMIT).size_bytes == 9
        assert path.read_bytes() == b"all of it"

    def test_exactly_the_limit_passes_and_one_byte_more_does_not(self, path: Path) -> None:
        with Server(reply(200, b"12345")) as server:
            assert client(server).fetch(url(server), path, 5).size_bytes == 5
            path.unlink()
            with pytest.raises(MediaTooLarge):
                client(server).fetch(url(server), path, 4)
        assert not path.exists()

    def test_an_endless_body_ends_at_the_limit(self, path: Path) -> None:
        def flood(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"x" * 65536)

        with Server(flood) as server, pytest.raises(MediaTooLarge):
            client(server).fetch(url(server), path, LIMIT)
        assert not path.exists()

    def test_a_body_that_ends_early_is_a_failed_fetch(self, path: Path) -> None:
        with Server(reply(200, b"half", Content_Length="8")) as server, pytest.raises(FetchFailed):
            client(server).fetch(url(server), path, LIMIT)
        assert not path.exists()

    def test_a_body_that_goes_on_is_cut_at_its_declared_length(self, path: Path) -> None:
        with Server(reply(200, b"four and more", Content_Length="4")) as server:
            assert client(server).fetch(url(server), path, LIMIT).size_bytes == 4
        assert path.read_bytes() == b"four"

    @pytest.mark.parametrize(
        ("status", "error"),
        [
            (204, MediaNotFound), (206, MediaNotFound), (304, MediaNotFound), (401, MediaNotFound),
            (403, MediaNotFound), (404, MediaNotFound), (410, MediaNotFound), (408, FetchFailed), (429, FetchFailed),
            (500, FetchFailed), (503, FetchFailed),
        ],
    )  # fmt: skip
    def test_another_status_than_200_is_no_media(self, path: Path, status: int, error: type[PenstockError]) -> None:
        with Server(reply(status, b"" if status in (204, 304) else b"no")) as server, pytest.raises(error):
            client(server).fetch(url(server), path, LIMIT)
        assert not path.exists()

    def test_a_compressed_answer_is_not_unpacked(self, path: Path) -> None:
        with Server(reply(200, b"\x1f\x8b", Content_Encoding="gzip")) as server, pytest.raises(MediaUnreadable):
            client(server).fetch(url(server), path, LIMIT)
        assert not path.exists()

    @pytest.mark.parametrize(
        "said",
        [
            b"", b"\r\n\r\n", b"hello", b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 100,
            b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
            b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        ],
    )  # fmt: skip
    def test_nonsense_is_one_of_our_errors(self, path: Path, said: bytes) -> None:
        with Server(said) as server, pytest.raises((FetchFailed, MediaRefused)):
            client(server).fetch(url(server), path, LIMIT)
        assert not path.exists()

    def test_nobody_there_is_a_failed_fetch(self, path: Path) -> None:
        with Server(b"") as server:
            guard = client(server)
        with pytest.raises(FetchFailed):
            guard.fetch(url(server), path, LIMIT)
        with pytest.raises(FetchFailed):
            guard.fetch("http://unknown.example/", path, LIMIT)

    def test_the_second_address_is_tried_when_the_first_is_dead(self, path: Path) -> None:
        with Server(reply(200, b"x")) as server:
            guard = client(server, media=["127.0.0.2", "127.0.0.1"])
            assert guard.fetch(url(server), path, LIMIT).size_bytes == 1

    def test_proxies_in_the_environment_are_not_used(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with Server(reply(200, b"proxy")) as proxy, Server(reply(200, b"origin")) as server:
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            client(server).fetch(url(server), path, LIMIT)
        assert path.read_bytes() == b"origin"
        assert proxy.accepted == 0


class TestTime:
    """Only the idle time ends these: a test whose bound does not hold does not end."""

    IDLE = TimeLimits(connect_s=60, idle_s=0.3, total_s=3600)

    def test_a_silent_server_is_left_after_the_idle_time(self, path: Path) -> None:
        with Server(lambda _: _wait(server)) as server:
            self._fails(server, path)

    def test_a_body_that_stalls_is_left_after_the_idle_time(self, path: Path) -> None:
        def stall(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            _wait(server)

        with Server(stall) as server:
            self._fails(server, path)

    def _fails(self, server: Server, path: Path) -> None:
        with pytest.raises(FetchFailed):
            client(server, patience=self.IDLE).fetch(url(server), path, LIMIT)
        assert not path.exists()


def _wait(server: Server) -> None:
    server.over.wait()


class TestRefused:
    @pytest.fixture
    def forbidden(self) -> Server:
        try:
            return Server(reply(200, b"secret"), host=FORBIDDEN, port=8080)
        except OSError as error:
            pytest.skip(f"needs the loopback address {FORBIDDEN}:8080, as Linux has it: {error}")

    @pytest.mark.parametrize(
        "found", [[FORBIDDEN], ["8.8.8.8", FORBIDDEN], [FORBIDDEN, "8.8.8.8"], [f"::ffff:{FORBIDDEN}"]]
    )
    def test_no_connection_is_made_unless_every_answer_is_public(
        self, path: Path, forbidden: Server, found: list[str]
    ) -> None:
        with forbidden:
            guard = client(sneaky=found)
            with pytest.raises(MediaRefused) as caught:
                guard.fetch("http://sneaky.example:8080/", path, LIMIT)
            with pytest.raises(MediaRefused):
                guard.post("http://sneaky.example:8080/", b"{}", {}, 1)
            assert forbidden.accepted == 0
        assert FORBIDDEN not in caught.value.detail
        assert not path.exists()

    @pytest.mark.parametrize(
        "location",
        [
            f"http://{FORBIDDEN}:8080/",
            "http://sneaky.example:8080/",
            "//sneaky.example:8080/",
            "http://[::ffff:127.9.8.7]:8080/",
            "http://2131298311:8080/",
            "http://media.example@127.9.8.7:8080/",
            "file:///etc/passwd",
            "ftp://media.example/",
        ],
    )
    def test_a_redirect_is_checked_anew(self, path: Path, forbidden: Server, location: str) -> None:
        with forbidden, Server(reply(302, Location=location)) as server:
            with pytest.raises(MediaRefused):
                client(server, sneaky=[FORBIDDEN]).fetch(url(server), path, LIMIT)
            assert (server.accepted, forbidden.accepted) == (1, 0)
        assert not path.exists()

    def test_an_exempt_pair_exempts_neither_other_ports_nor_its_address(self, path: Path, forbidden: Server) -> None:
        with forbidden, Server(b"") as server:
            guard = client(server, media=[FORBIDDEN])
            for target in ("http://media.example:8080/", f"http://{FORBIDDEN}:8080/"):
                with pytest.raises(MediaRefused):
                    guard.fetch(target, path, LIMIT)
            assert (server.accepted, forbidden.accepted) == (0, 0)

    def test_a_name_is_asked_once_a_hop_and_its_answer_is_what_is_connected_to(self, path: Path) -> None:
        class Rebinding(Names):
            def __call__(self, host: str, _port: int) -> Sequence[str]:
                answer = super().__call__(host, _port)
                self.known[host] = [FORBIDDEN]
                return answer

        with Server(reply(200, b"right")) as server:
            names = Rebinding({"media.example": ["127.0.0.1"]})
            settings = Settings(allowed_hosts=(f"media.example:{server.port}",))
            GuardedClient(settings, names, SHORT).fetch(url(server), path, LIMIT)
        assert names.asked == ["media.example"]
        assert path.read_bytes() == b"right"

    def test_closed_mode_asks_nobody(self, path: Path) -> None:
        names = Names({"public.example": ["8.8.8.8"]})
        with pytest.raises(MediaRefused):
            GuardedClient(Settings(), names).fetch("https://public.example/", path, LIMIT)
        assert names.asked == []


class TestRedirects:
    def test_three_are_followed_relative_ones_included(self, path: Path) -> None:
        with Server(reply(200, b"end")) as last:
            hops = [reply(301, Location="/b?c=1"), reply(307, Location="d"), reply(302, Location=url(last, "/end"))]
            with Server(*hops) as first:
                client(first, last).fetch(url(first, "/a/"), path, LIMIT)
        assert path.read_bytes() == b"end"
        assert [request.split()[1] for request in first.requests] == [b"/a/", b"/b?c=1", b"/d"]

    def test_a_fourth_is_refused(self, path: Path) -> None:
        with Server(reply(302, Location="/again")) as server:
            with pytest.raises(MediaRefused):
                client(server).fetch(url(server), path, LIMIT)
            assert server.accepted == 4


class TestTls:
    def test_the_certificate_and_sni_are_those_of_the_name(self, path: Path) -> None:
        fetched, asked = self._fetch_over_tls("media.example", path)
        assert fetched == 6
        assert asked == ["media.example"]

    def test_another_names_certificate_is_a_failed_fetch(self, path: Path) -> None:
        with pytest.raises(FetchFailed):
            self._fetch_over_tls("other.example", path)
        assert not path.exists()

    def _fetch_over_tls(self, name: str, path: Path) -> tuple[int, list[str | None]]:
        authority = trustme.CA()
        serving, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        authority.issue_cert(name).configure_cert(serving)
        authority.configure_trust(trusting)
        asked: list[str | None] = []
        serving.sni_callback = lambda _, host, __: asked.append(host)
        with Server(reply(200, b"secure")) as server:
            server.tls = serving
            settings = Settings(allowed_hosts=(f"media.example:{server.port}",))
            guard = GuardedClient(settings, Names({"media.example": ["127.0.0.1"]}), SHORT, tls=trusting)
            fetched = guard.fetch(f"https://media.example:{server.port}/", path, LIMIT)
        return fetched.size_bytes, asked


class TestPost:
    def test_body_and_headers_arrive_and_the_answer_comes_back(self) -> None:
        with Server(reply(201, b"thanks", Retry_After="7")) as server:
            headers = {"Content-Type": "application/json", "webhook-id": "msg_1"}
            answer = client(server).post(url(server, "/hook"), b'{"a":1}', headers, 5)
        assert (answer.status, answer.headers["retry-after"], answer.body) == (201, "7", b"thanks")
        (request,) = server.requests
        assert request.startswith(b"POST /hook HTTP/1.1\r\n")
        assert b"webhook-id: msg_1\r\n" in request
        assert b"content-length: 7\r\n" in request.lower()

    def test_a_webhook_names_its_sender_once(self) -> None:
        with Server(reply(204)) as server:
            headers = signed_headers("msg_1", "{}", ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], at=0)
            client(server).post(url(server), b"{}", headers, 5)
        (request,) = server.requests
        assert request.lower().count(b"user-agent: penstock\r\n") == 1

    def test_a_redirect_is_an_answer_like_any_other(self) -> None:
        with Server(reply(307, Location="/elsewhere")) as server:
            assert client(server).post(url(server), b"{}", {}, 5).status == 307
            assert server.accepted == 1

    def test_only_the_beginning_of_a_long_answer_is_read(self) -> None:
        with Server(reply(200, b"x" * 10_000_000)) as server:
            assert client(server).post(url(server), b"{}", {}, 5).body == b"x" * 65536

    def test_a_status_counts_although_its_body_never_ends(self) -> None:
        def stall(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            server.over.wait(10)

        with Server(stall) as server:
            assert client(server).post(url(server), b"{}", {}, 5).body == b"half"

    def test_a_receiver_that_says_nothing_fails_in_time(self) -> None:
        def wait(_: socket.socket) -> None:
            server.over.wait()

        patience = TimeLimits(connect_s=3600, idle_s=3600, total_s=3600)
        with Server(wait) as server, pytest.raises(FetchFailed):
            client(server, patience=patience).post(url(server), b"{}", {}, 0.3)


def test_the_systems_resolver_finds_loopback() -> None:
    guard = GuardedClient(Settings())
    assert "127.0.0.1" in guard.resolver("localhost", 80)


def test_no_file_is_overwritten(path: Path) -> None:
    path.write_bytes(os.urandom(4))
    with Server(reply(200, b"x")) as server, pytest.raises(FetchFailed):
        client(server).fetch(url(server), path, LIMIT)
    assert path.stat().st_size == 4
