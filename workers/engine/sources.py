"""Sources of models: every kind of `source` becomes a local path, whose files are checked against the record.

Pickled weights are fetched only for a runner that reads tensors alone from them: reading anything else can run code.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from penstock.catalogue.environments import Environments
from penstock.errors import ModelUnavailable, ObjectNotFound
from penstock.models import Model, on_hub
from penstock.storage.objects.base import ObjectInfo, ObjectStore
from penstock.storage.spool import own_folder
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.weights import locate, requires

#: Opens the object store at `s3://bucket`.
OpenStore = Callable[[str], ObjectStore]

#: Folder of the cache for copies that are not complete yet.
FETCHED_INTO = ".fetching"
_ENOUGH_TO_TELL_APART = 16


def localise(
    model: Model, *, cache: Path, s3: OpenStore | None = None, hub: str | None = None, fetch: bool = True,
    environments: Environments | None = None,
) -> Model:  # fmt: skip
    """Return the model with a local file or directory as `source`, fetched into `cache` if it is not local.

    A revision is fetched once, an environment built once, and nothing without `fetch`. `hub` is the address of a mirror
    of the Hugging Face hub. A model that a server computes stays as it is. All hashes of the record are checked. Raises
    `ModelUnavailable` with the remedy, or `ObjectStoreUnavailable` where trying again may help.
    """
    if Runners.installed().is_served(model):
        return model
    scheme, _, rest = model.source.partition("://")
    if scheme == "hf" and rest:
        path = _from_hub(model, cache / "hub", hub, fetch=fetch)
    elif scheme == "s3" and rest:
        path = _from_s3(model, cache / "s3", s3, fetch=fetch)
    else:
        path = locate(model).absolute()
    # The local path says nothing to users; the address at which the weights are published does.
    local = model.model_copy(update={"source": str(path), "weights_url": model.published_at})
    verify(local)
    return Runners.installed().with_environment(local, environments or Environments.here(), build=fetch)


def is_remote(model: Model) -> bool:
    """Return True for a model whose files are fetched, or whose environment is built, before it can be used."""
    return "://" in model.source or model.is_unbuilt


def verify(model: Model) -> None:
    """Check a local source against the record; raise `ModelUnavailable` naming the file that is missing or different.

    A file is hashed once per process, and again when its size or time of change differs.
    """
    root = Path(model.source)
    if not root.exists():
        raise ModelUnavailable(f"the source of model {model.name!r} does not exist: {root}")
    if model.sha256 and root.is_dir():
        raise ModelUnavailable(
            f"model {model.name!r} has a `sha256` and its source is a directory: list its hashes in `files`"
        )
    expected = {name: root / _inside(model, name) for name in model.files}
    for name, path in expected.items():
        _check(model, name, path, model.files[name])
    if model.sha256:
        _check(model, root.name, root, model.sha256)


def directory_of(model: Model) -> Path:
    """Return a model's source, a directory, checked against the record; raise `ModelUnavailable`."""
    path = Path(model.source)
    if not path.is_dir():
        raise ModelUnavailable(f"the source of model {model.name!r} is not a directory: {path}")
    verify(model)
    return path


def _check(model: Model, name: str, path: Path, expected: str) -> None:
    try:
        found = sha256_of(path)
    except OSError as error:
        raise ModelUnavailable(f"model {model.name!r} lacks the file {name!r}: {error.strerror}") from error
    if found != expected:
        raise ModelUnavailable(
            f"the file {name!r} of model {model.name!r} is not the catalogue's: it has sha256 {found}, "
            f"expected {expected}"
        )


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256, computed once for a size and time of change."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256(path: Path, size_bytes: int, modified_ns: int) -> str:  # noqa: ARG001  (they are the cache's key)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inside(model: Model, name: str) -> Path:
    """Return a relative path that stays inside its directory, or raise `ModelUnavailable`."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ModelUnavailable(f"the file name {name!r} of model {model.name!r} leads out of its directory")
    return Path(path)


def _not_fetched(model: Model) -> ModelUnavailable:
    return ModelUnavailable(
        f"model {model.name!r} was not fetched from {model.source} yet: `penstock models fetch {model.name}`"
    )


# The hub


def _from_hub(model: Model, cache: Path, hub: str | None, *, fetch: bool) -> Path:
    """Return the copy of a repository, or of the one file of it that the source names."""
    repository, file = on_hub(model.source)
    wanted = list(Runners.installed().hub_files(model))
    if file and not any(fnmatchcase(_inside(model, file).name, pattern) for pattern in wanted):
        raise ModelUnavailable(
            f"model {model.name!r}: the runner {model.runner!r} reads no file like {file!r}, but {', '.join(wanted)}"
        )
    with requires("transformers"):
        from huggingface_hub import hf_hub_download, snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

    def download(*, local_files_only: bool) -> Path:
        how: Any = {
            "revision": model.revision, "cache_dir": cache, "local_files_only": local_files_only, "endpoint": hub,
        }  # fmt: skip
        if file:
            return Path(hf_hub_download(repository, file, **how))
        return Path(snapshot_download(repository, allow_patterns=wanted, **how))

    with _hub_errors(model, repository), _without_bars(), suppress(LocalEntryNotFoundError):
        return download(local_files_only=True)
    if not fetch:
        raise _not_fetched(model)
    with _hub_errors(model, repository), _without_bars():
        return download(local_files_only=False)


@contextmanager
def _hub_errors(model: Model, repository: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the hub's client raises what its HTTP library does, too
        reason = re.split(r"[\n.:] ", str(error), maxsplit=1)[0].strip()
        raise ModelUnavailable(
            f"model {model.name!r} could not be fetched from the hub: repository {repository!r} at revision "
            f"{model.revision!r} ({type(error).__name__}: {reason}). Run `penstock models fetch {model.name}` where "
            "the hub can be reached and keep its cache folder, or let `source` name a local directory"
        ) from error


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the hub's progress bars out of the worker's log."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    already = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not already:
            enable_progress_bars()


# Object stores


def _from_s3(model: Model, cache: Path, open_store: OpenStore | None, *, fetch: bool) -> Path:
    """Return the copy of everything below an S3 prefix, or of the one object of that name."""
    parts = urlsplit(model.source)
    prefix = parts.path.strip("/")
    if open_store is None or not prefix:
        why = "no object store is configured" if prefix else "it names no object or prefix"
        raise ModelUnavailable(f"model {model.name!r} cannot be fetched from {model.source}: {why}")
    digest = hashlib.sha256(f"{model.source}\0{model.revision}".encode()).hexdigest()[:_ENOUGH_TO_TELL_APART]
    folder = cache / f"{model.name}-{digest}"
    if not folder.is_dir() and not fetch:
        raise _not_fetched(model)
    if not folder.is_dir():
        _fetch(model, open_store(f"s3://{parts.netloc}"), prefix, folder)
    return _root(folder, prefix)


def _root(folder: Path, prefix: str) -> Path:
    """Return the folder, or the file in it where the prefix was an object's own name."""
    single = folder / PurePosixPath(prefix).name
    return single if [*folder.iterdir()] == [single] and single.is_file() else folder


def _fetch(model: Model, store: ObjectStore, prefix: str, folder: Path) -> None:
    """Fill a folder that appears complete or not at all; files without the record's hashes are thrown away."""
    # On the cache's file system, for the rename, and locked: the next fetch removes the rest of a dead one.
    with _kept(model, folder.parent), own_folder(folder.parent / FETCHED_INTO) as scratch:
        unfinished = scratch / folder.name
        unfinished.mkdir()
        for info, name in _objects(model, store, prefix):
            path = unfinished / _inside(model, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            store.get_file(info.key, path, limit_bytes=sys.maxsize, etag=info.etag)
        verify(model.model_copy(update={"source": str(_root(unfinished, prefix))}))
        # The rename fails if another process was faster; the other copy is as good.
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


@contextmanager
def _kept(model: Model, cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelUnavailable(f"model {model.name!r} cannot be stored in {cache}: {error.strerror}") from error


def _objects(model: Model, store: ObjectStore, prefix: str) -> list[tuple[ObjectInfo, str]]:
    """Return the objects below a prefix with their names there, or the single object of that name."""
    try:
        below = [(info, info.key.removeprefix(f"{prefix}/")) for info in store.list(f"{prefix}/")]
        # Consoles mark a folder with an empty object whose key ends in a slash.
        found = [(info, name) for info, name in below if name and not name.endswith("/")]
        return found or [(store.head(prefix), PurePosixPath(prefix).name)]
    except ObjectNotFound as error:
        raise ModelUnavailable(f"model {model.name!r}: there is nothing at {model.source}") from error
