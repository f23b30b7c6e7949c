"""Headers of messages, parsed. The tiles of a job have the same header but for their memory: it is parsed once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from penstock.workers.io.values import Views

#: Bytes of a header that is remembered, at limits.
MAX_REMEMBERED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a message, its plain values, and the places of its arrays. Nobody may write to it."""

    fields: Mapping[str, Any]
    plain: Mapping[str, Any]
    views: Views

    @property
    def _repeatable(self) -> bool:
        """True if messages can share the values: a list would be the same one in all of them."""
        own = (value for name, value in self.fields.items() if name not in ("plain", "arrays"))
        return not any(isinstance(value, list | dict) for value in chain(own, self.plain.values()))


class Headers:
    """The headers of one connection. Remembers the latest one."""

    def __init__(self) -> None:
        self._text = b""
        self._latest: Header | None = None

    def parse(self, text: bytes | bytearray) -> Header:
        """Return a header; raise `ValueError`, `TypeError`, `KeyError` or `RecursionError` for an invalid one."""
        if self._latest is not None and text == self._text:
            return self._latest
        fields = json.loads(text.decode())
        if not isinstance(fields["plain"], dict):
            raise TypeError("the plain values have no names")
        header = Header(fields, fields["plain"], Views.of(fields["arrays"]))
        if len(text) <= MAX_REMEMBERED_BYTES and header._repeatable:
            self._text, self._latest = bytes(text), header
        return header
