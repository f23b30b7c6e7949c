"""Documents beside a scene that are no good: metadata of products and STAC items, in XML and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

Maker = Callable[[], bytes]
_LETTERS = "abcdefghi"


def billion_laughs() -> str:
    """Return 250 bytes that entities blow up to a billion."""
    entities = "".join(f'<!ENTITY {after} "{f"&{before};" * 10}">' for before, after in pairwise(_LETTERS))
    return f'<!DOCTYPE a [<!ENTITY a "ha">{entities}]><a>&i;</a>'


def stac(name: str) -> bytes:
    """Return a STAC item of the good scene whose band is called so, as escapes."""
    asset = {"href": "./good.tif", "bands": [{"name": name}]}
    return json.dumps({"type": "Feature", "properties": {}, "assets": {"a": asset}}).encode()


def landsat(sun: Any) -> bytes:
    """Return a Landsat product's metadata in which the sun stands so high."""
    groups = {"IMAGE_ATTRIBUTES": {"SUN_ELEVATION": sun}, "PRODUCT_CONTENTS": {}, "LEVEL1_RADIOMETRIC_RESCALING": {}}
    return json.dumps({"LANDSAT_METADATA_FILE": groups}).encode()


DOCUMENTS: Mapping[str, Maker] = {
    "laughs.xml": lambda: billion_laughs().encode(),
    "laughs-in-utf-16.xml": lambda: billion_laughs().encode("utf-16"),
    "deep.xml": lambda: b"<a>" * 50_000 + b"</a>" * 50_000,
    "wide.xml": lambda: b"<a>" + b"<b/>" * 100_000 + b"</a>",
    "half.xml": lambda: b"<a><b>",
    "deep.json": lambda: b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "17-mb.json": lambda: b" " * (17 * 2**20) + b"{}",
    "nan.json": lambda: b'{"LANDSAT_METADATA_FILE": NaN}',
    "huge-number.json": lambda: b'{"LANDSAT_METADATA_FILE": ' + b"1" * 10_000 + b"}",
    "nothing.json": lambda: b"{}",
    "array.json": lambda: b"[1]",
    "nul.json": lambda: b"\0",
    "latin-1.json": lambda: '{"ü": 1}'.encode("latin-1"),
    "sun-of-surrogates.json": lambda: landsat("\ud800"),
    "sun-of-infinity.json": lambda: landsat(1e308 * 10),
    "band-of-surrogates.json": lambda: stac("\ud800"),
    "band-of-nul.json": lambda: stac("a\0\x1b[31m\u202e"),
    "band-of-100-kb.json": lambda: stac("a" * 100_000),
}
