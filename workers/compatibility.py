"""The check of a model's runner and processor as a pair: they must send and read the same values.

`penstock models check`, `penstock.Engine` and workers make a model's catalogue entry by `checked_entry` alone, so that
they accept and refuse the same models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import ModelUnavailable
from penstock.models import CatalogueEntry, Model
from penstock.processors.io_signature import IOSignature, Offers, closest, declared, fits
from penstock.processors.registry import Registry, export
from penstock.workers.engine.runners import Runners

#: Beginnings of reasons after which several values can be listed.
_ALIKE = ("it does not give ", "it does not take ")


def checked_entry(registry: Registry, runners: Runners, model: Model) -> CatalogueEntry:
    """Return a model's catalogue entry; its `problem` also says if the runner cannot serve the processor."""
    return export(registry, model, check=lambda processor: require_compatible(processor, registry, runners, model))


def require_compatible(processor: Any, registry: Registry, runners: Runners, model: Model) -> None:
    """Raise `ModelUnavailable` if a model's runner cannot serve its processor; the error names those that fit.

    A processor or runner that declares no signatures is not refused: the warm-up decides. A runner that cannot be
    imported here, where there is little memory, is not refused either: `Runners.check` and `load` report it.
    """
    needed, offers = declared(processor), _offers_of(model, runners)
    if needed is None or offers is None or fits(needed, offers):
        return
    general = runners.offers(model.runner)
    if general is not None and fits(needed, general):
        raise ModelUnavailable(_of_model(model, needed, closest(needed, offers)))
    raise ModelUnavailable(
        f"the runner {model.runner!r} cannot serve the processor {model.processor!r}: "
        f"{_joined(closest(needed, offers))}. Runners for {model.processor!r}: "
        f"{_named(runners_for(needed, runners))}. Processors for {model.runner!r}: "
        f"{_named(processors_for(model.runner, registry, runners))}"
    )


def runners_for(needed: Sequence[IOSignature], runners: Runners) -> list[str]:
    """Return the names of the runners that can serve a processor's signatures, with suitable models."""
    return [name for name in runners.names if _serves(name, needed, runners)]


def processors_for(runner: str, registry: Registry, runners: Runners) -> list[str]:
    """Return the names of the processors that a runner can serve, with suitable models."""
    return [
        name
        for name, needed in sorted(registry.io_signatures().items())
        if needed is not None and _serves(runner, needed, runners)
    ]


def _serves(name: str, needed: Sequence[IOSignature], runners: Runners) -> bool:
    """Return True if a runner declares that it serves these signatures."""
    try:
        offers = runners.offers(name)
    except ModelUnavailable:
        return False
    return offers is not None and fits(needed, offers)


def _offers_of(model: Model, runners: Runners) -> Offers | None:
    """Return the signatures of a model with its runner, None if they are not known; raise for an unknown runner."""
    try:
        return runners.offers_of(model)
    except ModelUnavailable:
        if model.runner not in runners.specs:
            raise
        return None


def _of_model(model: Model, needed: Sequence[IOSignature], reasons: Sequence[str]) -> str:
    """Return the error for a model that does not fit, although its runner serves the processor with other models."""
    sent = "; ".join(dict.fromkeys(f"{one.sends()}, and reads {one.reads()}" for one in needed))
    return (
        f"model {model.name!r} cannot serve the processor {model.processor!r}, which sends {sent}: "
        f"{_joined(reasons)}. Check the names in the model's options and files"
    )


def _joined(reasons: Sequence[str]) -> str:
    """Return reasons as one sentence; those that begin alike make one part, such as "it does not give a, b"."""
    parts: dict[str, list[str]] = {}
    for reason in reasons:
        beginning = next((alike for alike in _ALIKE if reason.startswith(alike)), reason)
        parts.setdefault(beginning, []).append(reason.removeprefix(beginning))
    return "; ".join(f"{beginning}{', '.join(rests)}" for beginning, rests in parts.items())


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
