"""Loading of directories in diffusers' format."""

from __future__ import annotations

from dataclasses import replace

import torch

from penstock.models import Model
from penstock.workers.engine.base import Runner
from penstock.workers.engine.diffusers.calls import CallRunner, pipelines_of
from penstock.workers.engine.diffusers.parts import Directory, log
from penstock.workers.engine.torch.device import TorchDevice, weights_bytes


def load_diffusers(model: Model) -> Runner:
    """Load a directory in the record's precision; raise `ModelUnavailable` for a missing, damaged or unknown part."""
    directory = Directory.of(model)
    if (directory.path / "safety_checker").is_dir():
        log.warning("diffusers.safety_checker_left_out", model=model.name)
    device = TorchDevice.of(model)
    networks = {part: directory.network(part, device.dtype) for part in directory.networks}
    runner = CallRunner(
        pipelines_of(directory.base(networks), directory.pipeline.calls),
        list(networks.values()),
        replace(device, dtype=torch.float32),  # no precision but that of the weights
        max_batch=model.max_batch,
        memory_bytes=sum(map(weights_bytes, networks.values())),
        together=not device.is_cpu,
    )
    for module in runner.modules:
        device.place(module)
    return runner


def check_diffusers(model: Model) -> None:
    """Check the files that `load_diffusers` would load, without reading weights; raise `ModelUnavailable`."""
    Directory.of(model)
