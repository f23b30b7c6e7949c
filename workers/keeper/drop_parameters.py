"""The files beside a dropped object: its parameters, validated as strictly as a request, and those of its raster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from posixpath import isfile, normpath
from typing import Any

from penstock.client.local_files import names_beside, with_beside, with_references
from penstock.config_tables import DropRule
from penstock.errors import (
    ConfigError,
    InvalidInput,
    InvalidRequest,
    MalformedBody,
    MediaTooLarge,
    ObjectNotFound,
)
from penstock.intake.drop_inputs import document_input, field_for, field_value, is_document, is_stac
from penstock.json_body import parse_json
from penstock.storage.drop_rules import SIDECAR, place, watched_folder
from penstock.storage.objects.base import ObjectInfo, ObjectStore

#: Bytes of a parameters file.
MAX_SIDECAR_BYTES = 100_000
#: Bytes of a document that is the input of a job, or a STAC item.
MAX_DOCUMENT_BYTES = 1_000_000


def object_input(
    bucket: ObjectStore,
    rule: DropRule,
    info: ObjectInfo,
    schema: Mapping[str, Any],
    reference: Callable[[ObjectInfo], str],
) -> dict[str, Any]:
    """Return the input of an object's job: the rule's, then the parameters of the object, then the object itself.

    A document is the input itself, or a STAC item. Names of files in it, relative to it, become references, and the
    masks and metadata beside these files go with them. Raises `InvalidInput`.
    """

    def beside(key: str) -> list[str]:
        return [reference(each) for each in _rasters_beside(bucket, rule, key)]

    def refer(name: str) -> str:
        return reference(named(name))

    named = partial(_named, bucket, rule, info.key)
    given = parameters_beside(bucket, rule, info.key)
    if not is_document(rule, info.key):
        try:
            field = field_for(rule, schema)
        except ConfigError as error:  # a rule that takes documents may get other objects, too
            raise InvalidInput(f"{info.key}: {error.detail}") from error
        given = with_beside({**given, field: Path(info.key)}, schema, lambda _: beside(info.key))
        return {**rule.input, **given, field: field_value(schema, field, reference(info))}
    document = _json(bucket, rule, info.key, "the input of a job", MAX_DOCUMENT_BYTES) or {}
    own = {**given, **document_input(document, schema, info.key)}
    own = with_references(with_beside(own, schema, lambda name: beside(named(name).key)), schema, refer)
    own = {name: _with_assets(value, refer) if is_stac(value) else value for name, value in own.items()}
    return {**rule.input, **own}


def _with_assets(document: dict[str, Any], refer: Callable[[str], str]) -> dict[str, Any]:
    """Return a STAC item, or a collection of items, with references to those assets that lie beside it."""
    if isinstance(features := document.get("features"), list):
        return {**document, "features": [_with_assets(item, refer) for item in features if isinstance(item, dict)]}
    assets = document.get("assets")
    if not isinstance(assets, dict):
        return document
    return {**document, "assets": {name: _with_address(asset, refer) for name, asset in assets.items()}}


def _with_address(asset: Any, refer: Callable[[str], str]) -> Any:
    href = asset.get("href") if isinstance(asset, dict) else None
    if not isinstance(href, str) or "://" in href:
        return asset
    with suppress(InvalidInput):  # the processor names the assets that it needs and lacks
        return {**asset, "href": refer(href)}
    return asset


def _named(bucket: ObjectStore, rule: DropRule, key: str, name: str) -> ObjectInfo:
    """Return the file that a document names, which must lie under the rule's prefix."""
    found = normpath(f"{key.rpartition('/')[0]}/{name}").lstrip("/")
    if name.startswith("/") or "\\" in name or not found.startswith(rule.prefix):
        raise InvalidInput(f"{key} names {name}: name files under the rule's prefix, as a relative path")
    if watched_folder(rule) is not None and _is_linked(Path(place(rule, "").key), found):
        raise InvalidInput(f"{key} names {name}, which is a link, and links are not followed: put a copy there")
    try:
        return bucket.head(found)
    except (ObjectNotFound, InvalidRequest):  # or a name that no file can have
        raise InvalidInput(f"{key} names {name}, and there is no {found}: put the files there first") from None


def _is_linked(root: Path, key: str) -> bool:
    """Return True if a file's path below the bucket's folder contains a link."""
    return (root / key).resolve() != root.resolve() / key


def _rasters_beside(bucket: ObjectStore, rule: DropRule, key: str) -> Iterator[ObjectInfo]:
    """Yield the mask, the metadata and the world file beside an object. Links are not followed."""
    folder, slash, name = key.rpartition("/")
    keys = [[f"{folder}{slash}{each}" for each in names] for names in names_beside(name)]
    if watched_folder(rule) is None:
        listed = {info.key: info for info in bucket.list(f"{key.rpartition('.')[0]}.")}
    else:  # a listing would walk through the whole folder
        paths = {each: Path(place(rule, each).key) for names in keys for each in names}
        listed = {each: bucket.head(each) for each, path in paths.items() if isfile(path) and not path.is_symlink()}
    for names in keys:
        yield from [listed[each] for each in names if each in listed][:1]


def parameters_beside(bucket: ObjectStore, rule: DropRule, key: str) -> Mapping[str, Any]:
    """Return an object's parameters, empty if there is no such file.

    Raises `MediaTooLarge`, or `InvalidInput` if the file is not a JSON object or is a link. Links are not followed, and
    without its parameters the object would be computed wrongly.
    """
    return _json(bucket, rule, key + SIDECAR, "the parameters of the object", MAX_SIDECAR_BYTES) or {}


def _json(bucket: ObjectStore, rule: DropRule, name: str, what: str, limit_bytes: int) -> dict[str, Any] | None:
    """Return a JSON object of the bucket; None if there is no such file."""
    if watched_folder(rule) is not None and Path(place(rule, name).key).is_symlink():
        raise InvalidInput(f"{name} is a link, and links are not followed: put a copy of the file there")
    try:
        data = bucket.get_bytes(name, limit_bytes=limit_bytes)
    except ObjectNotFound:
        return None
    except MediaTooLarge as error:
        size = bucket.head(name).size_bytes
        raise MediaTooLarge(f"{name}, {what}, has {size} bytes; {limit_bytes} are allowed") from error
    try:
        found = parse_json(data)
    except MalformedBody as error:
        raise InvalidInput(f"{name}: {error.detail}", errors=error.errors) from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{name} is not a JSON object")
    return found
