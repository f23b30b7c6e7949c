"""The parts of a directory in diffusers' format: networks from safetensors, and the scheduler."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import structlog
import torch

from penstock.errors import ModelUnavailable, OutOfMemory, PenstockError, first_line
from penstock.models import Model
from penstock.processors.directory import read_config
from penstock.processors.image_generation.pipeline import INDEX, Pipeline
from penstock.workers.engine.sources import directory_of

#: Beginnings of the names of weights, by the library of the network.
_STEMS = {"diffusers": "diffusion_pytorch_model", "transformers": "model"}
#: Parts that are left out. The feature extractor of a Stable Diffusion serves the safety checker alone.
_LEFT_OUT = "safety_checker"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Directory:
    """A checked directory of a pipeline."""

    model: Model
    path: Path
    pipeline: Pipeline

    #: Library and class of each part that is loaded.
    parts: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, model: Model) -> Directory:
        """Check a model's directory; raise `ModelUnavailable` with the missing or wrong file, class or package."""
        path, pipeline = directory_of(model), Pipeline.of(model)
        directory = cls(model, path, pipeline, _parts(read_config(model, INDEX)))
        known = {pipeline.name, *(call.pipeline for call in pipeline.calls.values())}
        if lacking := sorted(name for name in known if not hasattr(diffusers(), name)):
            raise ModelUnavailable(
                f"model {model.name!r} cannot be loaded: it needs {lacking[0]}, which diffusers "
                f"{diffusers().__version__} does not have"
            )
        for part in directory.parts:
            directory.check(part)
        return directory

    @property
    def networks(self) -> list[str]:
        """The names of the parts that are networks."""
        return [part for part in self.parts if issubclass(self._class(part), torch.nn.Module)]

    def check(self, part: str) -> None:
        """Check a part without reading weights; raise `ModelUnavailable`."""
        found = self._class(part)
        if not issubclass(found, torch.nn.Module):
            self.other(part)
            return
        _find_weights(self.model, self.path / part, _STEMS[self.parts[part][0]])
        if "quantization_config" in read_config(self.model, f"{part}/config.json"):
            raise ModelUnavailable(
                f"model {self.model.name!r} cannot be loaded: {part}/ has quantised weights, which this runner does "
                "not load"
            )

    def network(self, part: str, dtype: torch.dtype) -> Any:
        """Return a network on the CPU; raise `ModelUnavailable` for files that do not make a network.

        Missing weights are an error: the library would fill them with random numbers.
        """
        with _load_errors(self.model, part):
            network, report = self._class(part).from_pretrained(
                self.path / part, local_files_only=True, use_safetensors=True, output_loading_info=True, dtype=dtype
            )
            if lacking := sorted(report["missing_keys"]):
                raise ModelUnavailable(f"its weights lack {len(lacking)}, the first is {lacking[0]!r}")
        return network

    def other(self, part: str) -> Any:
        """Return a part that is no network, such as a tokenizer."""
        with _load_errors(self.model, part, what="cannot be used"):
            return self._class(part).from_pretrained(self.path / part, local_files_only=True)

    def base(self, networks: Mapping[str, Any]) -> Any:
        """Return the library's pipeline of the directory's class with these networks."""
        found = getattr(diffusers(), self.pipeline.name)
        taken = inspect.signature(found.__init__).parameters
        index = read_config(self.model, INDEX)
        plain = {name: index[name] for name in taken if name in index and not isinstance(index[name], list)}
        absent = {name: None for name in taken if isinstance(index.get(name), list) and name not in self.parts}
        others = {part: self.other(part) for part in self.parts if part not in networks}
        if _LEFT_OUT in taken:
            absent[_LEFT_OUT] = None
            plain["requires_safety_checker"] = False
        with warnings.catch_warnings(), _load_errors(self.model, INDEX, what="is not usable"):
            warnings.simplefilter("ignore")  # of settings of older directories, which the library corrects
            return found(
                **{name: value for name, value in {**plain, **absent, **others, **networks}.items() if name in taken}
            )

    def _class(self, part: str) -> Any:
        """Return the class of a part; raise `ModelUnavailable` for one that the installed libraries lack."""
        library, name = self.parts[part]
        module = {"diffusers": diffusers, "transformers": transformers}.get(library)
        found = getattr(module(), name, None) if module else None
        where = f"model {self.model.name!r} cannot be loaded: {INDEX} gives {part!r} the class {name!r}"
        if not isinstance(found, type):
            raise ModelUnavailable(f"{where} of {library!r}, which is not installed or not known")
        return found


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


def _parts(index: Mapping[str, Any]) -> Mapping[str, tuple[str, str]]:
    """Return library and class of each part to load."""
    left_out = (_LEFT_OUT, "feature_extractor") if _LEFT_OUT in index else ()
    named = {part: entry for part, entry in index.items() if isinstance(entry, list) and len(entry) == 2}
    return {part: (entry[0], entry[1]) for part, entry in named.items() if entry[1] and part not in left_out}


@contextmanager
def _load_errors(model: Model, part: str, what: str = "do not make a network") -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise OutOfMemory from error
    except Exception as error:  # a wrong config raises errors of any type
        reason = error.detail if isinstance(error, PenstockError) else f"{type(error).__name__}: {first_line(error)}"
        files = f"the files of {part}/ {what}" if part not in ("scheduler", INDEX) else f"{part} {what}"
        raise ModelUnavailable(
            f"model {model.name!r} cannot be loaded: {files} ({reason})"
            if part != "scheduler"
            else f"model {model.name!r} cannot be loaded: scheduler/scheduler_config.json is not usable ({reason})"
        ) from error
