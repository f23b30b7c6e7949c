"""Classes of a classifier: scores from logits, and the names of the classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output
from penstock.processors.directory import read_config, read_labels

#: The network's output: float32 (classes,).
OUTPUT_NAME = "logits"

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Classes:
    """A model's classes: names by id; `multi_label` means that an image may have several classes."""

    labels: Mapping[int, str]
    multi_label: bool
    #: True: the logits are the answer, as of a regression.
    raw: bool = False

    def scores(self, output: Output) -> Scores:
        """Return the softmax of the logits, their sigmoid for several labels or one class, or the raw logits."""
        logits = np.asarray(output.data[OUTPUT_NAME])
        values = logits.astype(np.float64)
        if values.ndim != 1 or not np.isfinite(values).all():
            raise ProcessorFailed(f"The network answered {logits.dtype} {logits.shape}; expected finite (classes,).")
        if self.raw:
            return values
        if self.multi_label or len(values) == 1:
            return np.asarray(0.5 * (1 + np.tanh(values / 2)))
        raised = np.exp(values - values.max())
        return np.asarray(raised / raised.sum())

    def best(self, scores: Scores, count: int) -> list[Mapping[str, Any]]:
        """Return `count` entries `{"id", "label", "score"}`, highest score first."""
        ids = np.argsort(-scores, kind="stable")[:count]
        return [{"id": int(i), "label": self.labels.get(int(i), f"LABEL_{i}"), "score": float(scores[i])} for i in ids]


def read_classes(model: Model) -> Classes:
    """Return the classes from the model's options and directory; raise the errors of `read_labels`."""
    return Classes(read_labels(model), read_config(model).get("problem_type") == "multi_label_classification")
