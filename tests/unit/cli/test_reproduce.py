"""Two results of one request, compared."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.reproduce import Compared, Difference, compare, request_again
from penstock.client.answers import Job
from penstock.client.decoding import read

MADE: dict[str, Any] = {
    "model": {"name": "m", "revision": "1", "weights_sha256": "w"},
    "machine": "cpu-avx2",
    "software": {"penstock": "1", "torch": "2"},
    "inputs": [{"place": "/scene", "reference": "media://a/s.tif", "size_bytes": 1234, "sha256": "s"}],
    "defaults": {"/threshold": 0.5},
    "parts": 0,
}


def job(made: dict[str, Any] | None = MADE, text: str | None = "hi", files: str = "ab", **fields: Any) -> Job:
    artifacts = [
        {"name": f"{name}.tif", "content_type": "image/tiff", "size_bytes": 1, "sha256": name * 64} for name in files
    ]
    return read(
        Job,
        {
            "id": "1", "model": "m", "status": "succeeded", "created_at": "2026-01-01T00:00:00Z",
            "input": {"scene": "media://a/s.tif"}, "output": {"text": text, "json": {"n": 1, "m": [2]}},
            "artifacts": artifacts, "provenance": made, **fields,
        }
    )  # fmt: skip


def test_equal_results_are_equal_wherever_they_were_made() -> None:
    found = compare(job(), job(MADE | {"machine": "cpu-avx512f"}))
    assert found.equal
    assert [(each.name, each.kind) for each in found.results] == [
        ("a.tif", "artifact"), ("b.tif", "artifact"), ("text", "output"), ("json", "output"),
    ]  # fmt: skip
    assert found.differences == (Difference("machine", "cpu-avx2", "cpu-avx512f"),)


@pytest.mark.parametrize(
    ("second", "name"),
    [(job(text="ha"), "text"), (job(text=None), "text"), (job(files="a"), "b.tif"), (job(files="abc"), "c.tif")],
    ids=["other text", "no text", "a file less", "a file more"],
)
def test_a_part_that_differs_or_is_missing_is_named(second: Job, name: str) -> None:
    found = compare(job(), second)
    assert not found.equal
    assert [each.name for each in found.results if not each.same] == [name]


def test_the_order_of_names_in_json_makes_no_difference() -> None:
    assert compare(job(), job(output={"text": "hi", "json": {"m": [2], "n": 1}})).equal
    assert not compare(job(), job(output={"text": "hi", "json": {"m": [2], "n": 2}})).equal


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"model": MADE["model"] | {"revision": "2"}}, Difference("model.revision", "1", "2")),
        ({"software": {"penstock": "1"}}, Difference("software.torch", "2", None)),
        (
            {"inputs": [MADE["inputs"][0] | {"sha256": None, "etag": "e"}]},
            Difference("inputs./scene", "s, 1,234 bytes", "etag e, 1,234 bytes"),
        ),
        ({"defaults": {"/threshold": 0.6}}, Difference("input./threshold", 0.5, 0.6)),
        ({"parts": 3}, Difference("parts", 0, 3)),
    ],
    ids=["revision", "software", "input", "default", "parts"],
)
def test_what_differs_in_how_the_results_were_made_is_named(changed: dict[str, Any], difference: Difference) -> None:
    assert compare(job(), job(MADE | changed)).differences == (difference,)


def test_a_default_that_was_filled_in_is_no_difference() -> None:
    again = job(MADE | {"defaults": {}}, input={"scene": "media://a/s.tif", "threshold": 0.5})
    assert compare(job(), again).differences == ()


def test_a_copied_result_reproduces_nothing() -> None:
    found = compare(job(), job(MADE | {"copied_from": "0"}))
    assert (found.equal, found.copied_from) == (False, "0")
    assert all(each.same for each in found.results)


def test_results_without_provenance_are_compared_all_the_same() -> None:
    found = compare(job(None), job())
    assert (found.equal, found.differences) == (True, ())
    assert Compared("a.tif", "artifact", "a" * 64, "a" * 64) in found.results


def test_a_default_that_changed_since_is_sent_with_its_former_value() -> None:
    schema = {"properties": {"scene": {}, "threshold": {"default": 0.5}}}
    assert request_again(job(), schema) == {"scene": "media://a/s.tif"}
    schema["properties"]["threshold"] = {"default": 0.9}
    assert request_again(job(), schema) == {"scene": "media://a/s.tif", "threshold": 0.5}
    assert request_again(job(None), schema) == {"scene": "media://a/s.tif"}
