from __future__ import annotations

import pytest

from penstock.media_types import essence, is_media_type


@pytest.mark.parametrize(
    "text",
    [
        "image/tiff",
        "image/tiff; application=geotiff; profile=cloud-optimized",
        "text/csv;charset=utf-8",
        'multipart/related; boundary="a b"',
        "application/vnd.apache.parquet",
    ],
)
def test_a_type_with_its_parameters_is_a_media_type(text: str) -> None:
    assert is_media_type(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "tiff", "image/", "/tiff", "image/tiff\r\nSet-Cookie: a=b", "image/tiff\n", "image/ti ff", "imagé/tiff",
        "image/tiff;", "image/tiff; a", 'image/tiff; a="\r\n"', "image/tiff\0", "image/" + "t" * 250,
    ],
)  # fmt: skip
def test_what_no_header_can_hold_is_no_media_type(text: str) -> None:
    assert not is_media_type(text)


def test_the_essence_has_no_parameters() -> None:
    assert essence(" Image/TIFF ; a=b") == "image/tiff"
