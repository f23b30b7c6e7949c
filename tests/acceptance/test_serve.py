"""`penstock serve`: a file of functions becomes a service by one command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from penstock.client import Client
from penstock.processors.geo.sample import write_sample
from penstock.workers.engine.device_class import has_gpu
from tests.support.polling import wait_for
from tests.support.stack import free_port

pytestmark = pytest.mark.slow
THUMBS = '''
from typing import Annotated

import numpy as np
import penstock
from penstock import Classes, Image, Scene

@penstock.model
def thumbnail(image: Image, size: int = 128) -> Image:
    """Shrink an image."""
    return image.resize((size, size))

@penstock.model(gpu=True)
def on_gpu(text: str) -> str:
    return text

@penstock.model
def water(
    tile: Annotated[np.ndarray, Scene(["green", "nir"], halo_px=0)]
) -> Annotated[np.ndarray, Classes(["land", "water"])]:
    return tile[0] > tile[1]

@penstock.model
def words(text: str) -> dict[str, int]:
    return {"words": len(text.split())}
'''


def _has_all(log: Path) -> bool:
    """Return True if the log has the lines of each model that can run here."""
    return log.read_text().count("curl ") == (4 if has_gpu() else 3)


def test_a_file_becomes_a_service_by_one_command(tmp_path: Path) -> None:
    (tmp_path / "thumbs.py").write_text(THUMBS)
    Image.new("RGB", (40, 30), "red").save(tmp_path / "photo.png")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    port, log = free_port(), tmp_path / "serve.log"
    command = [sys.executable, "-m", "penstock.cli", "serve", "thumbs.py", "--port", str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: process.poll() is not None or _has_all(log), "no lines to paste", timeout_s=120)
        said = log.read_text()
        if not has_gpu():
            assert "on_gpu: On gpu\n  cannot run here: it needs a GPU" in said
        assert re.search(r"penstock submit thumbnail FILE --wait --url http://127\.0\.0\.1:\d+", said)
        with Client(f"http://127.0.0.1:{port}", patience_s=60) as client:
            job = client.wait(client.submit("words", {"text": "three short words"}).id)
            assert job.raw["output"]["json"] == {"words": 3}
            assert f"penstock submit water FILE --wait --url http://127.0.0.1:{port}" in said
            write_sample(tmp_path / "scene.tif", size_px=200)
            classes = client.run("water", scene=str(tmp_path / "scene.tif")).data["classes"]
            assert [one["name"] for one in classes] == ["land", "water"]
            small = client.run("thumbnail", image=str(tmp_path / "photo.png"), size=20)
            with Image.open(small["image.png"]) as image:
                assert image.size == (20, 20)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_a_changed_file_is_served_anew_once_it_can_be(tmp_path: Path) -> None:
    code = "import penstock\n\n@penstock.model\ndef said(text: str) -> str:\n    return 'old ' + text\n"
    file, log, port = tmp_path / "said.py", tmp_path / "serve.log", free_port()
    file.write_text(code)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    command = [sys.executable, "-m", "penstock.cli", "serve", "said.py", "--reload", "--port", str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: "curl" in log.read_text() or process.poll() is not None, "no lines to paste", timeout_s=120)
        with Client(f"http://127.0.0.1:{port}", patience_s=60) as client:
            assert client.run("said", text="x").text == "old x"
            file.write_text(f"{code}\ndef broken(:\n")
            wait_for(lambda: "waiting for a better file" in log.read_text(), "the edit was not refused", timeout_s=120)
            assert "SyntaxError" in log.read_text()
            assert client.run("said", text="y").text == "old y"
            file.write_text(code.replace("old", "renewed"))
            wait_for(lambda: log.read_text().count("curl ") == 2, "it was not started anew", timeout_s=180)
            assert client.run("said", text="z").text == "renewed z"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_a_file_that_cannot_be_served_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("import penstock\n\n@penstock.model\ndef f(a: set[int]) -> int:\n    return 1\n")
    command = [sys.executable, "-m", "penstock.cli", "serve", "wrong.py", "--port", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "wrong.py:3: f: `a: set[int]` cannot be served: write a list" in done.stdout + done.stderr
