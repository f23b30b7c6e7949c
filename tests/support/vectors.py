"""Vectors of texts and images by a model, through its processor and the engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.models import Model
from penstock.processors.registry import Registry
from penstock.processors.testing import LocalFiles
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners


def photos(folder: Path) -> dict[str, Path]:
    """Write three images of different shapes; return them by their references."""
    numbers = np.random.default_rng(1)
    found: dict[str, Path] = {}
    for name, shape in (("wide", (40, 80, 3)), ("tall", (90, 50, 3)), ("square", (32, 32, 3))):
        path = folder / f"{name}.png"
        Image.fromarray(numbers.integers(0, 256, shape, dtype=np.uint8)).save(path)
        found[f"media://{name}"] = path
    return found


def vectors(model: Model, paths: Mapping[str, Path], **request: Any) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    """Return the embeddings and the result of a job, through the processor and the engine."""
    processor: Any = Registry.imported().processor_for(model)
    with closing(BatchingEngine(Runners.installed())) as engine:
        prepared = processor.pre_process(processor.request.model_validate(request), LocalFiles(paths))
        outputs = engine.run(model, prepared.prompts, check=lambda: None)
        data = dict(processor.post_process(outputs, prepared.context, None).data)
    return np.array(data["embeddings"]), data
