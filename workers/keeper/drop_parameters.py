"""The parameters file beside a dropped object, validated as strictly as the body of a request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.config_tables import DropRule
from penstock.errors import InvalidInput, MalformedBody, MediaTooLarge, ObjectNotFound
from penstock.json_body import parse_json
from penstock.storage.drop_rules import SIDECAR, place, watched_folder
from penstock.storage.objects.base import ObjectStore

#: Bytes of a parameters file.
MAX_SIDECAR_BYTES = 100_000


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
