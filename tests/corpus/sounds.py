"""Sound files, sound and absurd."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

Maker = Callable[[], bytes]


def wav(
    data: bytes = bytes(320), *, channels: int = 1, rate: int = 16_000, bits: int = 16, kind: int = 1, told: int = -1
) -> bytes:
    """Return a WAV file; `told` is how many bytes of samples its header promises, if not those that it has."""
    width = channels * bits // 8
    head = struct.pack("<HHIIHH", kind, channels, rate, rate * width & 0xFFFFFFFF, width & 0xFFFF, bits)
    size = len(data) if told < 0 else told
    body = b"WAVEfmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", min(len(body) + size - len(data), 2**32 - 1)) + body


SOUNDS: Mapping[str, Maker] = {
    "sound.wav": wav,
    "no-samples.wav": lambda: wav(b""),
    "header-only.wav": lambda: wav(b"")[:44],
    "half-a-header.wav": lambda: wav()[:20],
    "promises-4-gb.wav": lambda: wav(told=2**32 - 1),
    "no-channels.wav": lambda: wav(channels=0),
    "65535-channels.wav": lambda: wav(channels=65_535),
    "rate-0.wav": lambda: wav(rate=0),
    "rate-4-billion.wav": lambda: wav(rate=2**32 - 1),
    "no-bits.wav": lambda: wav(bits=0),
    "65535-bits.wav": lambda: wav(bits=65_535),
    "unknown-kind.wav": lambda: wav(kind=0x5555),
    "riff-of-nothing.wav": lambda: b"RIFF\0\0\0\0WAVE",
    "rf64.wav": lambda: b"RF64\xff\xff\xff\xffWAVEds64" + struct.pack("<IQQQI", 28, 2**63, 2**63, 2**63, 0),
    "sound.flac": lambda: b"fLaC\0\0\0\x22" + bytes(34),
    "sound.mp3": lambda: b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(64),
    "sound.ogg": lambda: b"OggS\0\x02" + bytes(60),
}
