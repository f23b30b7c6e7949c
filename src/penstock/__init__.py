"""Penstock: inference as a job queue, for models whose answer is more than text.

`penstock.Engine` runs models in this process (see `penstock.local.library`), `penstock.client` speaks to a service.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.local.library import Engine as Engine

__version__ = version("penstock")


def __getattr__(name: str) -> object:
    """Import `Engine` when it is first asked for: it brings what processors and models need."""
    if name == "Engine":
        return import_module("penstock.local.library").Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
