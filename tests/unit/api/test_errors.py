"""The HTTP status of each error, and the JSON pointer of each path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import errors
from penstock.api.errors import SeldomLogged, status_of
from penstock.errors import ModelNotServed, PenstockError
from penstock.json_body import pointer

#: Written by hand: the code of every error that a route may raise, with its status.
EXPECTED = {
    "malformed_body": 400, "body_timeout": 408, "unsupported_content_type": 415, "invalid_request": 422,
    "host_refused": 421,
    "link_refused": 403, "origin_refused": 403, "unknown_queue": 404, "unknown_job": 404, "unknown_artifact": 404,
    "unknown_delivery": 404,
    "unknown_upload": 404, "job_gone": 410, "payload_too_large": 413, "idempotency_mismatch": 422,
    "state_conflict": 409, "too_many_jobs": 429, "too_many_requests": 429, "media_not_found": 422,
    "media_refused": 422, "media_too_large": 422, "media_unreadable": 422, "media_changed": 422, "missing_bands": 422,
    "invalid_input": 422, "redis_unavailable": 503, "object_store_unavailable": 503, "queue_full": 503,
    "queue_draining": 503, "model_unavailable": 503, "redis_full": 503, "redis_refused": 503, "redis_failed": 500,
    "record_too_new": 500,
    "model_unfit": 404, "client_left": 499, "wait_over": 504,
    "not_ready": 503, "object_not_found": 404, "object_exists": 409, "config_error": 500,
    "processor_failed": 500,
}  # fmt: skip


def tree(root: type[PenstockError]) -> Iterator[type[PenstockError]]:
    """Yield a class and everything below it."""
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


@pytest.mark.parametrize(("code", "status"), EXPECTED.items())
def test_each_code_has_its_status(code: str, status: int) -> None:
    classes = [cls for cls in tree(PenstockError) if cls.code == code]
    assert classes
    assert {status_of(cls()) for cls in classes} == {status}


def test_an_unknown_model_is_a_missing_resource_or_a_wrong_field() -> None:
    assert (status_of(errors.UnknownModel()), status_of(ModelNotServed())) == (404, 422)
    assert ModelNotServed().report() == errors.UnknownModel().report()


def test_every_error_of_the_callers_is_4xx_and_of_ours_5xx() -> None:
    for cls in tree(errors.RequestError):
        assert 400 <= status_of(cls()) < 500, cls
    for cls in tree(errors.InputError):
        assert 400 <= status_of(cls()) < 500, cls
    for cls in tree(errors.ServiceError):
        assert status_of(cls()) >= 500, cls


@pytest.mark.parametrize(("path", "expected"), [([], ""), (["a", 0], "/a/0"), (["a/b", "c~d", ""], "/a~1b/c~0d/")])
def test_pointers_follow_rfc_6901(path: list[str | int], expected: str) -> None:
    assert pointer(path) == expected


def test_a_code_is_logged_once_a_second() -> None:
    now_s = 0.0
    logged = SeldomLogged(lambda: now_s)
    assert [logged.left_out(code) for code in ("job_store", "job_store", "job_store", "object_store")] == [
        0, None, None, 0,
    ]  # fmt: skip
    now_s = 1.0
    assert [logged.left_out("job_store") for _ in range(2)] == [2, None]
