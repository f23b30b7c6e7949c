"""How long scenes of several sizes take on this machine, phase by phase. `make bench`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from penstock.demo import MODEL, running, write_scene
from penstock.display import out, table

SIZES_PX = (512, 1024, 2048)
PHASES = ("fetch", "cold_start", "preprocess", "inference", "postprocess", "upload")


def main() -> None:
    """Run one scene of each size, the first of them twice: its first run loads the model."""
    rows = table("scene", "megapixels", "seconds", "megapixels/s", *PHASES)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, running(Path(folder) / "data") as client:
        for size_px in (SIZES_PX[0], *SIZES_PX):
            scene = Path(folder) / f"{size_px}.tif"
            write_scene(scene, size_px=size_px)
            begun = time.monotonic()
            job = client.wait(client.submit(MODEL, files={"scene": scene}).id)
            seconds, megapixels = time.monotonic() - begun, size_px**2 / 1e6
            phases = [f"{job.metrics.get(f'{phase}_ms', 0) / 1000:.2f}" for phase in PHASES]
            rows.add_row(
                f"{size_px} x {size_px}", f"{megapixels:.2f}", f"{seconds:.2f}", f"{megapixels / seconds:.2f}", *phases
            )
    out.print(rows)


if __name__ == "__main__":
    main()
