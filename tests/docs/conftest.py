"""The documentation's site, built once for all tests, and a shell for its pages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.support.doc_pages import Shell
from tests.support.doc_site import Site
from tests.support.hub import STORIES, a_segformer, a_vit

ROOT = Path(__file__).parents[2]


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build a site with warnings as errors, as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=250)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return the whole site."""
    out = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT / "mkdocs.yml", out)
    assert done.returncode == 0, done.stderr
    return Site(out)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Return a shell in a folder with the models and the picture that the pages speak of."""
    classifier, segmenter = a_vit(tmp_path / "my-classifier"), a_segformer(tmp_path / "my-segmenter")
    for folder in (classifier, segmenter):
        size = 32 if folder == classifier else 64
        kind = "ViTImageProcessor" if folder == classifier else "SegformerImageProcessor"
        (folder / "preprocessor_config.json").write_text(
            f'{{"image_processor_type": "{kind}", "size": {{"height": {size}, "width": {size}}}}}'
        )
    if STORIES.is_dir():
        (tmp_path / "stories260k").symlink_to(STORIES.resolve())
    Image.effect_noise((64, 48), 50).convert("RGB").save(tmp_path / "photo.jpg")
    shell = Shell(tmp_path)
    yield shell
    shell.close()
