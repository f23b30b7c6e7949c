"""Vectors by chat networks that embed: those of the library's own processor and network, batched and alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.models import Model
from penstock.processors.registry import Registry
from tests.support.hub import a_model
from tests.support.image_text_kinds import KINDS
from tests.support.message_embedders import EMBEDDERS, library_vectors, write_embedder
from tests.support.vectors import photos, vectors

#: The library's own, about numpy and its settings.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]
#: GME's and VLM2Vec's type, E5-V's, Qwen3-VL-Embedding's, and one whose images see each other.
FEW = ("qwen2_vl", "llava_next", "qwen3_vl", "gemma3")
TEXTS = ["a cat", "What is the dog doing on the sofa?", "x", "a cat on a"]
INSTRUCTION = "Find it."


def an_embedder(folder: Path, **fields: Any) -> Model:
    return a_model(folder, **{"processor": "text-image-embedding", "max_batch": 8, **fields})


def pictures(paths: dict[str, Path]) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in paths.values()]


def a_request(paths: dict[str, Path], most: int) -> dict[str, Any]:
    """Return a request for texts, images and items of both."""
    shown = [{"type": "image", "image": reference} for reference in paths]
    words = {"type": "text", "text": "which?"}
    items = [[shown[0], words], [shown[1], words], shown[:most], [*shown[:most], words]]
    return {"texts": TEXTS, "images": list(paths), "items": items}


def the_items(paths: dict[str, Path], most: int) -> list[list[Any]]:
    """Return the same for the library."""
    shown = pictures(paths)
    both = [[shown[0], "which?"], [shown[1], "which?"], shown[:most], [*shown[:most], "which?"]]
    return [*([text] for text in TEXTS), *([picture] for picture in shown), *both]


@pytest.mark.breadth(but=FEW)
@pytest.mark.parametrize("kind", EMBEDDERS)
def test_vectors_are_the_library_s_batched_and_alone(kind: str, tmp_path: Path) -> None:
    folder, paths = write_embedder(kind, tmp_path / "m"), photos(tmp_path)
    most = KINDS[kind].most if kind in KINDS else 2
    model, asked = an_embedder(folder), a_request(paths, most)
    processor: Any = Registry.imported().processor_for(model)
    expected = library_vectors(folder, processor._way.encoder.processor, the_items(paths, most), INSTRUCTION)
    assert np.ptp(expected, axis=0).max() > 0.02, "items make a difference"
    together, data = vectors(model, paths, **asked, prompt=INSTRUCTION)
    np.testing.assert_allclose(together, expected, rtol=0, atol=5e-5)
    counts = {name: data[name] for name in ("count", "texts", "images", "items", "truncated")}
    assert counts == {"count": 11, "texts": 4, "images": 3, "items": 4, "truncated": []}
    alone, _ = vectors(an_embedder(folder, max_batch=1), paths, **asked, prompt=INSTRUCTION)
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5)
