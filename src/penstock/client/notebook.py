"""Jobs and results as HTML for notebooks. All texts are escaped, and only web links are links."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from penstock.media_types import essence

if TYPE_CHECKING:
    from penstock.client.answers import Artifact, Batch, Job

_PICTURES = frozenset({"image/png", "image/jpeg", "image/webp"})
_COLOURS = {"succeeded": "#1a7f37", "failed": "#b42318", "canceled": "#6b7280", "expired": "#6b7280"}


def is_picture(artifact: Artifact) -> bool:
    """Return True for an artifact that a browser shows as a picture."""
    return essence(artifact.content_type) in _PICTURES


def card(job: Job, pictures: Sequence[str] | None = None, *, page: str = "", answer: Sequence[str] = ()) -> str:
    """Return a job as HTML: its state, progress, answer, pictures and links. Without `pictures` those of the service.

    `answer`: the lines of the answer; without them its text.
    """
    said = "\n".join(answer) or job.text
    shown = pictures if pictures is not None else [a.url for a in job.artifacts if is_picture(a) and _is_web(a.url)]
    parts = [
        f"<div><b>{escape(job.model)}</b> <code>{escape(job.id)}</code> {_state(job)}</div>",
        _progress(job),
        f"<div>{escape(f'{job.error.code}: {job.error.detail}')}</div>" if job.error else "",
        f"<pre>{escape(said)}</pre>" if said else "",
        *(f'<img src="{escape(picture)}" alt="" style="max-width: 24em; max-height: 24em">' for picture in shown),
        _links(job, page),
    ]
    return f'<div style="font-family: sans-serif">{"".join(parts)}</div>'


def batch_card(batch: Batch) -> str:
    """Return a batch as HTML: its state, how many requests have ended, and links to its files."""
    counts, total = batch.counts, max(1, batch.counts.total)
    words = f"{counts.over}/{counts.total} ended, {counts.succeeded} succeeded"
    parts = [
        f"<div><b>batch</b> <code>{escape(batch.id)}</code> {escape(batch.status.value)}</div>",
        f'<div><progress value="{counts.over}" max="{total}"></progress> {escape(words)}</div>',
        _list([(a.name, a.url) for a in batch.artifacts]),
    ]
    return f'<div style="font-family: sans-serif">{"".join(parts)}</div>'


def _state(job: Job) -> str:
    status = job.status.value
    word = f"{status}, {job.phase}" if job.phase and not job.over else status
    return f'<span style="color: {_COLOURS.get(status, "#1d4ed8")}">{escape(word)}</span>'


def _progress(job: Job) -> str:
    done, total = job.progress.done, job.progress.total
    if job.over:
        return ""
    if not total:
        place = f"place {job.queue_position} in the queue" if job.queue_position else ""
        return f"<div>{escape(job.waits_because or place)}</div>"
    left = f", about {job.eta_s:.0f} s left" if job.eta_s else ""
    words = f"{done}/{total} {job.progress.unit}{left}"
    return f'<div><progress value="{int(done)}" max="{int(total)}"></progress> {escape(words)}</div>'


def _links(job: Job, page: str) -> str:
    return _list([("page", page), *((f"{a.name} ({a.size_bytes:,} bytes)", a.url) for a in job.artifacts)])


def _list(links: Sequence[tuple[str, str]]) -> str:
    found = [(name, url) for name, url in links if _is_web(url)]
    items = (f'<a href="{escape(url)}" rel="noopener">{escape(name)}</a>' for name, url in found)
    return f"<div>{' · '.join(items)}</div>" if found else ""


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))
