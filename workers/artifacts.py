"""The sink that processors write to, and how its files become a visible result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from penstock.errors import ObjectExists, ProcessorFailed
from penstock.jobs import Artifact, Claim
from penstock.processors.base import CHECKPOINT_NAME
from penstock.storage.base import ObjectStore
from penstock.storage.media import safe_name

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Finished:
    """A file that waits for its upload."""

    path: Path
    media_type: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What an artifact looks like so far."""

    name: str
    media_type: str
    picture: bytes


#: Told of what is to be shown to a job's followers.
Show = Callable[[Preview], None]

#: Of a preview: events are for looking at, artifacts for keeping.
MAX_PREVIEW_BYTES = 64_000


def unseen(_: Preview) -> None:
    """Show nobody anything."""


class Sink:
    """Collects one attempt's artifacts in its scratch folder."""

    def __init__(
        self,
        folder: Path,
        *,
        say: Callable[[str], None] = lambda _: None,
        save: Callable[[str, Path], None] = lambda _, __: None,
        show: Show = unseen,
    ) -> None:
        """Collect in a folder, which is made; `say` gets the partial text, `show` pictures and `save` checkpoints."""
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
        """Hand over a finished file as the artifact `name`."""
        if name in self._files or name == MANIFEST or name != safe_name(name):
            raise ProcessorFailed(f"the processor may not name an artifact {name!r} (again)")
        self._files[name] = Finished(path, media_type)

    def say(self, text: str) -> None:
        """Pass a further piece of the result's text on."""
        self._say(text)

    def show(self, name: str, picture: bytes, *, media_type: str) -> None:
        """Pass a picture of what an artifact looks like so far on."""
        if len(picture) > MAX_PREVIEW_BYTES:
            raise ProcessorFailed(f"a picture to be shown has at most {MAX_PREVIEW_BYTES} bytes, not {len(picture)}")
        self._show(Preview(name, media_type, picture))

    def checkpoint(self, name: str, path: Path) -> None:
        """Save a file for the job's later attempts."""
        if not CHECKPOINT_NAME.fullmatch(name):
            raise ProcessorFailed(f"the processor may not name a checkpoint {name!r}")
        self._save(name, path)


def upload(objects: ObjectStore, claim: Claim, files: Mapping[str, Finished]) -> tuple[Artifact, ...]:
    """Put the files under the attempt's own prefix, the manifest last, and return the artifacts.

    Nothing is visible yet: only completing the job names this prefix.
    """
    artifacts = tuple(_upload_one(objects, claim, name, file) for name, file in files.items())
    manifest = {"job": claim.key.id, "attempt": claim.attempt, "artifacts": [asdict(a) for a in artifacts]}
    _put_once(objects, claim.prefix + MANIFEST, json.dumps(manifest, indent=1).encode(), "application/json")
    return artifacts


def _upload_one(objects: ObjectStore, claim: Claim, name: str, file: Finished) -> Artifact:
    with file.path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    key = claim.prefix + name
    try:
        size_bytes = objects.put_file(key, file.path, content_type=file.media_type, if_absent=True).size_bytes
    except ObjectExists:
        # Only this attempt writes here: an earlier try of this very put arrived and its answer was lost.
        size_bytes = objects.head(key).size_bytes
    return Artifact(name, file.media_type, size_bytes, sha256, key)


def _put_once(objects: ObjectStore, key: str, data: bytes, content_type: str) -> None:
    try:
        objects.put_bytes(key, data, content_type=content_type, if_absent=True)
    except ObjectExists:
        return
