"""Where a model's files come from: every kind of `source` becomes a local path, and what the catalogue promised of the
files is checked.

Pickled weights are asked for only for a runner that reads nothing but tensors of them: reading the rest runs whatever
code their author put in.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from penstock.errors import ModelUnavailable, ObjectNotFound
from penstock.models import Model
from penstock.storage.base import ObjectInfo, ObjectStore
from penstock.storage.spool import own_folder
from penstock.workers.engine.weights import locate, requires

#: Opens the object store at `s3://bucket`.
OpenStore = Callable[[str], ObjectStore]

#: What is fetched from a repository on the hub: everything but pickles, other frameworks' weights and pictures.
HUB_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.toml", "*.pt2")
#: The same for the runner `onnx`: repositories hold a network in many precisions, and one of them is meant.
ONNX_FILES = ("*.json", "*.txt")

#: What is fetched beside `HUB_FILES` for some runners: the published checkpoints of Prithvi are files of torch's own.
_MORE_HUB_FILES = {"terratorch": ("*.pt", "*.ckpt")}

#: Where in the cache a copy is made, until it is whole.
FETCHED_INTO = ".fetching"
_ENOUGH_TO_TELL_APART = 16


def localise(
    model: Model, *, cache: Path, s3: OpenStore | None = None, hub: str | None = None, fetch: bool = True
) -> Model:
    """Return the model with a `source` that is a local file or directory, fetched into `cache` where it must be.

    What was fetched for a revision is never fetched again, and without `fetch` nothing is. `hub` is the address of a
    mirror of the Hugging Face hub. Whatever hashes the record has are checked. Raises `ModelUnavailable` with what to
    do about it, or `ObjectStoreUnavailable` where trying again may help.
    """
    scheme, _, rest = model.source.partition("://")
    if scheme == "hf" and rest:
        path = _from_hub(model, rest, cache / "hub", hub, fetch=fetch)
    elif scheme == "s3" and rest:
        path = _from_s3(model, cache / "s3", s3, fetch=fetch)
    else:
        path = locate(model).absolute()
    local = model.model_copy(update={"source": str(path)})
    verify(local)
    return local


def verify(model: Model) -> None:
    """Check a local source against the record; raise `ModelUnavailable` naming the file that is missing or different.

    A file is hashed once in the life of the process, and again when its size or time of change differ.
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
    """Return the directory that is a model's source, checked against the record; raise `ModelUnavailable`."""
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
    """Return a file's hash, which is made once as long as its size and time of change stay the same."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256(path: Path, size_bytes: int, modified_ns: int) -> str:  # noqa: ARG001  (they are the cache's key)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inside(model: Model, name: str) -> Path:
    """Return a relative path that stays below where it starts, or raise `ModelUnavailable`."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ModelUnavailable(f"the file name {name!r} of model {model.name!r} leads out of its directory")
    return Path(path)


def _not_fetched(model: Model) -> ModelUnavailable:
    return ModelUnavailable(
        f"model {model.name!r} was not fetched from {model.source} yet: `penstock models fetch {model.name}`"
    )


# The hub


def _from_hub(model: Model, repository: str, cache: Path, hub: str | None, *, fetch: bool) -> Path:
    with requires("transformers"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

    def download(*, local_files_only: bool) -> Path:
        return Path(
            snapshot_download(
                repository,
                revision=model.revision,
                cache_dir=cache,
                allow_patterns=_wanted_files(model),
                local_files_only=local_files_only,
                endpoint=hub,
            )
        )

    with _hub_errors(model, repository), _without_bars(), suppress(LocalEntryNotFoundError):
        return download(local_files_only=True)
    if not fetch:
        raise _not_fetched(model)
    with _hub_errors(model, repository), _without_bars():
        return download(local_files_only=False)


def _wanted_files(model: Model) -> list[str]:
    if model.runner != "onnx":
        return [*HUB_FILES, *_MORE_HUB_FILES.get(model.runner, ())]
    table = model.options.get("onnx", {})
    file = str(table.get("file", "model.onnx")) if isinstance(table, Mapping) else "model.onnx"
    return [*ONNX_FILES, file, f"{file}_data*", f"{file}.data"]


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
    """Fill a folder that appears whole or not at all; what does not have the record's hashes is thrown away."""
    # On the file system of the cache, for the rename, and held by a lock: the next fetch removes what a dead one left.
    with _kept(model, folder.parent), own_folder(folder.parent / FETCHED_INTO) as scratch:
        unfinished = scratch / folder.name
        unfinished.mkdir()
        for info, name in _objects(model, store, prefix):
            path = unfinished / _inside(model, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            store.get_file(info.key, path, limit_bytes=sys.maxsize, etag=info.etag)
        verify(model.model_copy(update={"source": str(_root(unfinished, prefix))}))
        # Another process may have been faster: its copy is as good, and the rename onto it fails.
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
        raise ModelUnavailable(f"model {model.name!r} cannot be kept in {cache}: {error.strerror}") from error


def _objects(model: Model, store: ObjectStore, prefix: str) -> list[tuple[ObjectInfo, str]]:
    """Return the objects below a prefix with their names there, or the single object of that name."""
    try:
        below = [(info, info.key.removeprefix(f"{prefix}/")) for info in store.list(f"{prefix}/")]
        # Consoles mark a folder with an empty object whose key ends in a slash.
        found = [(info, name) for info, name in below if name and not name.endswith("/")]
        return found or [(store.head(prefix), PurePosixPath(prefix).name)]
    except ObjectNotFound as error:
        raise ModelUnavailable(f"model {model.name!r}: there is nothing at {model.source}") from error
