"""The sensors of a record of scenes, for runners that give each to the network by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.models import Model


def sensors_of(model: Model) -> dict[str, int]:
    """Return the number of bands of each modality in the record, in the order of a prompt's bands."""
    further = model.options.get("modalities") or ()
    sensors = [one for one in further if isinstance(one, Mapping)] if isinstance(further, list | tuple) else []
    own = {str(model.options.get("modality", "")): length_of(model.options.get("bands"))}
    return own | {str(one.get("name")): length_of(one.get("bands")) for one in sensors}


def in_words(sensors: Mapping[str, int]) -> str:
    """Return modalities and their bands for a message."""
    return ", ".join(f"{name or '(no name)'} ({count} bands)" for name, count in sensors.items()) or "none"


def length_of(listed: Any) -> int:
    """Return the length of a list; 0 for any other value, which the processor rejects."""
    return len(listed) if isinstance(listed, list | tuple) else 0
