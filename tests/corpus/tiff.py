"""TIFF files written field by field: what no library would write."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

BYTE, ASCII, SHORT, LONG, DOUBLE = 1, 2, 3, 4, 12
_CODES = {BYTE: "B", SHORT: "H", LONG: "I", DOUBLE: "d"}

WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, OFFSETS, SAMPLES = 256, 257, 258, 259, 262, 273, 277
ROWS_PER_STRIP, COUNTS, PLANAR, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_COUNTS = 278, 279, 284, 322, 323, 324, 325
ORIENTATION, PALETTE, FORMAT, SCALE, TIEPOINT, MATRIX, METADATA, NODATA = (
    274, 320, 339, 33550, 33922, 34264, 42112, 42113,
)  # fmt: skip

#: A field's type, and its values; of ASCII its bytes. A count that is not that of the values is given beside them.
Field = tuple[int, Sequence[float] | bytes] | tuple[int, Sequence[float] | bytes, int]

_HEADER_BYTES, _FIELD_BYTES = 8, 12


def tiff(fields: Mapping[int, Field], data: bytes = b"", *, following: int = 0) -> bytes:
    """Return a little-endian TIFF of one directory, whose pixels begin right behind it: see `data_at`.

    `following` is where the next directory is said to lie.
    """
    at = _HEADER_BYTES + 2 + _FIELD_BYTES * len(fields) + 4
    rows, behind = b"", b""
    for tag, (kind, values, *told) in sorted(fields.items()):
        packed = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{_CODES[kind]}", *values)
        row = struct.pack("<HHI", tag, kind, told[0] if told else len(values))
        if len(packed) <= 4:
            rows += row + packed.ljust(4, b"\0")
        else:
            rows += row + struct.pack("<I", at + len(behind))
            behind += packed + b"\0" * (len(packed) % 2)
    head = b"II*\0" + struct.pack("<IH", _HEADER_BYTES, len(fields))
    return head + rows + struct.pack("<I", following) + behind + data


def chain(count: int) -> bytes:
    """Return a grey picture of 16 x 16 px in so many directories, each behind the other."""
    fields: dict[int, Field] = {
        WIDTH: (LONG, [16]), HEIGHT: (LONG, [16]), BITS: (SHORT, [8]), COMPRESSION: (SHORT, [1]),
        PHOTOMETRIC: (SHORT, [1]), SAMPLES: (SHORT, [1]), ROWS_PER_STRIP: (LONG, [16]), COUNTS: (LONG, [256]),
    }  # fmt: skip
    size = len(tiff({**fields, OFFSETS: (LONG, [0])})) - _HEADER_BYTES
    fields[OFFSETS] = (LONG, [_HEADER_BYTES + count * size])
    ends = [_HEADER_BYTES + number * size for number in range(1, count)]
    directories = [tiff(fields, following=end)[_HEADER_BYTES:] for end in (*ends, 0)]
    return tiff({})[:_HEADER_BYTES] + b"".join(directories) + b"\x64" * 256


def grey(height: int, width: int, **changed: Field | None) -> bytes:
    """Return an uncompressed 8-bit grey picture of one strip, with fields changed by their names here, None = without.

    Its pixels are 100 everywhere, as many as a sound file of this size has, at most 64 kB.
    """
    data = b"\x64" * min(height * width, 2**16)
    fields: dict[int, Field] = {
        WIDTH: (LONG, [width]), HEIGHT: (LONG, [height]), BITS: (SHORT, [8]), COMPRESSION: (SHORT, [1]),
        PHOTOMETRIC: (SHORT, [1]), SAMPLES: (SHORT, [1]), ROWS_PER_STRIP: (LONG, [height]),
        COUNTS: (LONG, [len(data)]), OFFSETS: (LONG, [0]),
    }  # fmt: skip
    named = globals()
    fields |= {named[name]: field for name, field in changed.items() if field is not None}
    fields = {
        tag: field for tag, field in fields.items() if tag not in {named[n] for n, f in changed.items() if f is None}
    }
    if OFFSETS in fields and "OFFSETS" not in changed:
        fields[OFFSETS] = (LONG, [len(tiff(fields))])
    return tiff(fields, data)
