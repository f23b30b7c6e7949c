"""Objects as plain files under a folder, for one machine and for drop folders.

A key is the file's path. A put is atomic and durable: the bytes are written to a temporary file (`.penstock/tmp`) and
synced to disk; the file is renamed or, with `if_absent`, linked into place, so that the first writer wins among any
number of processes; then the folders with new entries are synced. A content type that differs from the key's suffix is
stored under `.penstock/types`. The file system needs hard links.
"""

from __future__ import annotations

import hashlib
import mimetypes
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from penstock.errors import (
    ConfigError,
    InvalidRequest,
    MediaChanged,
    MediaTooLarge,
    ObjectNotFound,
    ObjectStoreUnavailable,
)
from penstock.storage.objects.base import (
    CHUNK_BYTES,
    DEFAULT_CONTENT_TYPE,
    Fetched,
    ObjectInfo,
    PresignedPut,
    StoredPart,
)
from penstock.storage.objects.local_files import copy_whole, etag_of, in_the_way, place_file, read_whole, translated
from penstock.storage.objects.local_multipart import PartFolder
from penstock.storage.signing import SignedLink, sign_link
from penstock.storage.spool import write_probe

MAX_KEY_BYTES = 1024
MAX_PART_BYTES = 255
_OWN = ".penstock"
#: Python's own table, the same on every machine.
_TYPES = mimetypes.MimeTypes()


class LocalStore:
    """An `ObjectStore` in a folder. Its links lead to the API at `base_url` and are signed with `secret`.

    Only its user can read the files of a `private` store; other users may read those of a watched folder.
    `passed_over` is called with the names of entries that a listing skips: links, and names that are no keys. `sync`
    writes an open file or folder to the disk.
    """

    def __init__(
        self,
        root: Path,
        *,
        base_url: str = "",
        secret: str | None = None,
        clock: Callable[[], float] = time.time,
        passed_over: Callable[[str], None] = lambda _key: None,
        private: bool = False,
        sync: Callable[[int], object] = os.fsync,
    ) -> None:
        self.root = root.absolute()
        self._base_url = base_url
        self._secret = secret
        self._clock = clock
        self._passed_over = passed_over
        self._mode = 0o600 if private else 0o666  # less the umask
        self._own = self.root / _OWN
        self._sync = sync
        #: True once the store's own folder was seen: a store that is missing afterwards is away, not empty.
        self._seen = False
        self._is_away()

    def put_file(self, key: str, path: Path, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
        """Store a copy of a file."""
        with path.open("rb") as source:

            def copy(file: BinaryIO) -> None:
                shutil.copyfileobj(source, file, CHUNK_BYTES)

            return self._put(key, copy, content_type, if_absent=if_absent)

    def put_bytes(self, key: str, data: bytes, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
        """Store bytes."""
        return self._put(key, lambda file: file.write(data), content_type, if_absent=if_absent)

    def require_way(self, key: str) -> None:
        """Raise the `InvalidRequest` of a put, with the name of the folder or object that blocks the key."""
        path = self._path(key)
        above = path.parents[: len(path.relative_to(self.root).parents) - 1]
        is_folder = path.is_dir() and not path.is_symlink()
        blocking = [folder for folder in above if os.path.lexists(folder) and not folder.is_dir()]
        if is_folder or blocking:
            blocker = (blocking or [path])[0].relative_to(self.root).as_posix()
            raise InvalidRequest(f"{in_the_way(path).detail}: {blocker!r} is in the way")

    def get_file(self, key: str, path: Path, *, limit_bytes: int, etag: str | None = None) -> ObjectInfo:
        """Copy an object to a new file; an object that changes in place meanwhile is also `MediaChanged`."""
        with self._checked(key, limit_bytes, etag) as (source, status):
            copy_whole(source, status, path)
            return self._info(key, status)

    def fetch(
        self, key: str, place: Callable[[], Path], *, limit_bytes: int, memory_bytes: int, etag: str | None = None
    ) -> Fetched:  # fmt: skip
        """Read a small object or copy a larger one; raise `MediaChanged` if it changes in place meanwhile."""
        with self._checked(key, limit_bytes, etag) as (source, status):
            if status.st_size > memory_bytes:
                path = place()
                copy_whole(source, status, path)
                return Fetched(path, etag_of(status))
            return Fetched(read_whole(source, status), etag_of(status))

    def get_bytes(self, key: str, *, limit_bytes: int) -> bytes:
        """Return an object's bytes."""
        with self._opened(key) as source:
            data = source.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise MediaTooLarge.beyond(limit_bytes)
        return data

    def read(self, key: str, *, start: int = 0, end: int | None = None, etag: str | None = None) -> Iterator[bytes]:
        """Yield a range of an object's bytes; errors come with the first chunk."""
        with self._opened(key) as source:
            if etag not in (None, etag_of(os.fstat(source.fileno()))):
                raise MediaChanged
            source.seek(start)
            left = (os.fstat(source.fileno()).st_size if end is None else end) - start
            while left > 0 and (chunk := source.read(min(left, CHUNK_BYTES))):
                left -= len(chunk)
                yield chunk

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of an object."""
        with self._reading(key):
            status = self._path(key).lstat()
            if not stat.S_ISREG(status.st_mode):
                raise ObjectNotFound(f"there is no object {key!r}")
            return self._info(key, status)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the regular files whose path begins with the prefix; skip links."""
        folder = prefix.rpartition("/")[0]
        if folder and not _is_key(folder):
            return
        for key, status in self._walk(f"{folder}/".lstrip("/")):
            if key.startswith(prefix):
                yield ObjectInfo(key, status.st_size, etag_of(status), status.st_mtime)

    def delete(self, key: str) -> None:
        """Delete an object, and the folders that it leaves empty."""
        path = self._path(key)
        with suppress(ObjectNotFound), self._reading(key):
            path.unlink()
        shutil.rmtree(self._types(key), ignore_errors=True)
        for folder in path.parents:
            if folder == self.root:
                break
            try:
                folder.rmdir()
            except OSError:
                break

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects one after the other."""
        for key in keys:
            self.delete(key)

    def delete_prefix(self, prefix: str) -> int:
        """Delete every object whose key begins with the prefix and return their number."""
        count = 0
        for info in self.list(prefix):
            self.delete(info.key)
            count += 1
        return count

    def presign_get(self, key: str, *, filename: str, expires_s: int) -> str:
        """Return a signed link to the API."""
        return self._link(SignedLink("GET", key, self._ends(expires_s), filename=filename))

    def presign_put(self, key: str, *, content_type: str, size_bytes: int, expires_s: int) -> PresignedPut:
        """Return a signed link to the API."""
        link = SignedLink("PUT", key, self._ends(expires_s), size_bytes=size_bytes, content_type=content_type)
        headers = {"Content-Type": content_type, "Content-Length": str(size_bytes)}
        return PresignedPut(self._link(link), expires_s, headers=headers)

    def begin_multipart(self, key: str, *, content_type: str) -> None:
        """Make a folder for the parts."""
        with translated():
            self._own_folder("parts")
            self._parts(key).begin(content_type, key)

    def presign_part(self, key: str, number: int, *, size_bytes: int, expires_s: int) -> PresignedPut:
        """Return a signed link to the API."""
        with self._reading(key):
            self._parts(key).content_type()
        link = SignedLink("PUT", key, self._ends(expires_s), size_bytes=size_bytes, part=number)
        return PresignedPut(self._link(link), expires_s, headers={"Content-Length": str(size_bytes)})

    def put_part(self, key: str, number: int, path: Path, *, md5: str) -> StoredPart:
        """Move a file into place as a part; `md5` is the MD5 of its bytes."""
        with self._reading(key):
            path.chmod(path.stat().st_mode & self._mode)
            return self._parts(key).put(number, path, md5)

    def parts(self, key: str) -> Sequence[StoredPart]:
        """Return the stored parts, by number."""
        with self._reading(key):
            return self._parts(key).parts()

    def complete_multipart(self, key: str, parts: Sequence[StoredPart]) -> None:
        """Join the parts into the object."""
        folder = self._parts(key)
        with self._reading(key):
            content_type = folder.content_type()
            self._put(key, lambda file: folder.write(parts, file), content_type, if_absent=True)
        self.abort_multipart(key)

    def abort_multipart(self, key: str) -> None:
        """Remove the folder of the parts."""
        self._parts(key).remove()

    def abort_multiparts(self, prefix: str) -> int:
        """Remove the folders of parts of all keys under a prefix."""
        with translated():
            return PartFolder.remove_all(self._own / "parts", prefix)

    def uri(self, key: str) -> str:
        """Return `file:///...`."""
        return self._path(key).as_uri()

    def ping(self) -> None:
        """Return if the folder exists, or can be made, and a small file can be written there."""
        with translated():
            write_probe(self._own_folder("tmp"))

    def sweep(self, *, older_than_s: float) -> int:
        """Remove the temporary files of dead writers, and the parts of uploads that never ended."""
        count = PartFolder.sweep(self._own / "parts", before_s=self._clock() - older_than_s)
        with translated():
            for temporary in self._own_folder("tmp").iterdir():
                with suppress(FileNotFoundError):
                    if self._clock() - temporary.stat().st_mtime >= older_than_s:
                        temporary.unlink()
                        count += 1
        return count

    def _put(
        self, key: str, write: Callable[[BinaryIO], object], content_type: str, *, if_absent: bool
    ) -> ObjectInfo:  # fmt: skip
        """Store the bytes that `write` writes: they are on the disk before the object gets its name."""
        target = self._path(key)
        with translated(), self._temporary_file() as (temporary, file):
            write(file)
            file.flush()
            # The kernel's clock ticks every few milliseconds: too coarse to distinguish two writes.
            os.utime(file.fileno(), ns=(time.time_ns(), time.time_ns()))
            self._sync(file.fileno())
            status = os.fstat(file.fileno())
            info = ObjectInfo(key, status.st_size, etag_of(status), status.st_mtime, content_type)
            self._keep_type(info)
            for folder in dict.fromkeys(place_file(temporary, target, self.root, if_absent=if_absent)):
                self._sync_folder(folder)
        return info

    @contextmanager
    def _temporary_file(self) -> Iterator[tuple[Path, BinaryIO]]:
        """Open a new file, and remove the file at the end unless it has become an object."""
        path = self._own_folder("tmp") / uuid.uuid4().hex
        try:
            with open(path, "xb", opener=lambda name, flags: os.open(name, flags, self._mode)) as file:
                yield path, file
        finally:
            path.unlink(missing_ok=True)

    def _sync_folder(self, folder: Path) -> None:
        with suppress(FileNotFoundError):  # a concurrent delete has removed the object and its empty folder
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._sync(descriptor)
            finally:
                os.close(descriptor)

    def _own_folder(self, *names: str) -> Path:
        """Return a folder for the store's own files, made if missing.

        The store's folder itself is made only at first: one that disappears during a put is not made again.
        """
        self._require_present()
        if not self._seen:
            self._own.mkdir(parents=True, exist_ok=True)
            self._seen = True
        folder = self._own
        for name in names:
            folder /= name
            folder.mkdir(exist_ok=True)
        return folder

    def _is_away(self) -> bool:
        """Return True where the store's own folder is missing although it was seen, or where a file has its place."""
        seen = self._seen  # read before the stat: another thread may make the folder meanwhile
        try:
            self._own.stat()
        except OSError as error:
            return seen or isinstance(error, NotADirectoryError)
        self._seen = True
        return False

    def _require_present(self) -> None:
        """Raise `ObjectStoreUnavailable` where the store is away, for example because its disk is not mounted."""
        if self._is_away():
            raise ObjectStoreUnavailable("the object store's folder is missing; mount its disk or restore the folder")

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        with translated():
            try:
                yield
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                self._require_present()
                raise ObjectNotFound(f"there is no object {key!r}") from error

    def _parts(self, key: str) -> PartFolder:
        self._path(key)  # raises for a wrong key
        return PartFolder(self._own / "parts" / hashlib.sha256(key.encode()).hexdigest())

    def _keep_type(self, info: ObjectInfo) -> None:
        if _guessed_type(info.key) != info.content_type:
            folder = self._own_folder(*self._types(info.key).relative_to(self._own).parts)
            (folder / info.etag).write_text(info.content_type)

    def _info(self, key: str, status: os.stat_result) -> ObjectInfo:
        etag, content_type = etag_of(status), _guessed_type(key)
        with suppress(FileNotFoundError):
            content_type = (self._types(key) / etag).read_text()
        return ObjectInfo(key, status.st_size, etag, status.st_mtime, content_type)

    def _types(self, key: str) -> Path:
        # A file per version: writers of one key never touch each other's.
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self._own / "types" / digest[:2] / digest

    def _path(self, key: str) -> Path:
        _require_key(key)
        return self.root / key

    @contextmanager
    def _opened(self, key: str) -> Iterator[BinaryIO]:
        with self._reading(key):
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ObjectNotFound(f"there is no object {key!r}")
                yield file

    @contextmanager
    def _checked(self, key: str, limit_bytes: int, etag: str | None) -> Iterator[tuple[BinaryIO, os.stat_result]]:
        """Open an object that is read as a whole; yield its file and its status."""
        with self._opened(key) as file:
            status = os.fstat(file.fileno())
            if etag not in (None, etag_of(status)):
                raise MediaChanged
            if status.st_size > limit_bytes:
                raise MediaTooLarge.beyond(limit_bytes)
            yield file, status

    def _walk(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        with translated():
            try:
                with os.scandir(self.root / folder) as scan:  # only the names are kept: there may be a million
                    names = sorted(map(_listed_name, scan))
            except (FileNotFoundError, NotADirectoryError):
                self._require_present()
                return
        for name in names:
            key = folder + os.fsdecode(name.removesuffix(b"/"))
            if key == _OWN:
                continue
            if not _is_key(key):
                self._passed_over(key)
                continue
            if name.endswith(b"/"):
                yield from self._walk(f"{key}/")
                continue
            with suppress(FileNotFoundError):
                status = (self.root / key).lstat()
                if stat.S_ISREG(status.st_mode):
                    yield key, status
                else:
                    self._passed_over(key)

    def _ends(self, expires_s: int) -> int:
        return int(self._clock()) + expires_s

    def _link(self, link: SignedLink) -> str:
        if not self._secret or not self._base_url:
            raise ConfigError("the local object store needs `secret` to sign its links")
        return f"{self._base_url}/v1/local/{quote(link.key)}?{sign_link(self._secret, link)}"


def _is_key(key: str) -> bool:
    try:
        parts = key.encode().split(b"/")
    except UnicodeEncodeError:
        return False
    fits = sum(map(len, parts)) + len(parts) - 1 <= MAX_KEY_BYTES and max(map(len, parts)) <= MAX_PART_BYTES
    return fits and b"\0" not in key.encode() and parts[0] != _OWN.encode() and not {b"", b".", b".."} & set(parts)


def _require_key(key: str) -> None:
    if not _is_key(key):
        raise InvalidRequest("the object's key has a part that no file may have")


def _guessed_type(key: str) -> str:
    return _TYPES.guess_type(f"/{key.rpartition('/')[2]}", strict=False)[0] or DEFAULT_CONTENT_TYPE


def _listed_name(entry: os.DirEntry[str]) -> bytes:
    """Return an entry's name as the order of keys needs it: a folder's ends with a slash."""
    name = os.fsencode(entry.name)
    return name + b"/" if entry.is_dir(follow_symlinks=False) else name
