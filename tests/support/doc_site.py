"""A built site as its readers' browsers see it: pages, their anchors, what stands below each, and where links lead."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

#: Elements that load what they name, and the attribute that does.
_LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@dataclass
class Page(HTMLParser):
    """A page."""

    text: str
    #: Anchors, with the text that follows each one until the next.
    below: dict[str, str] = field(default_factory=dict)
    #: Targets of links.
    links: list[str] = field(default_factory=list)
    #: Files that the page loads.
    loads: list[str] = field(default_factory=list)
    _at: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self._at = given["id"]
            self.below.setdefault(self._at, "")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in _LOADS and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads += [given[_LOADS[tag]]] if given.get(_LOADS[tag]) else []

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":  # what follows is no more of the page's own
            self._at = ""

    def handle_data(self, data: str) -> None:
        if self._at:
            self.below[self._at] += data


@dataclass(frozen=True)
class Site:
    """All pages of a built site."""

    folder: Path

    @cache  # noqa: B019  (one site to a run of the tests)
    def page(self, name: str) -> Page:
        """Return the page that lies at a path."""
        return Page((self.folder / name).read_text(encoding="utf-8"))

    @property
    def pages(self) -> list[str]:
        """The paths of all pages."""
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*.html"))
