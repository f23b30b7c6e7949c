"""The cost of a chat about an image before its network: `python -m benchmarks.multimodal_templates`.

Two models (LLaVA and Idefics3) and two tenants share a pool of IO processes. Writes the
time until each prompt, and the memory of each process: PSS, and its own.
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
    """Measure both models in one pool."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Image.new("RGB", (640, 480), "red").save(folder / "image.png")
        made = {"llava": a_llava(folder / "llava"), "idefics3": write_kind("idefics3", folder / "idefics3")}
        with closing(IOPool(4, ForkOptions(4096 * MIB))) as pool:
            for kind, directory in made.items():
                model = a_model(directory, processor="image-text-to-text").model_copy(update={"name": kind})
                begun = time.monotonic()
                problem = pool.entry(model).problem  # as when a worker starts
                say(f"{kind}: checked in {time.monotonic() - begun:.2f} s, problem {problem}")
                for tenant in ("one", "two"):
                    times = [prompted(pool, model, tenant, folder, number) for number in range(4)]
                    say(f"{kind}, tenant {tenant}: first prompt {times[0]:.2f} s, later {min(times[1:]):.3f} s")


def prompted(pool: IOPool, model: Model, tenant: str, folder: Path, number: int) -> float:
    """Return the seconds until the prompt of a job; write the memory of all processes during the last one."""
    media = {"media://image": LocalMedia(folder / "image.png")}
    own = folder / f"{model.name}-{tenant}-{number}"
    own.mkdir()
    asked = {"images": ["media://image"], "prompt": "?"}
    begun = time.monotonic()
    with pool.open(Work(model, asked, media, own, tenant=tenant), check=lambda: None, say=lambda _: None) as session:
        next(session.prepared.prompts)
        took_s = time.monotonic() - begun
        if number == 3:
            memory = [one.memory_full_info() for one in psutil.Process(pool.server.pid).children(recursive=True)]
            told = ", ".join(f"{one.pss / MIB:.0f} ({one.uss / MIB:.0f})" for one in memory)
            say(f"MiB of templates and IO processes, PSS (own): {told}")
        return took_s


def say(text: str) -> None:
    """Write a line."""
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
