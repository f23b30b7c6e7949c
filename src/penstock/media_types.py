"""Media types (RFC 9110): the values of `Content-Type`, which stores and servers send on as a header."""

from __future__ import annotations

import re

#: Characters of a media type with its parameters, at most.
_MAX_CHARS = 255
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = rf'[ \t]*;[ \t]*{_WORD}=(?:{_WORD}|"[ !#-\[\]-~]*")'
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?:{_PARAMETER})*")


def is_media_type(text: str) -> bool:
    """Return True for `type/subtype` with or without parameters, in ASCII, of at most 255 characters."""
    return len(text) <= _MAX_CHARS and _MEDIA_TYPE.fullmatch(text) is not None


def essence(media_type: str) -> str:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


#: Key of the JSON Schema of a media field: the name of the field for the files that lie beside a local file.
BESIDE = "x-beside"
