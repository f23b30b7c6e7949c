"""Checks of a request's media before the job is created."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.errors import MediaNotFound, MediaTooLarge
from penstock.intake.media import upload_key
from penstock.intake.references import check_reference
from penstock.models import Limits, media_by_range
from penstock.storage.objects.opening import open_store
from tests.unit.intake.test_submissions import MODEL, SCENE

AREA = {"bbox": [0, 0, 1, 1]}


def test_a_file_beyond_the_limit_is_accepted_if_only_an_area_of_it_is_read(tmp_path: Path) -> None:
    settings = Settings()
    store = open_store(tmp_path.as_uri(), settings)
    (tmp_path / "scene.tif").write_bytes(b"x" * 1000)
    store.put_file(upload_key("acme", "u", "scene.tif"), tmp_path / "scene.tif", content_type="image/tiff")
    entry = MODEL.model_copy(update={"limits": Limits(max_bytes=999)})

    def check(request: dict[str, object], reference: str = SCENE) -> int | None:
        by_range = media_by_range(entry.input_schema, request)
        return check_reference(store, settings, "acme", entry, "/scene", reference, by_range=reference in by_range)

    with pytest.raises(MediaTooLarge, match="accepts 999 bytes"):
        check({"scene": SCENE})
    assert check({"scene": SCENE, "area": AREA}) == 1000
    assert check({"mosaic": {"scenes": [{"files": [{"media": SCENE}]}]}, "area": AREA}) == 1000
    with pytest.raises(MediaTooLarge):  # a sidecar is read whole
        check({"scene": "media://other/a.tif", "sidecar": SCENE, "area": AREA})
    with pytest.raises(MediaNotFound):
        check({"scene": "media://none/a.tif", "area": AREA}, "media://none/a.tif")
