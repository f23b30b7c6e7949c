"""The parts of a directory in diffusers' format: networks from safetensors, and the scheduler."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import structlog
import torch

from penstock.errors import ModelUnavailable, OutOfMemory, PenstockError, first_line
from penstock.models import Model
from penstock.processors.image_generation.pipeline import Pipeline
from penstock.workers.engine.sources import directory_of

#: Beginnings of the names of weights, by the part that is a network.
_STEMS = {
    "unet": "diffusion_pytorch_model",
    "transformer": "diffusion_pytorch_model",
    "vae": "diffusion_pytorch_model",
    "text_encoder": "model",
}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Directory:
    """A checked directory of a pipeline."""

    model: Model
    path: Path
    pipeline: Pipeline

    @classmethod
    def of(cls, model: Model) -> Directory:
        """Check a model's directory; raise `ModelUnavailable` with the missing or wrong file."""
        path = directory_of(model)
        pipeline = Pipeline.of(model)
        for part in pipeline.classes:
            if part in _STEMS:
                _find_weights(model, path / part, _STEMS[part])
        return cls(model, path, pipeline)

    def network(self, part: str, class_name: str | None = None) -> Any:
        """Return a network on the CPU, in float32; raise `ModelUnavailable` for files that do not make a network.

        Missing weights are an error: the library would fill them with random numbers.
        """
        library = transformers() if part == "text_encoder" else diffusers()
        dtype = {"dtype" if part == "text_encoder" else "torch_dtype": torch.float32}
        with _load_errors(self.model, part):
            network, report = getattr(library, class_name or self.pipeline.classes[part]).from_pretrained(
                self.path / part, local_files_only=True, use_safetensors=True, output_loading_info=True, **dtype
            )
            if lacking := sorted(report["missing_keys"]):
                raise ModelUnavailable(f"its weights lack {len(lacking)}, the first is {lacking[0]!r}")
        return network

    def scheduler(self) -> Any:
        """Return the scheduler with the settings that its pipeline changes."""
        name, changes = self.pipeline.classes["scheduler"], {}
        if self.pipeline.name == "StableDiffusionPipeline":
            changes = {"steps_offset": 1, "clip_sample": False}  # the library sets both in old configs
        if self.pipeline.name == "DDIMPipeline":
            name = "DDIMScheduler"  # this pipeline replaces any other scheduler
        made = getattr(diffusers(), name)
        known = inspect.signature(made).parameters
        with _load_errors(self.model, "scheduler"):
            config = made.load_config(self.path / "scheduler", local_files_only=True)
            return made.from_config({**config, **{key: value for key, value in changes.items() if key in known}})


@cache
def diffusers() -> Any:
    """Import diffusers without progress bars and warnings in the worker's log."""
    import diffusers

    transformers()
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    return diffusers


@cache
def transformers() -> Any:
    """Import transformers without progress bars and warnings in the worker's log."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


def _find_weights(model: Model, folder: Path, stem: str) -> None:
    if any((folder / f"{stem}.{end}").is_file() for end in ("safetensors", "safetensors.index.json")):
        return
    where = f"model {model.name!r} cannot be loaded: {folder.name}/"
    if pickles := sorted(file.name for end in ("bin", "ckpt", "pt") for file in folder.glob(f"*.{end}")):
        raise ModelUnavailable(
            f"{where} has pickled weights only ({pickles[0]}), which can run code when they are read: "
            f"convert them to {stem}.safetensors"
        )
    raise ModelUnavailable(f"{where} lacks the file {stem}.safetensors")


@contextmanager
def _load_errors(model: Model, part: str) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise OutOfMemory from error
    except Exception as error:  # a wrong config raises errors of any type
        reason = error.detail if isinstance(error, PenstockError) else f"{type(error).__name__}: {first_line(error)}"
        raise ModelUnavailable(
            f"model {model.name!r} cannot be loaded: the files of {part}/ do not make a network ({reason})"
            if part != "scheduler"
            else f"model {model.name!r} cannot be loaded: scheduler/scheduler_config.json is not usable ({reason})"
        ) from error
