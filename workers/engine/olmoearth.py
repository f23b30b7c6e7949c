"""The runner `olmoearth`: vectors of the encoder of OlmoEarth, by its own library, which only this module imports.

A directory as published has `config.json`, the config of the training, and `weights.pth`, of which tensors alone are
read. Prompts have `pixels`, float32 (dates * bands, H, W), normalised, with the bands of each modality in the library's
order, one modality after the other, and `temporal_coords`, float32 (dates, 2) of year and day of the year from 0.
Outputs have `embedding`, float32 (dimensions, rows, columns), a vector of each patch: the mean over dates, bands and
modalities; with another `options.pooling` than "patches" float32 (dimensions), their mean.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from olmoearth_pretrain_minimal import load_model_from_path
from olmoearth_pretrain_minimal.olmoearth_pretrain_v1.utils.constants import Modality
from olmoearth_pretrain_minimal.olmoearth_pretrain_v1.utils.datatypes import MaskedOlmoEarthSample
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import ModelUnavailable, ProcessorFailed, first_line
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.sensors import in_words, sensors_of
from penstock.workers.engine.sources import directory_of
from penstock.workers.engine.torch.device import Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.weights import naming

CONFIG, WEIGHTS = "config.json", "weights.pth"
PIXELS, TIME = "pixels", "temporal_coords"
#: Modules whose classes a config may name: building the network calls them.
_OWN = ("helios.", "olmoearth_pretrain.", "olmoearth_pretrain_minimal.")
#: Metres of a pixel in the training.
_PIXEL_M = 10
#: Side of a patch without `patch_px`; OlmoEarth takes 1 to 8 pixels.
_PATCH_PX = 8

State = Mapping[str, Sent]


class OlmoEarthRunner:
    """An encoder of OlmoEarth. On a CPU prompts run one by one, for the same bits (see `torch.runner`)."""

    def __init__(self, module: nn.Module, model: Model, device: TorchDevice) -> None:
        """Move the encoder to the device."""
        self._sensors, self._dates = _sensors(model), int(model.options.get("dates", 1))
        self._patch_px = int(model.options.get("patch_px") or _PATCH_PX)
        self._by_patch = model.options.get("pooling") == "patches"
        self._normalises = model.options.get("normalize") is True
        self._memory_bytes, self._device = weights_bytes(module), device
        self._module: nn.Module = device.place(module)
        self._max_batch = 1 if device.is_cpu else model.max_batch

    @property
    def max_batch(self) -> int:
        """The model's `max_batch`, or 1 on a CPU."""
        return self._max_batch

    @property
    def memory_bytes(self) -> int:
        """The bytes of the weights."""
        return self._memory_bytes

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shapes: tiles of one shape share a batch."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> State:
        """Return the prompt's arrays on their way to the device."""
        pixels, time = (prompt.data.get(name) for name in (PIXELS, TIME))
        count = self._dates * sum(self._sensors.values())
        if not isinstance(pixels, np.ndarray) or pixels.ndim != 3 or len(pixels) != count:
            raise ProcessorFailed(f"the network takes `{PIXELS}`, a float32 array ({count}, height, width)")
        if not isinstance(time, np.ndarray) or time.shape != (self._dates, 2):
            raise ProcessorFailed(f"the network takes `{TIME}`, a float32 array ({self._dates}, 2)")
        return {PIXELS: self._device.send(pixels), TIME: self._device.send(_calendar(time))}

    def step(self, states: Sequence[State]) -> Sequence[Done]:
        """Run the encoder once."""
        with self._device.running():
            pixels, time = (self._device.stack([state[name] for state in states]) for name in (PIXELS, TIME))
            sample = MaskedOlmoEarthSample(timestamps=time, **dict(self._images(pixels)))
            found = self._module(sample, patch_size=self._patch_px, input_res=_PIXEL_M, fast_pass=True)
            tokens = found["tokens_and_masks"].pool_unmasked_tokens("mean", spatial_pooling=self._by_patch).float()
            vectors = tokens.movedim(-1, 1)
            vectors = functional.normalize(vectors, dim=1) if self._normalises else vectors
            return [Done(Output({"embedding": array})) for array in arrays_of(vectors)]

    def close(self) -> None:
        """Free the device's memory."""
        self._device.free(self._module)

    def _images(self, pixels: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield (batch, rows, columns, dates, bands) of each modality, and a mask of the same, in which all is seen."""
        dated = pixels.reshape(len(pixels), self._dates, -1, *pixels.shape[2:]).permute(0, 3, 4, 1, 2)
        for name, part in zip(self._sensors, torch.split(dated, list(self._sensors.values()), dim=-1), strict=True):
            yield name, part
            sets = Modality.get(name).num_band_sets
            yield f"{name}_mask", torch.zeros((*part.shape[:-1], sets), dtype=torch.long, device=part.device)


def _sensors(model: Model) -> dict[str, int]:
    """Return the modalities of the record with their bands; a record of tensors, without bands, has Sentinel-2."""
    if "bands" in model.options:
        return sensors_of(model)
    return {Modality.SENTINEL2_L2A.name: Modality.SENTINEL2_L2A.num_bands}


def _calendar(time: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return (dates, 3) of day, month from 0 and year, from the year and the day of the year."""
    years = (time[:, 0].astype(np.int64) - 1970).astype("datetime64[Y]")
    days = years.astype("datetime64[D]") + time[:, 1].astype(np.int64)
    months = days.astype("datetime64[M]")
    month = months.astype(np.int64)
    return np.stack([(days - months.astype("datetime64[D]")).astype(np.int64) + 1, month % 12, month // 12 + 1970], 1)


def load_olmoearth(model: Model) -> Runner:
    """Load a directory as published; raise `ModelUnavailable`."""
    with naming(model):
        return OlmoEarthRunner(_encoder(model, weights=True), model, TorchDevice.of(model))


def check_olmoearth(model: Model) -> None:
    """Check directory and record without the weights; raise `ModelUnavailable`."""
    with naming(model), torch.device("meta"):
        _encoder(model, weights=False)


def _encoder(model: Model, *, weights: bool) -> nn.Module:
    path = directory_of(model)
    _check_config(path)
    if not (path / WEIGHTS).is_file():
        raise ModelUnavailable(f"it lacks the weights: {WEIGHTS}")
    try:
        encoder: nn.Module = load_model_from_path(path, load_weights=weights).encoder
    except Exception as error:  # wrong configs and weights raise errors of any type
        said = f"{type(error).__name__}: {first_line(error)}"
        raise ModelUnavailable(f"the library of OlmoEarth cannot load its directory ({said})") from error
    _check_record(model, getattr(encoder, "encoder_input_modality_names", None) or ())
    return encoder


def _check_config(path: Path) -> None:
    """Raise `ModelUnavailable` for a config that names classes of others."""
    try:
        config = json.loads((path / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"its {CONFIG} cannot be read: {first_line(error)}") from error
    for name in _classes(config.get("model") if isinstance(config, dict) else None):
        if not str(name).startswith(_OWN):
            raise ModelUnavailable(f"{CONFIG} names the class {name}, which is none of OlmoEarth")


def _classes(config: Any) -> Iterator[Any]:
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    if isinstance(config, dict) and "_CLASS_" in config:
        yield config["_CLASS_"]
    for part in parts:
        yield from _classes(part)


def _check_record(model: Model, served: Sequence[str]) -> None:
    """Raise `ModelUnavailable` unless the record has modalities of the encoder, with all bands in their order."""
    options, sensors = model.options, _sensors(model)
    if unknown := [name for name in sensors if name not in served]:
        raise ModelUnavailable(
            f"the network takes {', '.join(served)}; options.modality and options.modalities name {in_words(sensors)}"
            if any(unknown)
            else f"options.modality must be one of {', '.join(served)}"
        )
    if "bands" not in options:
        return
    if (options.get("coordinates") or {}).get("time") != "needed":
        raise ModelUnavailable('the network needs the time: give options.coordinates = { time = "needed" }')
    bands = [options.get("bands"), *(one.get("bands") for one in options.get("modalities") or ())]
    for name, listed in zip(sensors, bands, strict=True):
        order = [code.upper() for code in Modality.get(name).band_order]
        named = [{str(each).upper() for each in (one.get("name"), *(one.get("synonyms") or ()))} for one in listed]
        if len(order) != len(named) or any(code not in names for code, names in zip(order, named, strict=True)):
            raise ModelUnavailable(f"the bands of {name} must be {', '.join(order)}, in this order, by name or synonym")
