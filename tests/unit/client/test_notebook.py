"""Jobs as HTML: progress, pictures and links, all escaped."""

from __future__ import annotations

from typing import Any

from penstock.client.answers import Job
from penstock.client.decoding import read


def job(**fields: Any) -> Job:
    base = {"id": "j1", "model": "csmask", "status": "running", "created_at": "2026-01-01T00:00:00Z"}
    return read(Job, {**base, **fields})


def test_a_running_job_shows_its_phase_and_progress() -> None:
    progress = {"done": 3, "total": 12, "unit": "tiles"}
    shown = job(phase="inferring", progress=progress, eta_seconds=8.4)._repr_html_()
    assert '<progress value="3" max="12"></progress> 3/12 tiles, about 8 s left' in shown
    assert "running, inferring" in shown


def test_a_finished_job_shows_pictures_and_links() -> None:
    files = [
        {"name": "preview.png", "content_type": "image/png", "size_bytes": 1200, "sha256": "", "url": "http://s/p"}
    ]
    shown = job(status="succeeded", artifacts=files)._repr_html_()
    assert '<img src="http://s/p"' in shown
    assert '<a href="http://s/p" rel="noopener">preview.png (1,200 bytes)</a>' in shown
    assert "<progress" not in shown


def test_everything_is_escaped_and_only_web_links_are_links() -> None:
    evil = '<script>"&'
    file = {"name": evil, "content_type": "image/png", "size_bytes": 1, "sha256": "", "url": f"https://s/{evil}"}
    lure = {**file, "url": "javascript:alert(1)"}
    shown = job(
        status="failed", model=evil, id=evil, artifacts=[file, lure], output={"text": evil},
        error={"code": evil, "detail": evil},
    )._repr_html_()  # fmt: skip
    assert "<script" not in shown
    assert "javascript:" not in shown
    assert "https://s/&lt;script&gt;&quot;&amp;" in shown
