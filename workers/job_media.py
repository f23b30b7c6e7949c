"""The media of an attempt: those that its request names, and those that its processor asks for while it reads them.

A processor has no network. It asks for ranges of a partial file, or for a file that a document of the request names;
the worker fetches them, with the same rules as for the request's own media, into the attempt's folder.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from penstock.errors import (
    FetchFailed,
    InputError,
    InvalidInput,
    MediaNotFound,
    MediaRefused,
    ObjectStoreUnavailable,
    ProcessorFailed,
)
from penstock.intake.local_media import LocalMedia
from penstock.processors.links import LinkedFile, collection_items, linked_files
from penstock.workers.asset_checks import check_file

if TYPE_CHECKING:  # IO processes import this module: see `penstock.intake.local_media`
    from penstock.intake.partial import PartialFile, Range

#: Files that a job's documents may name.
MAX_FETCHED = 1000
#: Most bytes and largest number of a job's small media in memory. They go to the IO process in the message with the
#: job, which holds `channel.INLINE_BYTES` and `values.MAX_ARRAYS` arrays.
HELD_BYTES, MAX_HELD = 48 * 1024, 100
#: Bytes of a document whose links are read.
MAX_DOCUMENT_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Input:
    """A medium of a job."""

    #: JSON pointer into the request; None for a file that a document of the request names.
    place: str | None
    #: The reference, for addresses on the web without the query, which may be a signature.
    reference: str
    size_bytes: int
    #: Digest of the whole file; None where only ranges were read.
    sha256: str | None
    #: Strong etag of the source; None for a file with a digest, and where the source has none.
    etag: str | None = None

    @classmethod
    def of(cls, place: str | None, reference: str, size_bytes: int, sha256: str | None, etag: str | None) -> Input:
        """Return the input of a reference; a weak etag says nothing about bytes and is left out."""
        strong = None if sha256 or etag is None or etag.startswith("W/") else etag
        return cls(place, _without_query(reference), size_bytes, sha256, strong)

    def to_json(self) -> dict[str, Any]:
        """Return the input without the fields that are None."""
        row = {name: getattr(self, name) for name in ("place", "reference", "size_bytes", "sha256", "etag")}
        return {name: value for name, value in row.items() if value is not None}


class Fetcher(Protocol):
    """Fetches a reference into a folder, only its beginning if `by_range`; see `fetch_media`, `fetch_beginning`."""

    def __call__(
        self, reference: str, folder: Path, *, by_range: bool, memory_bytes: int
    ) -> tuple[LocalMedia, PartialFile | None]:
        """Return the local file, and the source of its other ranges if it is partial.

        An object of at most `memory_bytes` stays in memory; with -1, every medium is a file.
        """
        ...


class MediaRequests(Protocol):
    """Answers a processor's requests for media."""

    def fetch(self, reference: str, *, by_range: bool) -> LocalMedia:
        """Return the local file of a reference; only its beginning if `by_range` and if it is large."""
        ...

    def fill(self, reference: str, ranges: Sequence[Range], *, later: bool) -> None:
        """Fetch ranges of a partial file; `later` = not now, but before its prompts are drawn.

        Nothing is done for other files.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoRequests:
    """For a run whose media are all local files."""

    def fetch(self, reference: str, *, by_range: bool) -> LocalMedia:  # noqa: ARG002  (the protocol names it)
        """Refuse every further file."""
        raise InvalidInput(
            f"{reference[:200]} cannot be fetched here: only a service fetches files that a document names. Download "
            "them, and give the local files: for the assets of a STAC item, list them beside it in `files`."
        )

    def fill(self, reference: str, ranges: Sequence[Range], *, later: bool) -> None:
        """Do nothing: local files are whole."""


@dataclass(slots=True)
class JobMedia:
    """The media of one attempt, by reference. One thread uses it at a time, but for `fill` and `complete`."""

    get: Fetcher
    folder: Path
    #: Called with the number of bytes just fetched.
    on_bytes: Callable[[int], None]
    #: True where every file that allows it is fetched by range: of a part of a job, and where its parts are joined.
    by_range: bool = False
    #: Bytes of further small media that may stay in memory; -1 = every medium is a file.
    left_bytes: int = -1
    #: True where the SHA-256 of each whole file is computed when it is here.
    hashed: bool = False
    #: The SHA-256 of whole files in hexadecimal digits, by reference.
    hashes: dict[str, str] = field(default_factory=dict)
    files: dict[str, LocalMedia] = field(default_factory=dict)
    partial: dict[str, PartialFile] = field(default_factory=dict)
    #: Bytes of the sources, by reference.
    sizes: dict[str, int] = field(default_factory=dict)
    #: Files that the processor may have fetched, by reference.
    linked: dict[str, LinkedFile] = field(default_factory=dict)
    #: Sorts the addresses of one file: those that can be read, best first.
    order: Callable[[Sequence[str]], Sequence[str]] = list
    #: Partial files that are fetched whole if this attempt computes the job, and not at all if other workers do.
    undecided: set[str] = field(default_factory=set)
    #: Held while ranges are fetched.
    filling: threading.Lock = field(default_factory=threading.Lock)

    def allow_links(self, document: str | Mapping[str, Any]) -> None:
        """Allow the assets of a STAC item or a collection of items: itself, or a reference to it that was fetched.

        A processor can ask for nothing else: a decoder that was taken over could send data in an address.
        """
        base = document if isinstance(document, str) else None
        if base is not None and base not in self.files:
            return  # it may be missing, and is
        item = _json(self.files[document].source) if isinstance(document, str) else document
        items = collection_items(item, base)
        if items is None:
            self.linked |= linked_files(item, base)
        for each in items or ():
            self.linked |= linked_files(each, None)

    def lack(self, reference: str) -> None:
        """Let the processor ask again for a file that could not be had: it gets the error."""
        self.linked[reference] = LinkedFile()

    def fetch(self, reference: str, *, by_range: bool) -> LocalMedia:
        """Fetch a file that a document of the request names."""
        if reference not in self.linked and reference not in self.files:
            raise ProcessorFailed("the processor asked for a file that no document of the job names")
        with _naming(reference):
            return self._add(reference, by_range=by_range, undecided=False, memory_bytes=-1)

    def add(self, reference: str, *, by_range: bool, undecided: bool = False) -> LocalMedia:
        """Fetch a reference of the request once; if it is `undecided` whether this attempt needs it, see `complete`."""
        memory_bytes = self.left_bytes if len(self.files) < MAX_HELD else -1
        return self._add(reference, by_range=by_range, undecided=undecided, memory_bytes=memory_bytes)

    def _add(self, reference: str, *, by_range: bool, undecided: bool, memory_bytes: int) -> LocalMedia:
        if reference not in self.files:
            if len(self.files) == MAX_FETCHED:
                raise InvalidInput(f"The job's documents name more than {MAX_FETCHED} files.")
            by_range = by_range or self.by_range
            found, part = self._get(reference, by_range=by_range or undecided, memory_bytes=memory_bytes)
            self.files[reference] = found
            if found.data is not None:
                self.left_bytes -= len(found.data)
            if part is not None:
                self.partial[reference] = part
                if not by_range:
                    part.require_size()
                    self.undecided.add(reference)
            elif self.hashed:
                self.hashes[reference] = sha256_of(found.source)
            self.sizes[reference] = _size_bytes(found.source) if part is None else part.size_bytes
            self.on_bytes(self.sizes[reference] if part is None else part.fetched_bytes)
        return self.files[reference]

    def _get(
        self, reference: str, *, by_range: bool, memory_bytes: int
    ) -> tuple[LocalMedia, PartialFile | None]:  # fmt: skip
        """Fetch a file from the first of its addresses that gives the file which its item describes."""
        described = self.linked.get(reference, LinkedFile())
        failures: dict[str, InputError | FetchFailed | ObjectStoreUnavailable] = {}
        for address in self.order((reference, *described.alternates)):
            try:
                found, part = self.get(address, self.folder, by_range=by_range, memory_bytes=memory_bytes)
                check_file(described, found, None if part is None else part.size_bytes)
            except (MediaNotFound, MediaRefused, FetchFailed, ObjectStoreUnavailable) as error:
                failures[address] = error
            else:
                return found, part
        if len(failures) == 1:
            raise next(iter(failures.values()))
        worth = [error for error in failures.values() if error.retryable] or list(failures.values())
        each = "; ".join(f"{_host(address)}: {error.detail}" for address, error in failures.items())
        raise type(worth[0])(
            f"none of its {len(failures)} addresses could be read: {each}", retry_after_s=worth[0].retry_after_s
        ) from worth[0]

    def inputs(self, places: Mapping[str, str]) -> list[Input]:
        """Return the files as inputs of a result. `places`: the places of the request, by reference."""
        return [
            Input.of(places.get(reference), reference, self.sizes[reference], self.hashes.get(reference), file.etag)
            for reference, file in self.files.items()
        ]

    def fill(self, reference: str, ranges: Sequence[Range], *, later: bool) -> None:
        """Fetch ranges of a partial file."""
        if reference not in self.files:
            raise ProcessorFailed("the processor asked for ranges of a file that the job does not have")
        with self.filling:
            part = self.partial.get(reference)
            if part is not None and not (later and reference in self.undecided):
                self.on_bytes(part.fill(ranges))

    def complete(self) -> None:
        """Fetch the rest of the undecided files: this attempt computes the job."""
        with self.filling:
            for reference in self.undecided:
                with _naming(reference):
                    part = self.partial.pop(reference)
                    self.on_bytes(part.fill([(0, part.size_bytes)]))
                if self.hashed:
                    self.hashes[reference] = sha256_of(part.path)
            self.undecided.clear()


def sha256_of(source: Path | bytes) -> str:
    """Return the SHA-256 of a file, or of the bytes of a medium in memory, in hexadecimal."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _host(address: str) -> str:
    return "/".join(address.split("/", 3)[:3])


def _size_bytes(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _json(source: Path | bytes) -> Any:
    """Return the JSON of a medium; None for anything else, which the processor rejects."""
    if _size_bytes(source) > MAX_DOCUMENT_BYTES:
        return None
    try:
        return json.loads(source if isinstance(source, bytes) else source.read_bytes())
    except (ValueError, RecursionError):
        return None


@contextmanager
def _naming(reference: str) -> Iterator[None]:
    """Name the file in an error; a query may be a signature and is left out."""
    try:
        yield
    except (InputError, FetchFailed) as error:
        name = reference.partition("?")[0]
        raise type(error)(f"{name[:500]}: {error.detail}", retry_after_s=error.retry_after_s) from error


def _without_query(reference: str) -> str:
    scheme, host, path, _, _ = urlsplit(reference)
    return urlunsplit((scheme, host, path, "", "")) if scheme in ("http", "https") else reference
