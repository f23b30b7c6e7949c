"""Map a series of dates with an engine that computes nothing, and print the peak resident memory in MB.

Started by `test_series.py`, once per series, because a process's peak never goes down.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.geo.high_water import peak_mb
from tests.support.geo.peak_memory import constant, small_buffers, write
from tests.support.geo.scenes import segment

SIDE_PX = 2000


def main(folder: Path, count: int) -> None:
    """Measure a series of so many dates."""
    write(scene := folder / "scene.tif", SIDE_PX, SIDE_PX)
    days = [f"2020-{1 + at // 28:02}-{1 + at % 28:02}T00:00:00Z" for at in range(count)]
    dates = [{"scene": str(scene), "datetime": day} for day in days]
    model = small_buffers()
    names = [label["name"] for label in model.options["classes"]]
    series = {"of": names[2:3], "ignore": names[3:]}
    outputs = ("classes", "preview", "stats")
    sink, result = segment(
        None, folder / "out", network=constant, model=model, dates=dates, series=series, outputs=outputs
    )
    assert result.data is not None
    assert [date["valid_pixels"] for date in result.data["dates"]] == [SIDE_PX**2] * count
    assert len([name for name in sink.artifacts if name.endswith("-classes.tif")]) == count
    sys.stdout.write(str(peak_mb()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
