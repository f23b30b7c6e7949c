"""Export of a tenant: all its data in both stores, as files with a manifest of their digests.

objects/...      its objects, under their keys without `tenants/T/`: jobs, results, uploads, batches, endpoints, usage
redis.jsonl      its keys in Redis, each with its type and value: records, events, lines, deliveries, sums of usage
keys.json        its API keys, without the digests of their secrets
manifest.json    path, bytes and SHA-256 of every file above
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path, PurePosixPath
from typing import Any

from penstock.api_keys import KeyRecord
from penstock.errors import ConfigError, ObjectNotFound
from penstock.storage.journal.api_keys import list_keys
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import tenant_data
from penstock.storage.redis.scripts import Runs

#: Endings of a path that mean one file instead of a folder.
_TARS = (".tar", ".tgz", ".tar.gz")
_LIMIT_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class Export:
    """The numbers of an export."""

    objects: int
    redis_keys: int
    api_keys: int
    size_bytes: int


def export_tenant(store: Runs, objects: ObjectStore, tenant: str, target: Path) -> Export:
    """Write all data of a tenant into a new folder, or a new file `*.tar`, `*.tgz` or `*.tar.gz`.

    Only the owner of the target may read the export. Each object is read once: an object that changes during the export
    is written in its old or its new version. Raises `ConfigError` if the target exists or cannot be written.
    """
    if target.exists():
        raise ConfigError(f"{target} exists: name a new folder or file")
    try:
        return _export(store, objects, tenant, target)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror or error}") from error


def key_rows(objects: ObjectStore, tenant: str) -> list[KeyRecord]:
    """Return the API keys of a tenant."""
    return [record for record in list_keys(objects) if record.tenant == tenant]


def _export(store: Runs, objects: ObjectStore, tenant: str, target: Path) -> Export:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.name.endswith(_TARS):
        return _write(store, objects, tenant, target)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        content = Path(folder) / tenant
        done = _write(store, objects, tenant, content)
        partial = Path(folder) / target.name
        with tarfile.open(partial, "w" if target.name.endswith(".tar") else "w:gz") as tar:
            tar.add(content, tenant)
        partial.chmod(0o600)
        partial.rename(target)
    return done


def _write(store: Runs, objects: ObjectStore, tenant: str, folder: Path) -> Export:
    folder.mkdir(mode=0o700)
    copied = sum(1 for _ in _copy(objects, tenant, folder / "objects"))
    own = tenant_data.own_keys(store, tenant)
    with (folder / "redis.jsonl").open("w") as file:
        for key in own:
            kind, value = store.run(tenant_data.dump(tenant, key))
            file.write(json.dumps({"key": key, "type": kind, "value": value}, ensure_ascii=False) + "\n")
    keys = [_public(record) for record in key_rows(objects, tenant)]
    (folder / "keys.json").write_text(json.dumps(keys, indent=1))
    rows = list(_digests(folder))
    manifest = {"version": 1, "tenant": tenant, "files": rows}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False))
    for path in folder.rglob("*"):  # a copy of the folder, or an unpacked archive, stays its owner's
        path.chmod(0o700 if path.is_dir() else 0o600)
    return Export(copied, len(own), len(keys), sum(row["bytes"] for row in rows))


def _copy(objects: ObjectStore, tenant: str, folder: Path) -> Iterator[Path]:
    prefix = f"tenants/{tenant}/"
    for info in objects.list(prefix):
        path = folder / PurePosixPath(info.key.removeprefix(prefix))
        if not path.resolve().is_relative_to(folder.resolve()):
            continue  # no object of ours has such a key
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            objects.get_file(info.key, path, limit_bytes=_LIMIT_BYTES)
        except ObjectNotFound:
            continue  # it was deleted meanwhile
        yield path


def _public(record: KeyRecord) -> dict[str, Any]:
    return {name: value for name, value in record.to_json().items() if name not in ("digest", "secret_mark")}


def _digests(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        name = path.relative_to(folder).as_posix()
        yield {"path": name, "bytes": path.stat().st_size, "sha256": digest}
