"""Codings of request bodies (`Content-Encoding`, RFC 9110, section 8.4): gzip and zstd, decoded piece by piece."""

from __future__ import annotations

import asyncio
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from penstock.errors import MalformedBody, UnsupportedContentType

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Bytes of a decoded piece, at most: a few bytes of a bomb decode to gigabytes.
PIECE_BYTES = 65_536
#: Members or frames of a body, at most, and the decoded bytes that allow one more: empty ones cost time for nothing.
MAX_MEMBERS, MEMBER_BYTES = 100, 1024
#: Window of a zstd frame: 8 MiB, at most (RFC 9659).
_ZSTD_WINDOW_LOG = 23
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS


class Decoder(ABC):
    """A decoder of one body, which may have several members or frames."""

    def __init__(self) -> None:
        #: True where the body may end: no member is incomplete.
        self.is_complete = True
        #: Members that have begun, and the bytes that they all decoded to.
        self._members, self._decoded_bytes = 1, 0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded bytes of the next data, in pieces of at most `PIECE_BYTES`; raise `ValueError`."""
        wants_more = not data
        while not wants_more:
            piece, data, wants_more = self._step(data)
            self._decoded_bytes += len(piece)
            if self._members > MAX_MEMBERS + self._decoded_bytes // MEMBER_BYTES:
                raise ValueError("the body has too many small members")
            if piece:
                yield piece

    @abstractmethod
    def _step(self, data: bytes) -> tuple[bytes, bytes, bool]:
        """Return a piece, the data that are left, and True where no output waits for its turn."""


class _Gzip(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)

    def _step(self, data: bytes) -> tuple[bytes, bytes, bool]:
        if self._member.eof:
            self._members += 1
            self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        try:
            piece = self._member.decompress(data, PIECE_BYTES)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        self.is_complete = self._member.eof
        left = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        return piece, left, not left and (self._member.eof or len(piece) < PIECE_BYTES)


class _Zstd(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self._frame = self._new()

    def _step(self, data: bytes) -> tuple[bytes, bytes, bool]:
        if self._frame.eof:
            self._members += 1
            self._frame = self._new()
        try:
            piece = self._frame.decompress(data, PIECE_BYTES)
        except zstd.ZstdError as error:
            raise ValueError(str(error)) from error
        self.is_complete = self._frame.eof
        left = self._frame.unused_data if self._frame.eof else b""
        return piece, left, not left and (self._frame.eof or self._frame.needs_input)

    @staticmethod
    def _new() -> zstd.ZstdDecompressor:
        return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})


_DECODERS: Mapping[str, Callable[[], Decoder]] = MappingProxyType({"gzip": _Gzip, "x-gzip": _Gzip, "zstd": _Zstd})
#: The codings of request bodies, as the value of `Accept-Encoding` (RFC 7694).
ACCEPTED = "gzip, zstd"


def decoder_of(fields: Iterable[str]) -> Decoder | None:
    """Return the decoder for the values of `Content-Encoding`; None for a body without a coding.

    Raises `UnsupportedContentType` for another coding and for several.
    """
    named = [each.strip().lower() for field in fields for each in field.split(",")]
    codings = [each for each in named if each not in ("", "identity")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in _DECODERS:
        shown = ", ".join(codings)[:100]
        raise UnsupportedContentType(
            f"the Content-Encoding {shown!r} is not supported; send gzip or zstd, or no Content-Encoding"
        )
    return _DECODERS[codings[0]]()


async def decoded(chunks: AsyncIterator[bytes], decoder: Decoder) -> AsyncIterator[bytes]:
    """Yield the decoded body; raise `MalformedBody` for one that is damaged or incomplete."""
    async for chunk in chunks:
        try:
            for piece in decoder.pieces(chunk):
                yield piece
                await asyncio.sleep(0)  # other requests have their turn
        except ValueError as error:
            raise MalformedBody("the body does not have the coding that its Content-Encoding names") from error
    if not decoder.is_complete:
        raise MalformedBody("the body ends before its Content-Encoding does: it is incomplete")
