"""Media as local files, and their names.

IO processes import this module and not `media`: what they import is copied by each fork, and fetching media takes
`httpx2` and the settings, 10 MB.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Bytes of an upload's name, at most: file systems allow 255.
MAX_NAME_BYTES = 100
#: Beginning of the name of each medium's folder.
FOLDER_PREFIX = "media-"

#: Held while a file is made: a processor may ask for it in several threads.
_making = threading.Lock()


@dataclass(frozen=True, slots=True)
class LocalMedia:
    """A fetched medium: alone in its own folder, and named `media` with the reference's suffix."""

    #: The file; for a medium in memory, the path at which `file` makes it.
    path: Path
    #: Etag of the source, if it has one.
    etag: str | None = None
    #: True if the file has holes: its processor must have ranges filled before it reads them.
    partial: bool = False
    #: The bytes of a medium in memory, which has no file until `file` is called; None for a file.
    data: bytes | None = None

    def file(self) -> Path:
        """Return the path of the file; make the file first if the medium is in memory. Raises `OSError`."""
        if self.data is not None:
            with _making:
                if not self.path.exists():
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self.path.write_bytes(self.data)
        return self.path

    @property
    def source(self) -> Path | bytes:
        """The bytes of a medium in memory, else the path of the file."""
        return self.path if self.data is None else self.data


def safe_name(filename: str) -> str:
    """Return the file's name as used in upload keys: letters, digits, `._-`, no folder, at most 100 bytes of UTF-8.

    Accents of ASCII letters are removed; letters of other scripts stay. A suffix of up to 16 characters survives the
    shortening. A name without any allowed character becomes `upload`.
    """
    name = "".join(_allowed(re.split(r"[/\\]", filename)[-1]))
    name = unicodedata.normalize("NFC", re.sub("\0+", "_", name)).lstrip("._-")
    if len(name.encode()) > MAX_NAME_BYTES:
        stem, dot, suffix = name.rpartition(".")
        tail = dot + suffix if stem and len(suffix) <= 16 else ""
        start = name.encode()[: MAX_NAME_BYTES - len(tail.encode())]
        name = start.decode(errors="ignore") + tail
    return name or "upload"


def _allowed(name: str) -> Iterator[str]:
    """Yield the letters and digits of a name with their marks; NUL for other characters of ASCII."""
    of_letter = False
    for character in unicodedata.normalize("NFKD", name):
        kind = unicodedata.category(character)[0]
        if character.isascii():
            of_letter = False
            yield character if character.isalnum() or character in "._-" else "\0"
        elif kind in "LN" or (kind == "M" and of_letter):
            of_letter = True
            yield character
