"""Segments without overlap from the queries of a mask transformer, as in the library's panoptic pipeline.

Every query has a class with a score, and a mask. Where masks overlap the likelier one wins, weighted by its score. A
query that lost too many pixels is dropped, and its pixels have no segment. One mask at a time is at full size: 100
masks of a 12-megapixel photo would take 5 GB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from penstock.errors import ProcessorFailed
from penstock.processors.base import Array

_MAX_SIDE_PX = 65_536


@dataclass(frozen=True, slots=True)
class Wanted:
    """A prompt's settings of segmentation."""

    #: The (height, width) of the answer.
    size: tuple[int, int]
    #: Scores of queries must be above this.
    threshold: float
    #: Least value of a pixel that counts as a mask's own.
    mask_threshold: float
    #: A query must have kept more than this share of its own pixels.
    overlap_threshold: float

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Wanted:
        """Read `size` [height, width], `threshold`, `mask_threshold` and `overlap_threshold`."""
        size = data.get("size")
        sides = list(size) if isinstance(size, list | tuple) else []
        if len(sides) != 2 or not all(type(side) is int and 0 < side <= _MAX_SIDE_PX for side in sides):
            raise ProcessorFailed("`size` is the answer's [height, width] in pixels")
        names = ("threshold", "mask_threshold", "overlap_threshold")
        given = [data.get(name) for name in names]
        if not all(isinstance(value, int | float) and 0 <= value <= 1 for value in given):
            raise ProcessorFailed(f"the network takes numbers from 0 to 1 as {', '.join(names)}")
        return cls((sides[0], sides[1]), *(float(value or 0) for value in given))


def queries(outputs: Any) -> tuple[Tensor, Tensor]:
    """Return a batch's logits of classes, (N, queries, classes + 1), and of masks, (N, queries, h, w).

    The last class means "nothing".
    """
    if hasattr(outputs, "masks_queries_logits"):
        return outputs.class_queries_logits.float(), outputs.masks_queries_logits.float()
    return outputs.logits.float(), outputs.pred_masks.float()


def segment(
    logits: Tensor, masks: Tensor, wanted: Wanted, *, via: tuple[int, int] | None = None
) -> Mapping[str, Array]:
    """Return `segments`, `classes` and `scores` of one image's queries; see `load_instance_segmenter`.

    `via` is a size to which masks are enlarged first.
    """
    scores, classes = torch.softmax(logits, dim=-1).max(dim=-1)
    kept = (classes != logits.shape[-1] - 1) & (scores > wanted.threshold)
    scores, classes = scores[kept], classes[kept]
    owners, kept_enough = _share(masks[kept], scores, wanted, via)
    ids = torch.zeros(len(scores) + 1, dtype=torch.int32, device=scores.device)
    ids[1:][kept_enough] = torch.arange(1, int(kept_enough.sum()) + 1, dtype=torch.int32, device=scores.device)
    ids = ids.to(torch.uint8) if len(ids) <= 256 else ids
    segments = ids[owners.int()].cpu().numpy()
    return {
        "segments": segments if segments.dtype == np.uint8 else segments.astype(np.uint16),
        "classes": classes[kept_enough].cpu().numpy(),
        "scores": scores[kept_enough].cpu().numpy(),
    }


def _share(masks: Tensor, scores: Tensor, wanted: Wanted, via: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """Return each pixel's query, from 1 on, and a mask of the queries that kept enough pixels."""
    best = torch.full(wanted.size, -1.0, device=masks.device)
    owners = torch.zeros(wanted.size, dtype=torch.int16, device=masks.device)
    own = torch.zeros(len(scores), dtype=torch.int64, device=masks.device)
    for number, score in enumerate(scores):
        mask = masks[number] if via is None else _enlarged(masks[number], via)
        mask = _enlarged(mask.sigmoid(), wanted.size).mul_(score)
        own[number] = (mask >= wanted.mask_threshold).sum()
        # Strictly more: among equals the first query wins, as with argmax.
        owners[mask > best] = number + 1
        torch.maximum(best, mask, out=best)
    had = torch.stack([(owners == number + 1).sum() for number in range(len(scores))]) if len(scores) else own
    return owners, (had > 0) & (own > 0) & (had / own > wanted.overlap_threshold)


def _enlarged(mask: Tensor, size: tuple[int, int]) -> Tensor:
    return interpolate(mask[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]
