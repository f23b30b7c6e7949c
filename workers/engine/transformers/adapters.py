"""LoRA adapters in the directory format of the PEFT library: merged into a network's weights when it is loaded.

A merged adapter takes no time when the network runs; each adapter is a model of its own in the catalogue. Adapters of
quantised weights are not merged: merging would round them to the few values of the quantisation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import safe_open

from penstock.errors import ModelUnavailable
from penstock.models import Model

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def find_adapter(model: Model, path: Path) -> Path | None:
    """Return the folder of a model's adapter: the option `adapter`, or its own directory if that has one; or None.

    Raises `ModelUnavailable` for an adapter that cannot be loaded.
    """
    named = model.options.get("adapter")
    folder = path if named is None else path / str(named)
    if not (folder / CONFIG).is_file():
        if named is None:
            return None
        raise ModelUnavailable(f"`options.adapter` names {folder}, which lacks the file {CONFIG}")
    if not (path / "config.json").is_file():
        raise ModelUnavailable(
            "it is an adapter without the network that it changes: make that one the `source`, and name this folder "
            "as `options.adapter`"
        )
    _check(folder)
    return folder


def adapted(network: Any, folder: Path) -> Any:
    """Return the network with the adapter merged into its weights or, if these are quantised, beside them.

    Raises `ModelUnavailable` if some of the adapter's weights are missing.
    """
    from peft import PeftModel, get_peft_model_state_dict

    tuned = PeftModel.from_pretrained(network, folder, local_files_only=True)
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        lacking = sorted(set(get_peft_model_state_dict(tuned)) - set(file.keys()))
    if lacking:
        raise ModelUnavailable(f"{WEIGHTS} lacks {len(lacking)} of the adapter's weights, the first is {lacking[0]!r}")
    if getattr(network, "is_quantized", False):
        return tuned.get_base_model()
    return tuned.merge_and_unload(safe_merge=True)


@contextmanager
def without_adapter(path: Path) -> Iterator[Path]:
    """Yield a folder with the same files without an adapter's: the library would load such an adapter unasked."""
    if not (path / CONFIG).is_file():
        yield path
        return
    with TemporaryDirectory() as folder:
        for file in path.iterdir():
            if not file.name.startswith("adapter_"):
                (Path(folder) / file.name).symlink_to(file.resolve())
        yield Path(folder)


def _check(folder: Path) -> None:
    if not (folder / WEIGHTS).is_file():
        raise ModelUnavailable(f"its adapter lacks the file {WEIGHTS}; pickled ones are not read")
    try:
        kind = json.loads((folder / CONFIG).read_bytes()).get("peft_type")
    except (ValueError, AttributeError) as error:
        raise ModelUnavailable(f"{CONFIG} is not a JSON object: {error}") from error
    if kind != "LORA":
        raise ModelUnavailable(f"its adapter is of the kind {kind!r}; only LORA is merged here")
    if find_spec("peft") is None:
        raise ModelUnavailable("its adapter needs a library that is not installed: pip install peft")
