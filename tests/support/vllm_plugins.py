"""A double of vLLM with plugins on Python's path, for tests without vLLM."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.models import Model
from penstock.workers.engine.checking import shared

DOUBLE = Path(__file__).parents[1] / "vllm_double"
FILES = {"file": "media://numbers"}


@contextmanager
def vllm_double() -> Iterator[Path]:
    """Make `import vllm` find the double, in this process and its child processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOUBLE)
        patch.setenv("PYTHONPATH", str(DOUBLE), prepend=":")
        _forget()
        yield DOUBLE
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("vllm", "double_plugins")]:
        del sys.modules[name]
    shared(Path(sys.executable)).end()  # it may have begun with the double, or without it


def a_directory(folder: Path, **config: Any) -> Path:
    """Write a model's directory with a configuration only."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"name": "double", **config}))
    (folder / "numbers.json").write_text("[1, 2]")
    return folder


def a_model(source: Path, plugin: str = "tally", **fields: Any) -> Model:
    """Return the record of a plugin of the double."""
    options = {
        "plugin": plugin, "media": ["file"], "fixed": {"format": "path"},
        "fields": {"times": {"type": "integer", "minimum": 1}}, "sample": {"file": "numbers.json", "times": 2},
        **fields.pop("options", {}),
    }  # fmt: skip
    common = {"title": "Tally", "runner": "vllm", "processor": "vllm-plugin", "revision": "1", "max_batch": 4}
    return Model(name=plugin, source=str(source), options=options, **{**common, **fields})
