"""Results of the embedding processors: vectors as JSON, as `.safetensors`, or both."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ProcessorFailed
from penstock.processors.base import ArtifactSink, Output, final_outputs
from penstock.processors.outputs import OUTPUTS

#: The network's output: float32 (dimensions,).
OUTPUT_NAME = "embedding"

SPECS = (
    OUTPUTS.spec("json", "the result: `embeddings`, a list of numbers for each item", kind="json"),
    OUTPUTS.spec(
        "safetensors",
        "embeddings.safetensors: `embeddings`, float32 (items, dimensions)",
        kind="safetensors",
        default=False,
    ),
)


def embedding_result(outputs: Iterator[Output], wanted: Collection[str], sink: ArtifactSink) -> dict[str, Any]:
    """Return the result's data, and add the artifact if it is wanted.

    Numbers in JSON are the shortest decimals that convert back to the same float32.
    """
    vectors = [_vector(output) for output in final_outputs(outputs)]
    if len({len(vector) for vector in vectors}) > 1:
        raise ProcessorFailed("The network answered embeddings of different lengths.")
    data: dict[str, Any] = {"count": len(vectors), "dimensions": len(vectors[0]) if vectors else 0}
    if "json" in wanted:
        data["embeddings"] = [[float(str(number)) for number in vector] for vector in vectors]
    if "safetensors" in wanted:
        OUTPUTS.put(sink, "embeddings", {"embeddings": np.stack(vectors)}, kind="safetensors")
    return data


def _vector(output: Output) -> npt.NDArray[np.float32]:
    vector = np.asarray(output.data[OUTPUT_NAME], dtype=np.float32)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ProcessorFailed(f"The network answered {vector.dtype} {vector.shape}; expected finite (dimensions,).")
    return vector
