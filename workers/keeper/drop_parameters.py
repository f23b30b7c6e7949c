"""The files beside a dropped object: its parameters, validated as strictly as a request, and those of its raster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.client.local_files import names_beside
from penstock.config_tables import DropRule
from penstock.errors import InvalidInput, MalformedBody, MediaTooLarge, ObjectNotFound
from penstock.json_body import parse_json
from penstock.media_types import BESIDE
from penstock.storage.drop_rules import SIDECAR, place, watched_folder
from penstock.storage.objects.base import ObjectInfo, ObjectStore

#: Bytes of a parameters file.
MAX_SIDECAR_BYTES = 100_000


def input_beside(
    bucket: ObjectStore, rule: DropRule, key: str, schema: Mapping[str, Any], reference: Callable[[ObjectInfo], str]
) -> Mapping[str, Any]:
    """Return the input that the files beside an object give: its parameters, and references to its mask and metadata.

    Masks and metadata count if the model's `schema` has a field for them, unless the parameters have this field. Raises
    the errors of `parameters_beside` and of `reference`.
    """
    given = parameters_beside(bucket, rule, key)
    field = schema.get("properties", {}).get(rule.field, {}).get(BESIDE)
    if field is None or field in given:
        return given
    found = [reference(info) for info in _rasters_beside(bucket, rule, key)]
    return {field: found, **given} if found else given


def _rasters_beside(bucket: ObjectStore, rule: DropRule, key: str) -> Iterator[ObjectInfo]:
    """Yield the mask, the metadata and the world file beside an object. Links are not followed."""
    folder, slash, name = key.rpartition("/")
    keys = [[f"{folder}{slash}{each}" for each in names] for names in names_beside(name)]
    if watched_folder(rule) is None:
        listed = {info.key: info for info in bucket.list(f"{key.rpartition('.')[0]}.")}
    else:  # a listing would walk through the whole folder
        paths = {each: Path(place(rule, each).key) for names in keys for each in names}
        listed = {each: bucket.head(each) for each, path in paths.items() if path.is_file() and not path.is_symlink()}
    for names in keys:
        yield from [listed[each] for each in names if each in listed][:1]


def parameters_beside(bucket: ObjectStore, rule: DropRule, key: str) -> Mapping[str, Any]:
    """Return an object's parameters, empty if there is no such file.

    Raises `MediaTooLarge`, or `InvalidInput` if the file is not a JSON object or is a link. Links are not followed, and
    without its parameters the object would be computed wrongly.
    """
    name = key + SIDECAR
    if watched_folder(rule) is not None and Path(place(rule, name).key).is_symlink():
        raise InvalidInput(f"{name} is a link, and links are not followed: put a copy of the file there")
    try:
        data = bucket.get_bytes(name, limit_bytes=MAX_SIDECAR_BYTES)
    except ObjectNotFound:
        return {}
    except MediaTooLarge as error:
        size = bucket.head(name).size_bytes
        raise MediaTooLarge(
            f"{name}, the parameters of the object, has {size} bytes; {MAX_SIDECAR_BYTES} are allowed"
        ) from error
    try:
        parameters = parse_json(data)
    except MalformedBody as error:
        raise InvalidInput(f"{name}: {error.detail}", errors=error.errors) from error
    if not isinstance(parameters, dict):
        raise InvalidInput(f"{name} is not a JSON object")
    return parameters
