"""A store is asked as a browser asks it, and judged by its answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import S3, Settings
from penstock.storage.browser_access import inspect_browser_access
from penstock.storage.objects.opening import open_store
from tests.support.web_server import Server, reply

PAGE = "https://jobs.example.org"


def allowing(origin: str, methods: str) -> bytes:
    return reply(200, Access_Control_Allow_Origin=origin, Access_Control_Allow_Methods=methods)


@pytest.mark.parametrize(
    ("answers", "doubtful", "words"),
    [
        ([allowing(PAGE, "GET, PUT")], False, "may read and write"),
        ([allowing("*", "GET"), allowing("*", "PUT")], False, "may read and write"),
        ([allowing(PAGE, "GET"), reply(403)], True, "does not let browsers write"),
        ([reply(403)], True, "does not let browsers read and write"),
        ([allowing("https://elsewhere.example.org", "GET, PUT")], True, "read and write"),
    ],
)
def test_a_store_is_judged_by_its_answers(tmp_path: Path, answers: list[bytes], doubtful: bool, words: str) -> None:
    with Server(*answers) as server:
        s3 = S3(endpoint_url=f"http://127.0.0.1:{server.port}", access_key_id="a", secret_access_key="b")
        store = open_store("s3://results", Settings(data=tmp_path, s3=s3))
        found = inspect_browser_access(store, f"{PAGE}/penstock")
    assert (found.ok, found.doubtful) == (True, doubtful)
    assert words in found.detail
    asked = [request.decode() for request in server.requests]
    assert [request.split()[0] for request in asked] == ["OPTIONS", "OPTIONS"]
    assert all(f"Origin: {PAGE}\r\n".lower() in request.lower() for request in asked)
    assert "access-control-request-headers: range" in asked[0].lower()
    assert "access-control-request-headers: content-md5,content-type,if-none-match" in asked[1].lower()


def test_a_store_that_does_not_answer_is_not_judged(tmp_path: Path) -> None:
    s3 = S3(endpoint_url="http://127.0.0.1:1", access_key_id="a", secret_access_key="b")
    found = inspect_browser_access(open_store("s3://results", Settings(data=tmp_path, s3=s3)), PAGE)
    assert (found.ok, found.unchecked) == (True, True)
