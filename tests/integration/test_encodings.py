"""Request bodies with a coding: gzip and zstd are decoded within the limit of the decoded body."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.api.encodings import MAX_MEMBERS, MEMBER_BYTES, PIECE_BYTES, decoder_of
from penstock.errors import UnsupportedContentType
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BODY = json.dumps({"model": "echo", "input": {"text": "hello"}}).encode()
CODINGS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "x-gzip": gzip.compress, "zstd": zstd.compress}
KIND = {"Content-Type": "application/json"}


def whole(coding: str, data: bytes, step: int) -> bytes:
    """Return data decoded in steps of a few bytes."""
    decoder = decoder_of([coding])
    assert decoder is not None
    found = [piece for at in range(0, len(data), step) for piece in decoder.pieces(data[at : at + step])]
    assert decoder.is_complete
    assert max(map(len, found)) <= PIECE_BYTES
    return b"".join(found)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("step", [1, 1000, 10**9])
def test_every_byte_is_decoded_in_bounded_pieces(coding: str, step: int) -> None:
    text = bytes(range(256)) * 300 + bytes(PIECE_BYTES * 3) + b"end"
    assert whole(coding, CODINGS[coding](text), step) == text
    assert whole(coding, CODINGS[coding](text) + CODINGS[coding](b"next"), step) == text + b"next"


@pytest.mark.parametrize("coding", CODINGS)
def test_many_members_without_contents_are_refused_and_many_with_contents_are_not(coding: str) -> None:
    full = CODINGS[coding](bytes(2 * MEMBER_BYTES))
    assert whole(coding, full * (3 * MAX_MEMBERS), 10**9) == bytes(2 * MEMBER_BYTES) * (3 * MAX_MEMBERS)
    for text in (b"", b"1"):
        decoder = decoder_of([coding])
        assert decoder is not None
        with pytest.raises(ValueError, match="too many small members"):
            list(decoder.pieces(CODINGS[coding](text) * (3 * MAX_MEMBERS)))


def test_a_body_without_a_coding_has_no_decoder() -> None:
    assert [decoder_of(fields) for fields in ([], [""], ["identity"])] == [None, None, None]
    for fields in (["br"], ["deflate"], ["gzip, gzip"], ["gzip", "zstd"], ["gzip, br"]):
        with pytest.raises(UnsupportedContentType, match="send gzip or zstd"):
            decoder_of(fields)


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_job_may_be_sent_encoded(service: Service, coding: str) -> None:
    headers = {**KIND, "Idempotency-Key": coding, "Content-Encoding": coding}
    sent = await service.http.post("/v1/jobs", content=CODINGS[coding](BODY), headers=headers)
    assert sent.status_code == 202, sent.text
    assert (await service.claim()).submission.input == {"text": "hello"}
    del headers["Content-Encoding"]
    again = await service.http.post("/v1/jobs", content=BODY, headers=headers)
    assert again.headers["idempotency-replayed"] == "true"


async def test_a_form_may_be_sent_encoded(service: Service) -> None:
    fields: dict[str, Any] = {"data": {"model": "echo", "input": '{"text": "hello"}'}, "files": {"scene": b"II*\0"}}
    request = service.http.build_request("POST", "/v1/jobs", **fields)
    headers = {"Content-Type": request.headers["content-type"], "Content-Encoding": "gzip"}
    sent = await service.http.post("/v1/jobs", content=gzip.compress(await request.aread()), headers=headers)
    assert sent.status_code == 202, sent.text


async def test_other_codings_are_refused_with_those_that_are_accepted(service: Service) -> None:
    for coding in ("br", "gzip, gzip"):
        answer = await service.http.post("/v1/jobs", content=BODY, headers={**KIND, "Content-Encoding": coding})
        problem = assert_problem(answer, 415, "unsupported_content_type")
        assert f"{coding!r} is not supported; send gzip or zstd" in problem["detail"]
        assert answer.headers["accept-encoding"] == "gzip, zstd"


@pytest.mark.parametrize("coding", CODINGS)
async def test_damaged_and_incomplete_bodies_are_refused(service: Service, coding: str) -> None:
    encoded = CODINGS[coding](BODY)
    for content, words in ((BODY, "does not have the coding"), (encoded[:-1], "is incomplete"),
                           (encoded + b"rest", "does not have the coding")):  # fmt: skip
        answer = await service.http.post("/v1/jobs", content=content, headers={**KIND, "Content-Encoding": coding})
        assert words in assert_problem(answer, 400, "malformed_body")["detail"]


@pytest.mark.parametrize("coding", CODINGS)
async def test_the_limit_holds_for_the_decoded_body(valkey: ValkeyProcess, tmp_path: Path, coding: str) -> None:
    headers = {**KIND, "Content-Encoding": coding}
    async with serving(valkey.url, tmp_path, max_body_bytes=1_000_000) as service:
        bomb = CODINGS[coding](b" " * 100_000_000 + BODY)
        assert len(bomb) < 1_000_000
        answer = await service.http.post("/v1/jobs", content=bomb, headers=headers)
        assert "the limit of 1000000 bytes" in assert_problem(answer, 413, "payload_too_large")["detail"]
        fits = CODINGS[coding](b" " * 900_000 + BODY)
        assert (await service.http.post("/v1/jobs", content=fits, headers=headers)).status_code == 202


async def test_a_window_beyond_that_of_http_is_refused(service: Service) -> None:
    options = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.enable_long_distance_matching: 1}
    encoder = zstd.ZstdCompressor(options=options)
    content = encoder.compress(BODY) + encoder.flush()
    answer = await service.http.post("/v1/jobs", content=content, headers={**KIND, "Content-Encoding": "zstd"})
    assert_problem(answer, 400, "malformed_body")


async def test_some_members_without_contents_are_skipped_and_thousands_are_refused(service: Service) -> None:
    empty = zlib.compressobj(wbits=31).flush()
    for count, status in ((MAX_MEMBERS - 1, 202), (30_000, 400)):
        answer = await service.http.post(
            "/v1/jobs", content=empty * count + gzip.compress(BODY), headers={**KIND, "Content-Encoding": "gzip"}
        )
        assert answer.status_code == status, answer.text
