"""The page with its files in an S3 store: uploads and maps by signed links, and the CORS rules that they need."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Response, expect

from tests.support.browser import tab, visit
from tests.support.ceph import Ceph
from tests.support.stack import Stack, running

pytestmark = [pytest.mark.slow, pytest.mark.breadth, pytest.mark.timeout(400)]
HOW_TO = Path(__file__).parents[2] / "docs" / "howto" / "look-at-results.md"
PART_BYTES = 5 << 20


@dataclass(frozen=True)
class Cloud:
    """A service whose files lie in a bucket of its own."""

    stack: Stack
    ceph: Ceph
    bucket: str
    variables: dict[str, str]

    @property
    def origin(self) -> str:
        """Return the store's origin."""
        return str(self.ceph.s3.endpoint_url)

    def allow_browsers(self) -> None:
        """Set the CORS rules of the how-to page, for this service's address."""
        rules = json.loads(re.findall(r"```json\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)[0])
        rules["CORSRules"][0]["AllowedOrigins"] = [self.stack.url]
        self.ceph.client("s3").put_bucket_cors(Bucket=self.bucket, CORSConfiguration=rules)

    def doctor(self) -> str:
        """Return the report of `penstock doctor`, with the service's settings."""
        variables = self.variables | {"PENSTOCK_URL": self.stack.url, "PENSTOCK_PUBLIC_URL": self.stack.url}
        command = [sys.executable, "-m", "penstock.cli", "doctor", "--data", str(self.stack.data)]
        done = subprocess.run(
            command, env=os.environ | variables | {"COLUMNS": "400"}, capture_output=True, text=True, timeout=240,
            check=False,
        )  # fmt: skip
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def cloud(ceph: Ceph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    assert ceph.s3.secret_access_key is not None
    bucket = ceph.bucket()
    variables = {
        "PENSTOCK_OBJECT_STORE": f"s3://{bucket}/some/prefix",
        "PENSTOCK_S3__ENDPOINT_URL": str(ceph.s3.endpoint_url),
        "PENSTOCK_S3__ACCESS_KEY_ID": str(ceph.s3.access_key_id),
        "PENSTOCK_S3__SECRET_ACCESS_KEY": ceph.s3.secret_access_key.get_secret_value(),
        "PENSTOCK_UPLOAD_PART_BYTES": str(PART_BYTES),
    }
    with running(tmp_path_factory.mktemp("cloud"), **variables) as stack:
        yield Cloud(stack, ceph, bucket, variables)


def test_without_cors_rules_the_page_and_the_doctor_name_them(cloud: Cloud, browser: Browser, tmp_path: Path) -> None:
    cloud.stack.cli("sample", str(tmp_path / "scene.tif"), "--size", "256")
    with tab(browser, cloud.stack.url, store=cloud.origin) as page:
        visit(page, "#/submit/csmask")
        page.get_by_label("choose a file").first.set_input_files(tmp_path / "scene.tif")
        expect(page.get_by_text("must allow this page's address (CORS)")).to_be_visible()
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
    report = cloud.doctor()
    assert f"the store does not let browsers read and write from {cloud.stack.url}" in report
    assert "CORS rules (docs/howto/look-at-results.md)" in report


def test_a_file_becomes_a_map_by_signed_links_to_the_store(cloud: Cloud, browser: Browser, tmp_path: Path) -> None:
    cloud.allow_browsers()
    assert f"browsers may read and write the store from {cloud.stack.url}" in cloud.doctor()
    cloud.stack.cli("sample", str(tmp_path / "scene.tif"), "--size", "512")
    ranges: list[tuple[str, int]] = []

    def note(response: Response) -> None:
        if response.url.startswith(cloud.origin) and response.request.method == "GET":
            ranges.append((urlsplit(response.url).path.rpartition("/")[2], response.status))

    with tab(browser, cloud.stack.url, store=cloud.origin) as page:
        page.on("response", note)
        visit(page, "#/submit/csmask")
        page.get_by_label("choose a file").first.set_input_files(tmp_path / "scene.tif")
        expect(page.get_by_text("scene.tif (1.8 MB) is uploaded.")).to_be_visible()
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.get_by_role("table", name="Classes")).to_contain_text("water", timeout=120_000)
        expect(page.locator(".map-view [role=alert]")).to_have_count(0)
        page.get_by_role("application").hover()
        expect(page.locator(".readout strong")).to_be_visible()
        link = page.get_by_role("link", name="classes.tif", exact=True)
        assert str(link.get_attribute("href")).startswith(cloud.origin)
        with page.expect_download() as saved:
            link.click()
        with cloud.stack.client() as client:
            client.download(client.job(page.url.rpartition("/")[2]), tmp_path / "out")
        assert saved.value.path().read_bytes() == (tmp_path / "out" / "classes.tif").read_bytes()
    assert {name for name, status in ranges if status == 206} >= {"classes.tif", "scene.tif"}


def test_a_large_file_goes_to_the_store_in_parts(cloud: Cloud, browser: Browser, tmp_path: Path) -> None:
    cloud.allow_browsers()
    file = tmp_path / "large.tif"
    file.write_bytes(np.random.default_rng(3).bytes(3 * PART_BYTES + (2 << 20)))
    with tab(browser, cloud.stack.url, store=cloud.origin) as page:
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.url) if request.method == "PUT" else None)
        visit(page, "#/submit/csmask")
        page.get_by_label("choose a file").first.set_input_files(file)
        expect(page.get_by_text("large.tif (17.8 MB) is uploaded.")).to_be_visible(timeout=60_000)
        assert len({url for url in sent if "partNumber=" in url}) == 4
        media = page.get_by_label("scene", exact=True).first.input_value()
    s3 = cloud.ceph.client("s3")
    (found,) = [
        row["Key"]
        for row in s3.list_objects_v2(Bucket=cloud.bucket, Prefix="some/prefix/")["Contents"]
        if row["Key"].endswith(media.removeprefix("media://"))
    ]
    assert s3.get_object(Bucket=cloud.bucket, Key=found)["Body"].read() == file.read_bytes()
