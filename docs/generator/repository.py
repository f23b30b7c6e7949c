"""Links between pages of the site and files of the repository, adapted so that they work on GitHub and on the site."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

#: Paths on the site of the repository's own pages.
PAGES: Mapping[str, str] = MappingProxyType(
    {
        "README.md": "project/readme.md",
        "ARCHITECTURE.md": "project/architecture.md",
        "CHANGELOG.md": "project/changelog.md",
        "CONTRIBUTING.md": "project/contributing.md",
        "SECURITY.md": "project/security.md",
    }
)
_SOURCES = MappingProxyType({page: source for source, page in PAGES.items()})
_CODE = re.compile(r"^(```.*?^```$|(?:    .*\n)+)", re.M | re.S)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")


def relinked(markdown: str, page: str, root: Path, complain: Callable[[str], None]) -> str:
    """Return a page with links to repository files replaced by links to pages of the site.

    A link to a file without a page becomes the file's path as text. `complain` is called for broken links.
    """

    def relink(found: re.Match[str]) -> str:
        if found[1] and not (root / posixpath.dirname(_source(page)) / found[3]).is_file():
            return found[0]  # an image that is drawn while the site is built
        return found[1] + _relinked(found[2], found[3], page, root, complain)

    parts = _CODE.split(markdown)
    return "".join(part if _CODE.match(part) else _LINK.sub(relink, part) for part in parts)


def _relinked(text: str, target: str, page: str, root: Path, complain: Callable[[str], None]) -> str:
    path, _, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", target):
        return f"[{text}]({target})"
    file = posixpath.normpath(posixpath.join(posixpath.dirname(_source(page)), path))
    if file.startswith("..") or not (root / file).exists():
        complain(f"{_source(page)} links to {target}, which does not exist")
        return text
    found = PAGES.get(file) or (file.removeprefix("docs/") if _is_on_the_site(file, root) else None)
    if found is None:
        return f"`{text}`" if text.strip("`") == file else f"{text} (`{file}`)"
    link = os.path.relpath(found, posixpath.dirname(page) or ".")
    return f"[{text}]({link}{'#' if anchor else ''}{anchor})"


def _source(page: str) -> str:
    return _SOURCES.get(page, f"docs/{page}")


def _is_on_the_site(file: str, root: Path) -> bool:
    outside = file.startswith("docs/decisions/") or file.endswith(".py")
    return file.startswith("docs/") and not outside and (root / file).is_file()
