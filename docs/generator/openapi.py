"""Write `docs/openapi.json`, so that a review shows each change of the API.

python -m docs.generator.openapi docs/openapi.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from penstock.api.app import create_app
from penstock.config import Settings
from penstock.storage.objects.opening import open_store
from penstock.storage.redis.records import AsyncJobStore


def _document() -> dict[str, Any]:
    """Return the description of an app that is never started and connects to no store."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data=Path(folder), access="keys", secret=SecretStr("of nobody"))
        jobs, objects = AsyncJobStore.open("redis://127.0.0.1:1"), open_store(settings.store_url, settings)
        return create_app(settings, jobs=jobs, objects=objects, send_hint=str).openapi()


def text() -> str:
    """Return the text of `docs/openapi.json`."""
    return json.dumps(_document(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
