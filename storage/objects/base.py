"""The interface of object stores. `local.py` and `s3.py` pass the same contract tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import quote

from penstock.errors import FetchFailed, ObjectStoreUnavailable

DEFAULT_CONTENT_TYPE = "application/octet-stream"
#: Largest chunk that `read` yields.
CHUNK_BYTES = 1 << 20


class ObjectStoreRefused(ObjectStoreUnavailable):
    """The object store does not answer."""

    #: It answers that the credentials have no access, which its `detail` says.


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Metadata of an object."""

    key: str
    size_bytes: int
    #: Opaque tag, without quotes, that changes with the bytes.
    etag: str
    #: Seconds since the epoch, UTC.
    modified_s: float
    content_type: str = DEFAULT_CONTENT_TYPE
    #: The object's version where its bucket keeps versions.
    version_id: str | None = None


@dataclass(frozen=True, slots=True)
class PresignedPut:
    """A link to upload one object: `method` `url` with exactly these `headers`."""

    url: str
    expires_s: int
    method: str = "PUT"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A stored part of a multipart upload. Parts count from 1."""

    number: int
    size_bytes: int
    #: The MD5 of its bytes in hexadecimal; opaque where S3 encrypts with keys of KMS.
    etag: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched object: the bytes of a small one, or the path of its new file."""

    contents: bytes | Path
    etag: str


class ObjectStore(Protocol):
    """Objects under keys like `tenants/default/jobs/<id>/...`.

    Every method raises `ObjectStoreUnavailable` when the store does not answer or refuses the request, and
    `ObjectNotFound` for a missing key unless its docstring states another rule. A put is atomic: no reader ever gets
    half an object.
    """

    def put_file(self, key: str, path: Path, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
        """Store a file, in parts where it is large. With `if_absent`, raise `ObjectExists` if the key is taken."""
        ...

    def put_bytes(self, key: str, data: bytes, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
        """Store bytes. With `if_absent`, raise `ObjectExists` if the key is taken: the first writer wins.

        Over a network the winner may be our own try whose answer was lost: read the object to find out.
        """
        ...

    def get_file(self, key: str, path: Path, *, limit_bytes: int, etag: str | None = None) -> ObjectInfo:
        """Copy an object to a new file; `MediaTooLarge` past the limit, `MediaChanged` if it has another etag."""
        ...

    def fetch(
        self, key: str, place: Callable[[], Path], *, limit_bytes: int, memory_bytes: int, etag: str | None = None
    ) -> Fetched:  # fmt: skip
        """Return the bytes of an object of at most `memory_bytes`; copy a larger one to a new file at `place()`.

        With `memory_bytes` -1, every object is copied to a file. Raises the errors of `get_file` and of `place`.
        """
        ...

    def get_bytes(self, key: str, *, limit_bytes: int) -> bytes:
        """Return an object's bytes; `MediaTooLarge` past the limit."""
        ...

    def read(self, key: str, *, start: int = 0, end: int | None = None, etag: str | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` to before `end` in chunks of at most 1 MiB; errors come while iterating.

        A range that begins after the object's end yields nothing. With `etag`, an object that has another etag is
        `MediaChanged`.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of an object."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose key begins with the prefix, in the order of their keys (UTF-8 bytes).

        Listings carry no content type: `content_type` is the default.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is no error."""
        ...

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, many in one request; missing ones are no error."""
        ...

    def delete_prefix(self, prefix: str) -> int:
        """Delete every object whose key begins with the prefix and return their number."""
        ...

    def presign_get(self, key: str, *, filename: str, expires_s: int) -> str:
        """Return a link that downloads the object as `filename` until it expires."""
        ...

    def presign_put(self, key: str, *, content_type: str, size_bytes: int, expires_s: int) -> PresignedPut:
        """Return a link that uploads one object of exactly this size and type until it expires.

        The first upload wins. (On S3 only where the server supports `If-None-Match: *`.)
        """
        ...

    def begin_multipart(self, key: str, *, content_type: str) -> None:
        """Begin a multipart upload, unless one has begun."""
        ...

    def presign_part(self, key: str, number: int, *, size_bytes: int, expires_s: int) -> PresignedPut:
        """Return a link that uploads a part of exactly this size until it expires; the last upload counts.

        Raises `ObjectNotFound` before the upload begins or after it ends, as the other methods for parts do. The store
        refuses a body that does not match its `Content-MD5`.
        """
        ...

    def parts(self, key: str) -> Sequence[StoredPart]:
        """Return the stored parts, by number."""
        ...

    def complete_multipart(self, key: str, parts: Sequence[StoredPart]) -> None:
        """Join these parts into the object and drop the others. Raise `ObjectExists` if the key is taken."""
        ...

    def abort_multipart(self, key: str) -> None:
        """Drop a multipart upload and its parts; without one this is no error."""
        ...

    def abort_multiparts(self, prefix: str) -> int:
        """Drop every multipart upload whose key begins with the prefix, and return their number."""
        ...

    def uri(self, key: str) -> str:
        """Return the object's address for people and tools: `s3://bucket/key` or `file:///path`."""
        ...

    def ping(self) -> None:
        """Return if the store answers and accepts the credentials."""
        ...

    def sweep(self, *, older_than_s: float) -> int:
        """Remove the remains of older uploads that never ended; return their number."""
        ...


def content_disposition(filename: str) -> str:
    """Return the header that makes browsers save a download as `filename`, in any alphabet (RFC 6266)."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%;' else "_" for c in filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that must not exist yet, and remove it after a failure; an error of the disk is `FetchFailed`."""
    try:
        with path.open("xb") as file:
            try:
                yield file
                file.flush()
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise FetchFailed(f"could not write the media to the disk: {error.strerror}") from error
