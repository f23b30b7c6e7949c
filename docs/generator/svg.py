"""SVG elements of the figures. Lengths are in units of the view box."""

from __future__ import annotations

from html import escape

FONT = "system-ui, sans-serif"
INK, PALE, BLUE, ORANGE, GREEN, GREY = "#1f2933", "#f5f7fa", "#2f6f9f", "#c8661b", "#3c7d4e", "#9aa5b1"


def drawing(width: int, height: int, title: str, *marks: str) -> str:
    """Return a complete SVG drawing on a light background, readable on dark pages too."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-family="{FONT}" '
        f'font-size="14" fill="{INK}"><title>{escape(title)}</title>'
    )
    arrow = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>'
    )
    return "\n".join([head, arrow, box(0, 0, width, height, fill="#ffffff", line="none", round_=8), *marks, "</svg>\n"])


def box(
    x: float, y: float, width: float, height: float, *, fill: str = "none", line: str = INK, round_: float = 0,
    thick: float = 1, dashed: bool = False, opacity: float = 1,
) -> str:  # fmt: skip
    """Return a rectangle."""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_:g}" fill="{fill}" '
        f'fill-opacity="{opacity:g}" stroke="{line}" stroke-width="{thick:g}"{dashes}/>'
    )


def text(x: float, y: float, words: str, *, at: str = "middle", colour: str = INK, size: float = 14) -> str:
    """Return a line of text; `at` is its anchor at x: `start`, `middle` or `end`."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{at}" fill="{colour}" font-size="{size:g}">{escape(words)}</text>'


def path(d: str, *, colour: str = INK, tip: bool = False, thick: float = 1.4) -> str:
    """Return a line along an SVG path, with an arrowhead at its end if `tip`."""
    end = ' marker-end="url(#tip)"' if tip else ""
    return f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="{thick:g}"{end}/>'
