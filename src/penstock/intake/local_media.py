"""Media as local files, and their names.

IO processes import this module and not `media`: what they import is copied by each fork, and fetching media takes
`httpx2` and the settings, 10 MB.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from dataclasses import dataclass
from pathlib import Path

#: Characters of an upload's name, at most.
MAX_NAME_CHARS = 100
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
    """Return the file's name as used in upload keys: ASCII letters, digits, `._-`, no folder, at most 100 characters.

    A suffix of up to 16 characters survives the shortening. A name without any allowed character becomes `upload`.
    """
    name = re.split(r"[/\\]", filename)[-1]
    name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip("._-")
    if len(name) > MAX_NAME_CHARS:
        stem, dot, suffix = name.rpartition(".")
        tail = dot + suffix if stem and len(suffix) <= 16 else ""
        name = name[: MAX_NAME_CHARS - len(tail)] + tail
    return name or "upload"
