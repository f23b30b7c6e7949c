"""The processor of functions: names of files."""

from __future__ import annotations

import pytest

from penstock.processors.functions.processor import file_name


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("media://0198/a.tar.gz", "a.tar.gz"),
        ("s3://bucket/in/a b?.csv", "a b?.csv"),
        ("https://example.org/a%20b.csv?signed=1/2", "a b.csv"),
        ("/tmp/data/a.csv", "a.csv"),
        ("s3://bucket/..", "file"),
        ("https://example.org/%2e%2e%2fetc%2fpasswd", "passwd"),
        ("s3://bucket/a\x00:b.csv", "a__b.csv"),
        ("media://0198/" + "n" * 90 + ".csv", "n" * 48 + ".csv"),
    ],
)
def test_a_file_has_the_name_that_its_reference_gives(reference: str, name: str) -> None:
    assert file_name(reference) == name
