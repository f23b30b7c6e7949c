"""Count a file's valid pixels with an engine that computes nothing; print the count and the peak memory in MB.

Started by `test_real_files.py`, once per file, because a process's peak of resident memory never goes down.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.support.geo.high_water import peak_mb
from tests.support.geo.scenes import make_model, segment


def constant(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return constant probabilities without computation."""
    return np.broadcast_to(np.float32([0.4, 0.6])[:, None, None], (2, *pixels.shape[1:]))


def main(path: Path, folder: Path) -> None:
    """Measure one file."""
    model = make_model(classes=2, tile_px=512)
    _, result = segment(path, folder, network=constant, model=model, bands=[1], outputs=["stats"])
    assert result.data is not None
    sys.stdout.write(f"{result.data['valid_pixels']} {peak_mb()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
