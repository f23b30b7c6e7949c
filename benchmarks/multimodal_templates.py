"""The cost of transformers in a processor's template: `python -m benchmarks.multimodal_templates`.

Chats about an image by a family of our own (Llava) and by the general way (Idefics3), which imports the library in the
template. Writes the memory of the template and of a fork after a job, and the time until the first prompt and a later
one, in turns in one run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil
from PIL import Image

from penstock.intake.media import LocalMedia
from penstock.models import Model
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Work
from tests.support.hub import a_model
from tests.support.image_text_types import write_kind
from tests.support.multimodal import a_llava

MIB = 2**20


def main() -> None:
    """Measure both ways, each with a pool of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Image.new("RGB", (640, 480), "red").save(folder / "image.png")
        made = {"family": a_llava(folder / "llava"), "general": write_kind("idefics3", folder / "idefics3")}
        for way, directory in made.items():
            measure(way, a_model(directory, processor="image-text-to-text"), folder)


def measure(way: str, model: Model, folder: Path) -> None:
    """Write the figures of one way."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    media = {"media://image": LocalMedia(folder / "image.png")}
    with closing(IOPool(1, ForkOptions(4096 * MIB))) as pool:
        times = []
        for number in range(4):
            work = Work(model, {"images": ["media://image"], "prompt": "?"}, media, folder / f"{way}-{number}")
            work.folder.mkdir()
            begun = time.monotonic()
            with pool.open(work, check=lambda: None, say=lambda _: None) as session:
                next(session.prepared.prompts)
                times.append(time.monotonic() - begun)
        children = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
        memory = [one.memory_full_info() for one in children]
    told = ", ".join(f"{one.rss / MIB:.0f} ({one.uss / MIB:.0f})" for one in memory)
    sys.stdout.write(
        f"{way}: first prompt {times[0]:.2f} s, later {min(times[1:]):.3f} s; MiB of processes, rss (own): {told}\n"
    )


if __name__ == "__main__":
    main()
