"""The C library, and small files of /proc. Each is asked several times in every fork, so they make no objects anew.

A fork shares its memory with its template until one of them writes: what a fork does with few objects is cheap.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache


@cache
def libc() -> ctypes.CDLL:
    """Return the C library; its functions set `ctypes.get_errno`."""
    return ctypes.CDLL(None, use_errno=True)


def read(path: str) -> bytes:
    """Return the contents of a small file. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        while part := os.read(descriptor, 65536):
            text += part
        return text
    finally:
        os.close(descriptor)


def write(path: str, text: bytes) -> None:
    """Write a small file, which exists, in one call. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
