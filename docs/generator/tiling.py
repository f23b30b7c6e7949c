"""Figures of tiling, generated from real tiling plans."""

from __future__ import annotations

from docs.generator.svg import BLUE, GREEN, GREY, INK, ORANGE, PALE, box, drawing, path, text
from penstock.processors.geo.tiling.plan import Box, Tile, make_plan

#: Scene of 1000 x 620 px, tiled for a network with a receptive radius of 24 px. Its north-western corner is outside the
#: swath.
_HEIGHT, _WIDTH = 620, 1000
_SCALE, _LEFT, _TOP = 0.5, 30, 30
_EMPTY = Box(0, 0, 180, 230)


def halo_figure() -> str:
    """Return the figure of a scene with tiles: cores, one window with its halo, one strip, tiles without data."""
    plan = make_plan(
        _HEIGHT, _WIDTH, tile_px=180, halo_px=24, stride_px=8, pixel_bytes=24, strip_bytes=1 << 30
    )  # fmt: skip
    strips = list(plan.strips())
    tiles = [tile for strip in strips for tile in strip.tiles]
    chosen, second = strips[2].tiles[2], strips[1]
    row = Box(second.cells[0].top, 0, second.cells[0].bottom, _WIDTH)
    marks = [
        _rectangle(Box(0, 0, _HEIGHT, _WIDTH), fill=PALE), _rectangle(row, fill=GREEN, opacity=0.18),
        *(_core(tile) for tile in tiles),
        _rectangle(chosen.window, fill=ORANGE, opacity=0.18, line=ORANGE, dashed=True, thick=2),
        _rectangle(chosen.core, fill=BLUE, opacity=0.35, line=BLUE, thick=2),
        *_legend(),
    ]  # fmt: skip
    return drawing(780, 370, "A scene cut into tiles with a halo", *marks)


def hann_figure() -> str:
    """Return the figure of overlapping windows along a row of pixels, and their weights at each pixel."""
    from penstock.processors.geo.tiling.stitch import window_weights

    plan = make_plan(
        256, 640, tile_px=256, halo_px=0, stride_px=1, pixel_bytes=24, strip_bytes=1 << 30, overlap_px=128
    )  # fmt: skip
    cuts = plan.panels[0]
    colours = (BLUE, ORANGE, GREEN, GREY)
    marks: list[str] = []
    for number, (start, weights) in enumerate(window_weights(cuts).items()):
        colour = colours[number % len(colours)]
        points = " ".join(
            f"{_x(start + i):.1f},{220 - 120 * value:.1f}" for i, value in enumerate(weights) if i % 4 == 0
        )
        marks += [
            path(f"M{points}", colour=colour, thick=2.4),
            box(_x(start), 244 + 22 * number, 1.1 * len(weights), 16, fill=colour, line="none", opacity=0.6),
            text(_x(start) + 8, 257 + 22 * number, f"window {number + 1}", at="start", size=12),
        ]  # fmt: skip
    axis = [
        path(f"M{_x(0)} 220H{_x(plan.width)}"),
        text(_x(0) - 8, 224, "0", at="end"), text(_x(0) - 8, 105, "1", at="end"),
        text(_x(plan.width / 2), 60, "weight of each window at each pixel; the weights of all windows add up to 1"),
    ]  # fmt: skip
    return drawing(780, 340, "Windows that overlap by half, and their weights", *axis, *marks)


def _core(tile: Tile) -> str:
    core = tile.core
    if core.bottom <= _EMPTY.bottom and core.right <= _EMPTY.right:
        middle = (_LEFT + _SCALE * (core.left + core.right) / 2, _TOP + _SCALE * (core.top + core.bottom) / 2)
        return _rectangle(core, fill=GREY, opacity=0.5) + text(*middle, "no data", size=12)
    return _rectangle(core)


def _legend() -> list[str]:
    rows = (
        (BLUE, "core: the part whose output is used"), (ORANGE, "window: the core and its halo"),
        (GREEN, "strip: a row of tiles"), (GREY, "tile without data: never sent"),
    )  # fmt: skip
    return [
        box(552, 40 + 34 * number, 18, 18, fill=colour, line=INK, opacity=0.4)
        + text(578, 54 + 34 * number, words, at="start", size=13)
        for number, (colour, words) in enumerate(rows)
    ]


def _rectangle(
    at: Box, *, fill: str = "none", line: str = INK, opacity: float = 1, dashed: bool = False, thick: float = 1
) -> str:
    return box(
        _LEFT + _SCALE * at.left, _TOP + _SCALE * at.top, _SCALE * at.width, _SCALE * at.height, fill=fill, line=line,
        opacity=opacity, dashed=dashed, thick=thick,
    )  # fmt: skip


def _x(pixel: float) -> float:
    return 50 + 1.1 * pixel
