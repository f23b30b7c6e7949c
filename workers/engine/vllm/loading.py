"""The runner `vllm`: what computes a model, by its processor."""

from __future__ import annotations

from penstock.models import Model
from penstock.processors.openai.options import EngineOptions
from penstock.workers.engine.base import Runner
from penstock.workers.engine.weights import requires


def load_vllm(model: Model) -> Runner:
    """Start vLLM for the model; raise `ModelUnavailable` with vLLM's error."""
    if model.processor in EngineOptions.TASKS:
        from penstock.workers.engine.vllm.generation import load_generation

        return load_generation(model)
    with requires("worker"):
        from penstock.workers.engine.vllm.runner import load_pooling
    return load_pooling(model)


def check_vllm(model: Model) -> None:
    """Check a model without its weights; raise `ModelUnavailable`."""
    if model.processor in EngineOptions.TASKS:
        from penstock.workers.engine.vllm.generation import check_generation

        check_generation(model)
        return
    with requires("worker"):
        from penstock.workers.engine.vllm.runner import check_pooling
    check_pooling(model)
