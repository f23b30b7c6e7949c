"""Access profiles against a server on this machine: each scheme with each fault, by download and by range."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.config import Settings
from penstock.errors import (
    FetchFailed,
    MediaNotFound,
    MediaRefused,
    ObjectStoreUnavailable,
    PenstockError,
    ServiceError,
)
from penstock.intake.guard import GuardedClient, TimeLimits
from penstock.intake.media import fetch_for_job, parse_reference
from penstock.storage.objects.opening import open_store
from tests.support.access_server import CONTENT, KEY_ID, NAMES, USER, AccessServer, Asked, Scheme
from tests.support.guards import LIMIT, Names

SECRET = "s3cr3t-0f-the-t3nant"
PATIENCE = TimeLimits(connect_s=30, idle_s=30, total_s=60)
WEB: tuple[Scheme, ...] = (
    "bearer", "basic", "header", "query", "planetary-computer", "earthdata", "earthdata-login",
)  # fmt: skip
SCHEMES: tuple[Scheme, ...] = (*WEB, "s3")


def profile(server: AccessServer, secret: Path) -> dict[str, Any]:
    """Return the profile of the server's scheme."""
    port, made = server.port, {"name": "theirs", "tenants": ["acme"], "secret": {"file": str(secret)}}
    own: dict[Scheme, dict[str, Any]] = {
        "bearer": {},
        "basic": {"username": USER},
        "header": {"header": "X-Key"},
        "query": {"parameter": "token"},
        "planetary-computer": {"hosts": [f"*.blob.example:{port}"], "service_url": server.url("sign.example", "/sas")},
        "earthdata": {},
        "earthdata-login": {"kind": "earthdata", "username": USER, "service_url": server.url("login.example")},
        "s3": {
            "buckets": ["scen*"], "access_key_id": KEY_ID, "service_url": f"http://127.0.0.1:{port}",
            "requester_pays": True,
        },
    }  # fmt: skip
    hosts = {} if server.scheme == "s3" else {"hosts": [f"data.example:{port}"]}
    return {"kind": server.scheme, **hosts, **made, **own[server.scheme]}


@dataclass
class Reader:
    """A tenant's fetches of the server's file."""

    server: AccessServer
    folder: Path
    #: Log entries so far.
    log: list[Any]
    by_range: bool = True
    tenant: str = "acme"

    def __post_init__(self) -> None:
        self.secret = self.folder / "secret"
        self.secret.write_text(f"{SECRET}\n")
        self.settings = Settings(
            allowed_hosts=self.server.hosts, access_profiles=[profile(self.server, self.secret)], data=self.folder
        )
        self.guard = GuardedClient(self.settings, Names({name: ["127.0.0.1"] for name in NAMES}), PATIENCE)

    def read(self, reference: str | None = None) -> bytes:
        """Return bytes of the file, in the middle where it is read by range."""
        store = open_store((self.folder / "objects").as_uri(), self.settings)
        media, part = fetch_for_job(
            reference or self.server.reference, self.folder / "media", by_range=self.by_range, store=store,
            tenant=self.tenant, settings=self.settings, guard=self.guard, limit_bytes=10 * LIMIT,
        )  # fmt: skip
        assert (part is not None) is self.by_range
        if part is not None:
            assert part.size_bytes == len(CONTENT)
            part.fill([(1_000_000, 1_100_000)])
        with media.file().open("rb") as file:
            file.seek(1_000_000)
            return file.read(100_000)


RIGHT = CONTENT[1_000_000:1_100_000]


@contextmanager
def reading(
    scheme: Scheme, folder: Path, *, by_range: bool = True, tenant: str = "acme", **state: Any
) -> Iterator[Reader]:
    """Serve a file by a scheme and give its reader; at the end, the secret is in no log entry and in no file."""
    with AccessServer(scheme, SECRET, **state).serve() as server, structlog.testing.capture_logs() as log:
        reader = Reader(server, folder, log, by_range, tenant)
        yield reader
    assert SECRET not in str(log)
    written = [path for path in folder.rglob("*") if path.is_file() and path != reader.secret]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


def refused(reader: Reader, error: type[PenstockError]) -> PenstockError:
    """Return the error of a read, which names the profile and not the secret."""
    with pytest.raises(error) as caught:
        reader.read()
    chain: BaseException | None = caught.value
    while chain is not None:
        assert SECRET not in f"{chain!r} {chain} {getattr(chain, '__notes__', '')}"
        chain = chain.__cause__
    return caught.value


def authorized(asked: list[Asked]) -> list[Asked]:
    return [each for each in asked if each.holds(SECRET)]


@pytest.mark.parametrize("by_range", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
class TestFaults:
    def test_the_file_is_read(self, scheme: Scheme, by_range: bool, tmp_path: Path) -> None:
        with reading(scheme, tmp_path, by_range=by_range, payer=True) as reader:
            assert reader.read() == RIGHT
            assert reader.read() == RIGHT

    def test_another_tenant_has_no_credentials(self, scheme: Scheme, by_range: bool, tmp_path: Path) -> None:
        with reading(scheme, tmp_path, by_range=by_range, tenant="other") as reader:
            refused(reader, PenstockError)
            assert authorized(reader.server.asked) == []

    def test_refused_credentials_name_the_profile(self, scheme: Scheme, by_range: bool, tmp_path: Path) -> None:
        with reading(scheme, tmp_path, by_range=by_range, fault="refuse") as reader:
            error = refused(reader, MediaRefused)
            assert "access profile 'theirs'" in error.detail
            tries = 2 if scheme == "planetary-computer" else 4 if scheme == "earthdata-login" else 1
            files = [each for each in reader.server.asked if each.path.startswith("/scenes")]
            assert 1 <= len(files) <= tries

    def test_a_missing_secret_is_no_request(self, scheme: Scheme, by_range: bool, tmp_path: Path) -> None:
        with reading(scheme, tmp_path, by_range=by_range) as reader:
            reader.secret.unlink()
            error = refused(reader, FetchFailed)
            assert "'theirs' has no secret on this machine" in error.detail
            assert error.retryable
            assert [each.path for each in reader.server.asked if each.host in ("sign.example", "other.example")] == []

    def test_a_throttled_fetch_is_tried_again_after_the_time(
        self, scheme: Scheme, by_range: bool, tmp_path: Path
    ) -> None:
        with reading(scheme, tmp_path, by_range=by_range, fault="throttle") as reader:
            if scheme != "s3":  # boto3 itself waits and asks again
                assert refused(reader, FetchFailed).retry_after_s == 7
            assert reader.read() == RIGHT

    def test_a_dropped_connection_is_a_failed_fetch(self, scheme: Scheme, by_range: bool, tmp_path: Path) -> None:
        with reading(scheme, tmp_path, by_range=by_range, fault="drop") as reader:
            error = refused(reader, ObjectStoreUnavailable if scheme == "s3" else FetchFailed)
            assert error.retryable
            assert reader.read() == RIGHT

    @pytest.mark.parametrize("fault", ["short", "long"])
    def test_a_length_that_is_not_true_is_never_a_file(
        self, scheme: Scheme, by_range: bool, fault: Any, tmp_path: Path
    ) -> None:
        with reading(scheme, tmp_path, by_range=by_range, fault=fault) as reader:
            if fault == "short" and not by_range:  # nobody can tell this file from one that is shorter
                reader.read()
                return
            assert refused(reader, ServiceError).retryable

    def test_a_busy_server_is_tried_again(self, scheme: Scheme, by_range: bool, tmp_path: Path) -> None:
        with reading(scheme, tmp_path, by_range=by_range, fault="busy") as reader:
            if scheme != "s3":
                assert refused(reader, FetchFailed).retryable
            assert reader.read() == RIGHT


@pytest.mark.parametrize("by_range", [True, False])
@pytest.mark.parametrize("scheme", WEB)
def test_a_redirect_carries_no_credentials(scheme: Scheme, by_range: bool, tmp_path: Path) -> None:
    with reading(scheme, tmp_path, by_range=by_range, fault="redirect") as reader:
        assert reader.read() == RIGHT
        (first, *others) = reader.server.at("other.example")
        for each in (first, *others):
            assert each.path == "/scene.tif?copied=1"
            assert not each.holds(SECRET)
            assert not {"authorization", "cookie", "x-key"} & {name.lower() for name in each.headers}


class TestRenewal:
    def test_a_signature_is_used_until_shortly_before_its_end(self, tmp_path: Path) -> None:
        with reading("planetary-computer", tmp_path) as reader:
            assert reader.read() == reader.read() == RIGHT
            assert len(reader.server.at("sign.example")) == 1
            assert reader.server.at("sign.example")[0].path == "/sas/acme/scenes"
            reader.server.lasts_s = 59  # such a signature is renewed at each use
            reader.guard = GuardedClient(reader.settings, reader.guard.resolver, PATIENCE)
            assert reader.read() == RIGHT
            assert len(reader.server.at("sign.example")) == 3

    @pytest.mark.parametrize("by_range", [True, False])
    def test_a_link_that_expired_while_the_job_waited_is_signed_anew(self, by_range: bool, tmp_path: Path) -> None:
        with reading("planetary-computer", tmp_path, by_range=by_range) as reader:
            old = f"{reader.server.reference}?st=2026-01-01&se=2026-01-02&sp=rl&sv=2024-05-04&sr=c&sig=old&x=1"
            assert reader.read(old) == RIGHT
            for each in reader.server.at("acme.blob.example"):
                assert "sig=old" not in each.path
                assert "x=1" in each.path

    def test_a_signature_that_the_server_refuses_is_renewed_once(self, tmp_path: Path) -> None:
        with reading("planetary-computer", tmp_path) as reader:
            assert reader.read() == RIGHT
            reader.server.valid.clear()
            assert reader.read() == RIGHT
            assert len(reader.server.at("sign.example")) == 2

    @pytest.mark.parametrize(("status", "error"), [(404, MediaRefused), (429, FetchFailed), (503, FetchFailed)])
    def test_a_signing_service_that_refuses_is_named(
        self, status: int, error: type[PenstockError], tmp_path: Path
    ) -> None:
        with reading("planetary-computer", tmp_path, service_status=status) as reader:
            caught = refused(reader, error)
            assert f"the signing service of the access profile 'theirs' answered with status {status}" in caught.detail
            assert caught.retry_after_s == 11
            assert reader.server.at("acme.blob.example") == []

    def test_one_login_serves_many_fetches_until_it_ends(self, tmp_path: Path) -> None:
        with reading("earthdata-login", tmp_path) as reader:
            assert reader.read() == reader.read() == RIGHT
            assert len(reader.server.at("login.example")) == 1
            reader.server.valid.clear()
            assert reader.read() == RIGHT
            assert len(reader.server.at("login.example")) == 2
            assert authorized(reader.server.at("data.example")) == []
            cookies = [each.headers.get("Cookie", "") for each in reader.server.at("data.example")]
            assert not [each for each in cookies if "urs" in each]

    def test_a_login_with_a_wrong_password_is_refused(self, tmp_path: Path) -> None:
        with reading("earthdata-login", tmp_path) as reader:
            reader.secret.write_text("wrong")
            assert "the login of the access profile 'theirs' did not succeed" in refused(reader, MediaRefused).detail

    def test_a_login_that_is_down_is_tried_again(self, tmp_path: Path) -> None:
        with reading("earthdata-login", tmp_path, service_status=503) as reader:
            assert refused(reader, FetchFailed).retryable

    def test_only_the_profiles_own_hosts_lead_to_its_login(self, tmp_path: Path) -> None:
        with reading("earthdata-login", tmp_path) as reader:
            with pytest.raises(PenstockError):
                reader.read(reader.server.url("login.example", "/oauth/authorize?redirect_uri=http://evil.example/"))
            assert authorized(reader.server.asked) == []

    @pytest.mark.parametrize("scheme", ["bearer", "basic", "header", "query", "earthdata"])
    def test_a_new_secret_in_the_file_is_used_at_once(self, scheme: Scheme, tmp_path: Path) -> None:
        with reading(scheme, tmp_path) as reader:
            assert reader.read() == RIGHT
            reader.server.secret = "another"
            refused(reader, MediaRefused)
            reader.secret.write_text("another")
            assert reader.read() == RIGHT


def test_a_file_that_wants_credentials_names_the_remedy(tmp_path: Path) -> None:
    with reading("bearer", tmp_path, tenant="other") as reader:
        assert "access profile" in refused(reader, MediaNotFound).detail


def test_a_reader_who_does_not_pay_is_refused(tmp_path: Path) -> None:
    with reading("s3", tmp_path, payer=True) as reader:
        (own,) = reader.settings.access_profiles
        mean = own.model_copy(update={"requester_pays": False})
        reader.settings = reader.settings.model_copy(update={"access_profiles": (mean,)})
        assert "the bucket refused the credentials" in refused(reader, MediaRefused).detail


def test_a_profile_opens_its_hosts_and_buckets_to_its_tenants_alone() -> None:
    settings = Settings(
        access_profiles=[
            {"name": "a", "kind": "bearer", "hosts": ["data.example.org"], "secret": {"env": "X"}, "tenants": ["acme"]},
            {"name": "b", "kind": "s3", "buckets": ["eodata"], "unsigned": True, "tenants": ["acme"]},
        ]
    )
    for reference in ("https://data.example.org/a.tif", "s3://eodata/a.tif"):
        parse_reference(reference, tenant="acme", settings=settings)
        with pytest.raises(MediaRefused):
            parse_reference(reference, tenant="other", settings=settings)
    for reference in ("http://data.example.org/a.tif", "https://data.example.org:8443/a.tif", "s3://eodata2/a.tif"):
        with pytest.raises(MediaRefused):
            parse_reference(reference, tenant="acme", settings=settings)


def test_a_profile_opens_no_address_that_is_not_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        access_profiles=[{"name": "a", "kind": "bearer", "hosts": ["*.example.org"], "secret": {"env": "X"}}]
    )
    guard = GuardedClient(settings, Names({"data.example.org": ["10.0.0.1"]}), PATIENCE)
    with pytest.raises(FetchFailed, match="no secret"):  # before any connection
        guard.fetch("https://data.example.org/a.tif", tmp_path / "a", LIMIT, tenant="acme")
    monkeypatch.setenv("X", SECRET)
    with pytest.raises(MediaRefused):
        guard.fetch("https://data.example.org/a.tif", tmp_path / "a", LIMIT, tenant="acme")
