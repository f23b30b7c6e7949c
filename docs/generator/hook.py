"""MkDocs hooks: add figures and repository pages, insert generated parts, and adapt links."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path

from docs.generator.comments import Undocumented  # noqa: E402
from docs.generator.pages import FIGURES, filled  # noqa: E402
from docs.generator.repository import PAGES, relinked  # noqa: E402

log = get_plugin_logger("generator")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the figures, and the pages from the top of the repository."""
    for name, figure in FIGURES.items():
        files.append(File.generated(config, name, content=figure()))
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Insert the generated parts of a page and adapt its links."""
    try:
        made = filled(markdown)
    except Undocumented as error:
        raise PluginError(str(error)) from error
    return relinked(made, page.file.src_uri, ROOT, log.warning)
