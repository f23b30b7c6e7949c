"""The work of a job, the same for every peer; runs in the peer's environment and imports nothing of Penstock.

`PEER_WORK` names a folder with `work.json`: `kind` (`noop`, `picture` or `scene`), `program` (a file of
`torch.export.save`), `threads`, and for scenes `mean`, `std` and `tiles`: pairs of window and core, each as [top, left,
bottom, right]. A job is a dictionary: `text`; or `image` (a JPEG in Base64); or `scene` and `out` (paths).
"""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

SCALE = 1e-4
NODATA = 255


class Work:
    """A loaded program, or nothing for no-op jobs."""

    def __init__(self) -> None:
        """Load the program of `work.json`."""
        folder = Path(os.environ["PEER_WORK"])
        self.order: dict[str, Any] = json.loads((folder / "work.json").read_text())
        self.kind: str = self.order["kind"]
        if self.kind != "noop":
            import torch

            torch.set_num_threads(self.order["threads"])
            self.network = torch.export.load(folder / self.order["program"]).module()

    def run(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the answers of some jobs; pictures share a forward pass."""
        match self.kind:
            case "noop":
                return [{"text": job["text"]} for job in jobs]
            case "picture":
                return self._pictures(jobs)
            case _:
                return [self._scene(job) for job in jobs]

    def _pictures(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        import torch
        from PIL import Image

        images = [Image.open(io.BytesIO(base64.b64decode(job["image"]))).convert("RGB") for job in jobs]
        pixels = np.stack([np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR)) for image in images])
        batch = ((pixels.astype(np.float32) / 255 - 0.5) / 0.5).transpose(0, 3, 1, 2)
        with torch.inference_mode():
            scores = torch.softmax(self.network(torch.from_numpy(np.ascontiguousarray(batch))), dim=1)
        best = scores.topk(5, dim=1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [
            {"labels": [{"id": i, "score": score} for i, score in zip(*each, strict=True)]}
            for each in pairs
        ]  # fmt: skip

    def _scene(self, job: dict[str, Any]) -> dict[str, Any]:
        """Map a scene tile by tile as a careful script would, and write a COG of classes."""
        import rasterio
        import torch

        with rasterio.open(job["scene"]) as file:
            numbers, profile = file.read(), file.profile
        mean, std = (np.float32(self.order[name])[:, None, None] for name in ("mean", "std"))
        classes = np.empty(numbers.shape[1:], np.uint8)
        for window, core in self.order["tiles"]:
            top, left, bottom, right = window
            part = numbers[:, top:bottom, left:right]
            beyond = ((0, 0), (0, bottom - top - part.shape[1]), (0, right - left - part.shape[2]))
            pixels = (np.pad(part, beyond) * np.float32(SCALE) - mean) / std
            with torch.inference_mode():
                found = self.network(torch.from_numpy(pixels)[None])[0].argmax(dim=0).numpy()
            rows, columns = slice(core[0], core[2]), slice(core[1], core[3])
            inside = found[core[0] - top : core[2] - top, core[1] - left : core[3] - left]
            classes[rows, columns] = inside
        classes[(numbers == 0).any(axis=0)] = NODATA
        write_cog(classes, profile, job["out"])
        return {"out": job["out"]}


def write_cog(classes: Any, profile: Any, out: str) -> None:
    """Write a class map as a Cloud-Optimised GeoTIFF."""
    import rasterio

    profile = {**profile, "driver": "COG", "count": 1, "dtype": "uint8", "nodata": NODATA, "blocksize": 512}
    for name in ("tiled", "blockxsize", "blockysize", "interleave", "photometric"):
        profile.pop(name, None)
    with rasterio.open(out, "w", **(profile | {"overview_resampling": "mode", "predictor": 2})) as file:
        file.write(classes, 1)
