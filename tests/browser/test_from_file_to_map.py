"""A submission as a person makes it: from a file to the map, with the classes' colours on the screen."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import rasterio
from PIL import Image
from playwright.sync_api import Browser, Locator, expect
from pyproj import Transformer

from tests.support.browser import tab
from tests.support.stack import Stack, running

pytestmark = pytest.mark.slow
Pixels = npt.NDArray[np.uint8]
#: Difference of a colour on the screen from the wanted one, per channel.
TOLERANCE = 3
#: Milliseconds in which the map shows what was asked for, on a busy machine.
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def open_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("open")) as stack:
        yield stack


def picture(element: Locator) -> Pixels:
    """Return the pixels of an element on the screen."""
    return np.asarray(Image.open(io.BytesIO(element.screenshot())).convert("RGB"))


def share_of(pixels: Pixels, colour: str) -> float:
    """Return the share of pixels that have a colour."""
    wanted = np.array(list(bytes.fromhex(colour[1:])))
    return float((np.abs(pixels.astype(int) - wanted).max(axis=2) <= TOLERANCE).mean())


def test_a_file_becomes_a_map_in_the_classes_colours(open_stack: Stack, browser: Browser, tmp_path: Path) -> None:
    scene = tmp_path / "lagoon.tif"
    open_stack.cli("sample", str(scene), "--size", "512")
    # The ground of the dark page has the colour of no class.
    with tab(browser, open_stack.url, color_scheme="dark") as page, open_stack.client() as client:
        page.get_by_role("link", name="Submit a job").click()
        page.get_by_label("choose a file").first.set_input_files(scene)
        expect(page.get_by_text("lagoon.tif (1.8 MB) is uploaded.")).to_be_visible()
        expect(page.get_by_label("The same as commands")).to_contain_text("penstock submit csmask \\\n  'lagoon.tif'")
        page.get_by_text("More parameters").click()
        page.get_by_label("polygons", exact=True).check()
        page.get_by_role("button", name="Submit", exact=True).click()
        legend = page.get_by_role("table", name="Classes")
        expect(legend).to_be_visible()
        job = client.job(page.url.rpartition("/")[2])
        stats = job.raw["output"]["json"]
        water = next(row for row in stats["classes"] if row["name"] == "water")
        expect(legend).to_contain_text(f"{water['area_m2'] / 1e6:.2f}".rstrip("0"))

        page.get_by_label("Opacity").fill("100")
        map_ = page.get_by_role("application")
        for row in stats["classes"]:
            if row["percent"] > 3:
                page.wait_for_function(_painted(), arg=[*bytes.fromhex(row["colour"][1:])])
        pixels = picture(map_)
        whole = sum(share_of(pixels, row["colour"]) for row in stats["classes"])
        for row in stats["classes"]:
            if row["percent"] > 3:
                assert share_of(pixels, row["colour"]) / whole == pytest.approx(row["percent"] / 100, abs=0.03)

        before = share_of(pixels, water["colour"])
        page.get_by_label("Swipe").fill("100")
        page.wait_for_timeout(300)
        assert share_of(picture(map_), water["colour"]) < before / 10
        page.get_by_label("Swipe").fill("0")
        legend.get_by_label("water").uncheck()
        page.wait_for_timeout(500)
        assert share_of(picture(map_), water["colour"]) < before / 10


@pytest.mark.breadth
def test_the_pointer_reads_the_value_of_its_pixel(open_stack: Stack, browser: Browser, tmp_path: Path) -> None:
    scene = tmp_path / "scene.tif"
    open_stack.cli("sample", str(scene), "--size", "256")
    with open_stack.client() as client:
        job = client.wait(client.submit("csmask", files={"scene": scene}).id)
        client.download(job, tmp_path / "out")
    names = {row["id"]: row["name"] for row in job.raw["output"]["json"]["classes"]}
    with tab(browser, f"{open_stack.url}") as page:
        page.evaluate("id => { location.hash = `#/job/${id}` }", job.id)
        readout = page.locator(".readout")
        box = page.get_by_role("application").bounding_box()
        assert box is not None
        with rasterio.open(tmp_path / "out" / "classes.tif") as dataset:
            classes = dataset.read(1)
            before, class_or_none = "", re.compile(f"({'|'.join([*names.values(), 'no data'])})$")
            for x, y in ((0.4, 0.3), (0.5, 0.5), (0.6, 0.7)):
                page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
                expect(readout).not_to_contain_text(before or "no pixel yet", timeout=WAIT_MS)
                expect(readout).to_have_text(class_or_none, timeout=WAIT_MS)  # it comes with the pixel's tile
                text = readout.inner_text()
                before = place = text.partition("(x, y ")[2].partition(")")[0]
                row, column = dataset.index(*(float(each) for each in place.split(", ")))
                near = {int(v) for v in classes[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2].ravel()}
                assert any(text.endswith(names.get(each, "no data")) for each in near), (text, near)
                lon, lat = Transformer.from_crs(dataset.crs, 4326, always_xy=True).transform(*dataset.xy(row, column))
                shown = [float(part.split("°")[0]) for part in text.split(", ")[:2]]
                assert shown == pytest.approx([lat, lon], abs=0.001)


def _painted() -> str:
    """Return a script that waits until the map has a colour somewhere."""
    return """async (colour) => {
      const canvas = document.querySelector(".result-layer canvas") ?? document.querySelector("canvas.result-layer");
      if (!canvas) return false;
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
      await new Promise(requestAnimationFrame);
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
      for (let at = 0; at < data.length; at += 4)
        if (data[at + 3] > 200 && colour.every((each, index) => Math.abs(data[at + index] - each) < 4)) return true;
      return false;
    }"""
