"""Subtitles of a transcript: SubRip and WebVTT (https://www.w3.org/TR/webvtt1/). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Segments = Iterable[Mapping[str, Any]]


def srt(segments: Segments) -> str:
    """Return segments (`start`, `end`, `text`) as SubRip."""
    rows = [
        f"{number}\n{_time(segment['start'], ',')} --> {_time(segment['end'], ',')}\n{_line(segment)}\n"
        for number, segment in enumerate(segments, start=1)
    ]
    return "\n".join(rows)


def vtt(segments: Segments) -> str:
    """Return segments (`start`, `end`, `text`) as WebVTT."""
    rows = [
        f"{_time(segment['start'], '.')} --> {_time(segment['end'], '.')}\n{_escaped(_line(segment))}\n"
        for segment in segments
    ]
    return "\n".join(["WEBVTT\n", *rows])


def _time(seconds: float, point: str) -> str:
    minutes, thousandths = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{thousandths // 1000:02}{point}{thousandths % 1000:03}"


def _line(segment: Mapping[str, Any]) -> str:
    # An arrow would begin another cue, an empty line would end this one.
    return " ".join(str(segment["text"]).split()).replace("-->", "->")


def _escaped(line: str) -> str:
    return line.replace("&", "&amp;").replace("<", "&lt;")
