"""The sink that processors write artifacts to, and the upload of these artifacts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from penstock.errors import ObjectExists, ProcessorFailed
from penstock.intake.local_media import safe_name
from penstock.jobs import Artifact, Claim
from penstock.media_types import is_media_type
from penstock.processors.base import CHECKPOINT_NAME
from penstock.storage.objects.base import ObjectStore

#: Name of the list that clients save beside the artifacts.
MANIFEST = "manifest.json"
#: Bytes of one preview: events are for viewing, artifacts for keeping.
MAX_PREVIEW_BYTES = 64_000


@dataclass(frozen=True, slots=True)
class Finished:
    """A file that waits for its upload."""

    path: Path
    media_type: str


@dataclass(frozen=True, slots=True)
class Preview:
    """An image of an unfinished artifact."""

    name: str
    media_type: str
    image: bytes


#: Receives the previews for a job's followers.
Show = Callable[[Preview], None]


def discard_preview(_: Preview) -> None:
    """Discard a preview."""


class Sink:
    """Collects one attempt's artifacts in its scratch folder."""

    def __init__(
        self,
        folder: Path,
        *,
        say: Callable[[str], None] = lambda _: None,
        save: Callable[[str, Path], None] = lambda _, __: None,
        show: Show = discard_preview,
    ) -> None:
        """Create `folder` and collect files there; `say` gets partial text, `show` previews and `save` checkpoints."""
        self._folder = folder
        self._say = say
        self._save = save
        self._show = show
        self._files: dict[str, Finished] = {}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def files(self) -> Mapping[str, Finished]:
        """The finished files by name, in the order in which they were added."""
        return MappingProxyType(self._files)

    def path(self, name: str) -> Path:
        """Return a path in the scratch folder to write to."""
        return self._folder / safe_name(name)

    def add(self, name: str, path: Path, *, media_type: str) -> None:
        """Add a finished file as the artifact `name`."""
        if name in self._files or name == MANIFEST or name != safe_name(name):
            raise ProcessorFailed(f"the processor used an invalid or duplicate artifact name: {name!r}")
        _require_media_type(name, media_type)
        self._files[name] = Finished(path, media_type)

    def say(self, text: str) -> None:
        """Stream a further part of the result's text."""
        self._say(text)

    def show(self, name: str, image: bytes, *, media_type: str) -> None:
        """Show an image of an unfinished artifact."""
        _require_media_type(name, media_type)
        if len(image) > MAX_PREVIEW_BYTES:
            raise ProcessorFailed(f"the preview has {len(image)} bytes; at most {MAX_PREVIEW_BYTES} are allowed")
        self._show(Preview(name, media_type, image))

    def checkpoint(self, name: str, path: Path) -> None:
        """Save a file for the job's later attempts."""
        if not CHECKPOINT_NAME.fullmatch(name):
            raise ProcessorFailed(f"the processor used an invalid checkpoint name: {name!r}")
        self._save(name, path)


def _require_media_type(name: str, media_type: str) -> None:
    if not is_media_type(media_type):
        raise ProcessorFailed(f"the processor gave {name!r} an invalid media type: {media_type[:100]!r}")


def upload(objects: ObjectStore, claim: Claim, files: Mapping[str, Finished]) -> tuple[Artifact, ...]:
    """Upload the files under the attempt's own prefix and return the artifacts, which the job's outcome lists.

    Nothing is visible yet: the artifacts become visible when the job is completed with this prefix.
    """
    return tuple(_upload_one(objects, claim, name, file) for name, file in files.items())


def _upload_one(objects: ObjectStore, claim: Claim, name: str, file: Finished) -> Artifact:
    with file.path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    key = claim.prefix + name
    try:
        size_bytes = objects.put_file(key, file.path, content_type=file.media_type, if_absent=True).size_bytes
    except ObjectExists:
        # Only this attempt writes here: an earlier try of the same put succeeded, and its response was lost.
        size_bytes = objects.head(key).size_bytes
    return Artifact(name, file.media_type, size_bytes, sha256, key)
