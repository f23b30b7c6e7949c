"""A network without weights that finds bright rectangles exactly, and sees only locally."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Rectangles(nn.Module):
    """`pixels` (N, bands, H, W) to `boxes` (N, k, 4), `scores` (N, k) and `labels` (N, k).

    A rectangle has numbers above 100 in the first band and dark pixels around it. Its label is 1 above 150, else 0, and
    its score its number / 250. Rows without a rectangle have the score 0.
    """

    def __init__(self, most: int = 64) -> None:
        super().__init__()
        self.most = most

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the boxes of all rectangles."""
        band = pixels[:, 0]
        bright = band > 100
        # A pixel whose left and upper neighbours are dark is a rectangle's corner.
        left, above = nn.functional.pad(bright[:, :, :-1], (1, 0)), nn.functional.pad(bright[:, :-1], (0, 0, 1, 0))
        corner = bright & ~left & ~above
        y = torch.arange(band.shape[1])[None, :, None].expand_as(band)
        x = torch.arange(band.shape[2])[None, None, :].expand_as(band)
        right, bottom = _next_dark(bright), _next_dark(bright.transpose(1, 2)).transpose(1, 2)
        scores = torch.where(corner, band / 250, torch.zeros_like(band)).flatten(1)
        best, at = scores.topk(self.most, dim=1)
        edges = [side.flatten(1).gather(1, at).float() for side in (x, y, right, bottom)]
        return torch.stack(edges, dim=2), best, (best > 0.6).long()


def _next_dark(bright: Tensor) -> Tensor:
    """Return the place of the next dark pixel along the last axis, or the axis' length."""
    length = bright.shape[-1]
    place = torch.arange(length)
    dark = ~bright[..., None, :] & (place[None, :] >= place[:, None])
    return torch.where(dark, place, length).amin(dim=-1)
