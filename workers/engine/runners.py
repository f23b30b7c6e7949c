"""The runners by name. A runner's libraries are imported when its first model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from penstock.models import Model
from penstock.workers.engine.base import Runner, RunnerFactory
from penstock.workers.engine.weights import requires


def _fake(model: Model) -> Runner:
    with requires("worker"):
        from penstock.workers.engine.fake import load_fake
    return load_fake(model)


def _torch(model: Model) -> Runner:
    with requires("worker"):
        from penstock.workers.engine.torch_runner import load_torch
    return load_torch(model)


#: What a model's `runner` may name.
FACTORIES: Mapping[str, RunnerFactory] = MappingProxyType({"fake": _fake, "torch": _torch})
