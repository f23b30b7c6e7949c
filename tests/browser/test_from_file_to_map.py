"""A submission as a person makes it: from a file to the map, with the classes' colours on the screen."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import rasterio
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect
from pyproj import Transformer

from tests.support.browser import tab, visit
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

pytestmark = pytest.mark.slow
Pixels = npt.NDArray[np.uint8]
#: Difference of a colour on the screen from the wanted one, per channel.
TOLERANCE = 3
#: Bytes of a part of an upload, and of a file with four parts.
PART_BYTES = 5 << 20
LARGE_BYTES = 3 * PART_BYTES + (2 << 20)
#: Colour of a quantity's lowest value.
LOWEST = "#440154"
#: Milliseconds in which the map shows what was asked for, on a busy machine.
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def open_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("open"), PENSTOCK_UPLOAD_PART_BYTES=str(PART_BYTES)) as stack:
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
        wait_for(lambda: share_of(picture(map_), water["colour"]) < before / 10, "the result is not swiped away")
        page.get_by_label("Swipe").fill("0")
        legend.get_by_label("water").uncheck()
        wait_for(lambda: share_of(picture(map_), water["colour"]) < before / 10, "the class is not hidden")


def test_a_series_has_the_map_of_each_date_in_its_colours_and_a_chart(
    open_stack: Stack, browser: Browser, tmp_path: Path
) -> None:
    open_stack.cli("sample", str(tmp_path / "lagoon.tif"), "--size", "256")
    with tab(browser, open_stack.url) as page, open_stack.client() as client:
        scene = client.upload(tmp_path / "lagoon.tif")
        dates = [{"scene": scene, "datetime": f"2020-01-{day}T07:00:00Z"} for day in (11, 27)]
        series = {"of": ["water"], "ignore": ["cloud"]}
        job = client.wait(client.submit("csmask", {"dates": dates, "series": series}).id)
        assert job.succeeded, job.error
        visit(page, f"#/job/{job.id}")
        legend = page.get_by_role("table", name="Classes")
        for name in ("01-2020-01-11-classes", "02-2020-01-27-classes", "extent"):
            page.get_by_label("Show").select_option(label=name)
            expect(legend).to_contain_text("water")
        chart = page.get_by_role("img", name="Area of each class by date, in km²")
        expect(chart.locator("canvas")).to_be_visible()
        expect(chart.locator(".u-legend")).to_contain_text("water")
        expect(page.get_by_role("table", name="series.csv")).to_contain_text("2020-01-27")
        box, above = chart.locator("canvas").bounding_box(), chart.bounding_box()
        assert box is not None
        assert above is not None
        assert box["width"] > above["width"] * 0.9
        page.screenshot(path=tmp_path / "series.png", full_page=True)


def test_the_uncertainty_is_an_option_of_the_form_and_a_layer_of_the_map(
    open_stack: Stack, browser: Browser, tmp_path: Path
) -> None:
    scene = tmp_path / "unsure.tif"
    open_stack.cli("sample", str(scene), "--size", "256")
    with tab(browser, open_stack.url) as page, open_stack.client() as client:
        visit(page, "#/submit/csmask")
        page.get_by_label("choose a file").first.set_input_files(scene)
        expect(page.get_by_text("unsure.tif (")).to_be_visible()
        page.get_by_text("More parameters").click()
        page.get_by_label("uncertainty", exact=True).select_option("flips")
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.get_by_role("table", name="Classes")).to_be_visible(timeout=WAIT_MS)
        found = client.job(page.url.rpartition("/")[2]).raw["output"]["json"]["uncertainty"]
        assert 0 < found["unstable_percent"] < 50
        page.get_by_label("Show").select_option(label="uncertainty")
        expect(page.locator(".legend")).to_contain_text("standard deviation of the probability of the class")
        page.get_by_label("Opacity").fill("100")
        page.wait_for_function(_painted(), arg=[*bytes.fromhex(LOWEST[1:])])
        page.screenshot(path=tmp_path / "uncertainty.png", full_page=True)


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


class Parts:
    """The parts that a page sends: how often each was sent, and those that are held on the way."""

    def __init__(self, page: Page, *, hold: int = 0, fail: int = 0) -> None:
        self.sent: Counter[int] = Counter()
        self.held: list[Route] = []
        self._hold, self._fail = hold, fail
        page.route(self._is_part, self._pass_on)

    def release(self) -> None:
        """Send the held parts, and hold no others."""
        self._hold = 0
        for route in self.held:
            route.continue_()

    @staticmethod
    def _is_part(url: str) -> bool:
        return "/v1/local/" in url and "part" in url

    def _pass_on(self, route: Route, request: Request) -> None:
        found = re.search(r"part[^=]*=(\d+)", request.url)
        assert found is not None, request.url
        number = int(found[1])
        if request.method != "OPTIONS":
            self.sent[number] += 1
        if number == self._fail and self.sent[number] < 3:
            route.fulfill(status=503) if self.sent[number] == 1 else route.abort("connectionreset")
        elif number == self._hold:
            self.held.append(route)
        else:
            route.continue_()


def large_file(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(np.random.default_rng(7).bytes(LARGE_BYTES))
    return path


def stored(stack: Stack, name: str) -> bytes:
    """Return the bytes of the one upload of this name."""
    (path,) = (stack.data / "objects").rglob(name)
    return path.read_bytes()


@pytest.mark.breadth
def test_a_large_file_goes_in_parts_and_a_lost_part_is_sent_again(
    open_stack: Stack, browser: Browser, tmp_path: Path
) -> None:
    file = large_file(tmp_path, "large.tif")
    with tab(browser, open_stack.url) as page:
        parts = Parts(page, hold=4, fail=2)
        visit(page, "#/submit/csmask")
        page.get_by_label("choose a file").first.set_input_files(file)
        bar = page.get_by_role("progressbar", name="Upload of scene")
        page.wait_for_function("part => document.querySelector('.drop progress').value > part", arg=0.85)
        expect(bar).to_be_visible()
        expect(page.get_by_role("button", name="Submit", exact=True)).to_be_disabled()
        parts.release()
        expect(page.get_by_text("large.tif (17.8 MB) is uploaded.")).to_be_visible()
        expect(bar).to_be_hidden()
        expect(page.get_by_role("button", name="Submit", exact=True)).to_be_enabled()
        assert parts.sent == {1: 1, 2: 3, 3: 1, 4: 1}
    assert stored(open_stack, "large.tif") == file.read_bytes()


@pytest.mark.breadth
def test_an_upload_that_was_stopped_continues_with_the_parts_that_lack(
    open_stack: Stack, browser: Browser, tmp_path: Path
) -> None:
    file = large_file(tmp_path, "stopped.tif")
    with tab(browser, open_stack.url) as page:
        parts = Parts(page, hold=3)
        visit(page, "#/submit/csmask")
        page.get_by_label("choose a file").first.set_input_files(file)
        page.wait_for_function("part => document.querySelector('.drop progress').value > part", arg=0.7)
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_text("The upload of stopped.tif was stopped.")).to_be_visible()
        expect(page.get_by_role("button", name="Submit", exact=True)).to_be_enabled()
        parts.release()
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_text("stopped.tif (17.8 MB) is uploaded.")).to_be_visible()
        assert parts.sent == {1: 1, 2: 1, 3: 2, 4: 1}
    assert stored(open_stack, "stopped.tif") == file.read_bytes()


@pytest.mark.breadth
def test_another_file_takes_the_place_of_one_on_the_way(open_stack: Stack, browser: Browser, tmp_path: Path) -> None:
    for name in ("first.tif", "second.tif"):
        (tmp_path / name).write_text(f"no scene: {name}")
    with tab(browser, open_stack.url) as page:
        held: list[Route] = []
        page.route(re.compile("/v1/local/.*first"), lambda route: held.append(route))
        visit(page, "#/submit/csmask")
        page.get_by_label("choose a file").first.set_input_files(tmp_path / "first.tif")
        expect(page.get_by_text("Uploading first.tif")).to_be_visible()
        page.get_by_label("choose a file").first.set_input_files(tmp_path / "second.tif")
        expect(page.get_by_text("second.tif (20 bytes) is uploaded.")).to_be_visible()
        expect(page.get_by_role("button", name="Submit", exact=True)).to_be_enabled()
        expect(page.get_by_label("scene", exact=True).first).to_have_value(re.compile("second.tif$"))


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
