"""Each view of the page on a real service: what it shows, what it does, and to whom."""

from __future__ import annotations

import io
import json
import time
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from penstock.jobs import Phase, Progress
from penstock.storage.redis import records, streaming
from tests.browser.conftest import Site
from tests.support.browser import overflow_px, serious, tab, visit
from tests.support.stack import scene

pytestmark = [pytest.mark.slow, pytest.mark.breadth]
MANY = 10_000
#: Seconds until a page of the long list is there.
QUICK_S = 5.0
NARROW = {"width": 360, "height": 740}


def image(colour: str, size: tuple[int, int] = (160, 120)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def middle(element: Locator) -> tuple[int, ...]:
    """Return the colour in the middle of an element on the screen."""
    shown = Image.open(io.BytesIO(element.screenshot())).convert("RGB")
    return tuple(map(int, np.asarray(shown)[shown.height // 2, shown.width // 2]))


def a_job(site: Site, **metadata: str) -> str:
    """Return the id of a job of the model `made` that succeeded with a text."""
    key = site.made.submit(metadata)
    site.made.succeed(site.made.claim(), text="It is done.")
    return key.id


def test_a_wrong_key_is_refused_and_a_right_one_opens_the_tab_alone(site: Site, browser: Browser) -> None:
    with tab(browser, site.url) as page:
        expect(page.get_by_role("heading", name="API key")).to_be_visible()
        page.get_by_label("Key").fill("penstock_wrong")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("alert")).to_contain_text("not valid")
        page.get_by_label("Key").fill(site.all_key)
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
        expect(page.locator("#who")).to_have_text("Tenant acme, key ops")
        kept = page.evaluate("() => JSON.stringify({ ...localStorage, ...sessionStorage }) + document.cookie")
        assert "penstock_" not in kept
        page.reload()
        expect(page.get_by_role("heading", name="API key")).to_be_visible()


def test_a_list_follows_jobs_from_their_submission_to_their_end(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page:
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
        key = site.made.submit({"case": "follow"})
        row = page.get_by_role("row").filter(has_text=key.id[-12:])
        expect(row).to_contain_text("queued")
        claim = site.made.claim()
        progress = Progress(done=30, total=120, unit="tiles")
        site.made.jobs.run(records.heartbeat(claim, Phase.INFERRING, progress))
        expect(row.get_by_role("progressbar")).to_have_attribute("value", "0.25")
        expect(row).to_contain_text("30 of 120 tiles")
        site.made.succeed(claim, text="done")
        expect(row).to_contain_text("succeeded")
        expect(row).to_contain_text("case=follow")


def test_a_service_that_does_not_answer_is_named_until_it_answers(site: Site, browser: Browser) -> None:
    job = a_job(site, case="lost")
    with tab(browser, site.url, key=site.read_key) as page:
        expect(page.get_by_role("link", name=job[-12:])).to_be_visible()
        visit(page, f"#/job/{job}")
        expect(page.get_by_text("It is done.")).to_be_visible()
        page.context.set_offline(True)
        visit(page, "#/jobs")
        expect(page.get_by_text("What you see may be old.")).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text("The service does not answer.")
        page.context.set_offline(False)
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("link", name=job[-12:])).to_be_visible()
        expect(page.get_by_text("What you see may be old.")).to_have_count(0)
        page.context.set_offline(True)
        visit(page, "#/operate")
        expect(page.get_by_role("alert")).to_contain_text("A part of this page did not arrive")


def test_filters_stand_in_the_address(site: Site, browser: Browser) -> None:
    wanted, other = a_job(site, case="filters", number="1"), a_job(site, case="filters", number="2")
    with tab(browser, site.url, key=site.read_key) as page:
        page.get_by_label("Metadata", exact=True).fill("number=1")
        page.get_by_label("Status").select_option("succeeded")
        expect(page.get_by_role("link", name=wanted[-12:])).to_be_visible()
        expect(page.get_by_role("link", name=other[-12:])).to_have_count(0)
        assert page.url.endswith("#/jobs?status=succeeded&metadata=number%3D1")
        page.get_by_role("button", name="Clear").click()
        expect(page.get_by_role("link", name=other[-12:])).to_be_visible()


def test_ten_thousand_jobs_stay_fast(site: Site, browser: Browser, record_property: pytest.RecordProperty) -> None:
    site.made.submit_many(MANY, {"case": "many"})
    with tab(browser, site.url, key=site.read_key) as page:
        began = time.monotonic()
        visit(page, "#/jobs?metadata=case%3Dmany")
        expect(page.locator("tbody tr")).to_have_count(50)
        first_s = time.monotonic() - began
        began = time.monotonic()
        for number in range(2, 6):
            page.get_by_role("button", name="Older").click()
            expect(page.get_by_text(f"Page {number}", exact=True)).to_be_visible()
        older_s = (time.monotonic() - began) / 4
        expect(page.locator("tbody tr")).to_have_count(50)
        page.get_by_role("button", name="Newer").click()
        expect(page.get_by_text("Page 4", exact=True)).to_be_visible()
    record_property(
        "figures", f"the page's list of {MANY:,} jobs: {first_s:.2f} s to the first page, {older_s:.2f} s to another"
    )
    assert max(first_s, older_s) < QUICK_S


def test_a_page_of_a_job_has_its_history_and_what_to_do(site: Site, browser: Browser, tmp_path: Path) -> None:
    text = tmp_path / "text.tif"
    text.write_text("no scene")
    with site.stack.client() as client:
        job = client.wait(client.submit("csmask", files={"scene": text}).id)
    with tab(browser, site.url, key=site.all_key) as page:
        visit(page, f"#/job/{job.id}")
        problem = page.get_by_role("group", name="Error")
        expect(problem).to_contain_text("media_unreadable")
        expect(problem).to_contain_text("What to do: Check the file")
        expect(page.locator(".timeline")).to_contain_text("Attempt 1: failed")
        expect(page.get_by_role("list", name="Events")).to_contain_text("job.failed")
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        expect(page.get_by_role("link", name=job.id)).to_be_visible()
        retry = page.url.rpartition("/")[2]
        expect(page.get_by_role("button", name="Delete")).to_be_visible()
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Keep it").click()
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
        expect(page.get_by_role("link", name=retry[-12:])).to_have_count(0)


def test_a_waiting_job_is_canceled_after_a_question(site: Site, browser: Browser) -> None:
    key = site.made.submit({"case": "cancel"})
    with tab(browser, site.url, key=site.all_key) as page:
        visit(page, f"#/job/{key.id}")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(page.locator("h1 .badge")).to_have_text("canceled")


def test_a_key_that_may_only_read_sees_no_buttons(site: Site, browser: Browser) -> None:
    job = a_job(site)
    with tab(browser, site.url, key=site.read_key) as page:
        expect(page.get_by_role("link", name="Submit")).to_have_count(0)
        visit(page, f"#/job/{job}")
        expect(page.get_by_text("It is done.")).to_be_visible()
        expect(page.get_by_role("button")).to_have_count(0)
        visit(page, "#/submit")
        expect(page.get_by_role("heading", name="Not with this key")).to_be_visible()
        visit(page, "#/operate")
        expect(page.get_by_text("lacks the scopes monitor, admin, webhooks")).to_be_visible()
        expect(page.get_by_role("heading", name="Queues")).to_have_count(0)
        expect(page.get_by_role("table", name="Models")).to_be_visible()
        expect(page.get_by_role("heading", name="Usage")).to_be_visible()
        expect(page.get_by_role("button")).to_have_count(0)


def test_a_tenant_sees_its_own_jobs_only(site: Site, browser: Browser) -> None:
    job = a_job(site)
    with tab(browser, site.url, key=site.other_key) as page:
        expect(page.get_by_text("There are no jobs yet.")).to_be_visible()
        visit(page, f"#/job/{job}")
        expect(page.get_by_role("alert")).to_be_visible()
        expect(page.get_by_text("It is done.")).to_have_count(0)


def test_a_form_comes_from_the_models_schema_and_shows_its_errors(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page:
        visit(page, "#/submit/made")
        page.get_by_label("prompt").fill("Once upon a time")
        page.get_by_text("More parameters").click()
        page.get_by_label("steps").fill("7")
        page.get_by_label("style").select_option("rich")
        page.get_by_label("upright").select_option("no")
        page.get_by_role("button", name="Add to stops").click()
        page.get_by_label("stops 1").fill("end")
        page.get_by_text("Metadata and priority").click()
        page.get_by_label("metadata", exact=True).fill("campaign=autumn")
        panel = page.get_by_label("The same as commands")
        expect(panel).to_contain_text('"upright": False')
        expect(panel).to_contain_text("--param 'steps=7'")
        page.get_by_label("image", exact=True).fill("media://none/none.png")
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.get_by_role("alert").last).to_contain_text("/input/image")
        page.get_by_label("image", exact=True).fill("")
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.locator("h1 .badge")).to_have_text("queued")
        with site.stack.client() as client:
            job = client.job(page.url.rpartition("/")[2])
        wanted = {"prompt": "Once upon a time", "steps": 7, "style": "rich", "upright": False, "stops": ["end"]}
        assert (dict(job.raw["input"]), dict(job.raw["metadata"])) == (wanted, {"campaign": "autumn"})
        site.made.succeed(site.made.claim(), text="The end.")
        expect(page.get_by_text("The end.")).to_be_visible()


def test_a_file_is_dropped_into_the_form(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page:
        visit(page, "#/submit/csmask")
        file = "new File(['no scene'], 'dropped.tif')"
        drop = f"() => {{ const data = new DataTransfer(); data.items.add({file}); return data; }}"
        page.locator(".drop").first.dispatch_event("drop", {"dataTransfer": page.evaluate_handle(drop)})
        expect(page.get_by_text("dropped.tif (8 bytes) is uploaded.")).to_be_visible()


def test_text_appears_while_it_is_generated(site: Site, browser: Browser) -> None:
    key = site.made.submit({"case": "text"})
    claim = site.made.claim()
    with tab(browser, site.url, key=site.read_key) as page:
        visit(page, f"#/job/{key.id}")
        site.made.jobs.run(streaming.stream_text(claim, "Once ", at=0))
        expect(page.get_by_label("Text so far")).to_have_text("Once ")
        site.made.jobs.run(streaming.stream_text(claim, "upon", at=5))
        expect(page.get_by_label("Text so far")).to_have_text("Once upon")
        site.made.succeed(claim, text="Once upon a time.")
        expect(page.locator(".text")).to_have_text("Once upon a time.")


def test_previews_of_unfinished_images_replace_each_other(site: Site, browser: Browser) -> None:
    key = site.made.submit({"case": "preview"})
    claim = site.made.claim()
    site.made.jobs.run(streaming.show_preview(claim, "image.png", "image/png", image("#ff0000", (64, 48))))
    with tab(browser, site.url, key=site.read_key) as page:
        visit(page, f"#/job/{key.id}")
        preview = page.get_by_role("img", name="Preview of image.png")
        expect(page.get_by_role("heading", name="Result so far")).to_be_visible()
        assert np.allclose(middle(preview), (255, 0, 0), atol=4)
        before = preview.get_attribute("src") or ""
        site.made.jobs.run(streaming.show_preview(claim, "image.png", "image/png", image("#00ff00", (64, 48))))
        site.made.jobs.run(streaming.show_preview(claim, "other.png", "image/png", image("#0000ff", (64, 48))))
        expect(preview).not_to_have_attribute("src", before)
        assert np.allclose(middle(preview), (0, 255, 0), atol=4)
        assert np.allclose(middle(page.get_by_role("img", name="Preview of other.png")), (0, 0, 255), atol=4)
        assert serious(page) == []
        site.made.succeed(claim, site.made.artifact(claim, "image.png", image("#00ff00"), "image/png"))
        expect(page.get_by_role("heading", name="Result", exact=True)).to_be_visible()
        expect(page.get_by_role("img", name="image.png", exact=True)).to_be_visible()
        expect(preview).to_have_count(0)


def test_the_focus_stays_while_a_job_runs(site: Site, browser: Browser) -> None:
    key = site.made.submit({"case": "focus"})
    claim = site.made.claim()
    with tab(browser, site.url, key=site.all_key) as page:
        visit(page, f"#/job/{key.id}")
        page.get_by_role("button", name="Cancel").focus()
        for done in (1, 2):
            site.made.jobs.run(records.heartbeat(claim, Phase.INFERRING, Progress(done=done, total=3, unit="tiles")))
            site.made.jobs.run(
                streaming.stream_text(claim, "x", at=done - 1)
            )  # progress alone may be a while between events
            expect(page.get_by_text(f"{done} of 3 tiles")).to_be_visible()
            expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        site.made.succeed(claim, text="done")


def test_webhooks_show_their_deliveries_and_send_them_again(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page:
        visit(page, "#/operate")
        card = page.locator("section").filter(has=page.get_by_role("heading", name="Webhooks"))
        expect(card).to_contain_text("penstock webhooks create URL")
        site.stack.cli("webhooks", "create", site.receiver.url, "--event", "job.succeeded")
        job = a_job(site, case="webhook")
        site.receiver.got.get(timeout=60)  # it says that it is gone
        visit(page, f"#/job/{job}")
        deliveries = page.get_by_role("table", name="Webhook deliveries")
        expect(deliveries).to_contain_text("410")
        expect(deliveries.locator(".badge")).to_have_text("failed")
        assert serious(page) == []

        visit(page, "#/operate")
        expect(card.get_by_role("table", name="Webhook endpoints")).to_contain_text("responded with status 410")
        dead = card.get_by_role("table", name="Webhook deliveries")
        expect(dead.locator(".badge")).to_have_text("failed")
        card.get_by_role("button", name="Enable").click()
        page.get_by_role("dialog").get_by_role("button", name="Enable").click()
        expect(card.get_by_role("button", name="Test")).to_be_visible()
        dead.get_by_role("button", name="Send again").click()
        expect(dead.locator(".badge")).to_have_text("delivered")
        card.get_by_role("button", name="Deliveries", exact=True).click()
        expect(card.get_by_role("heading", name=f"Deliveries to {site.receiver.url}")).to_be_focused()
        expect(dead.first.locator(".badge")).to_have_text("delivered")
        assert (serious(page), overflow_px(page)) == ([], 0)
        card.get_by_role("button", name="Test").click()
        expect(page.get_by_text("The state of the test's delivery: delivered.")).to_be_visible()
        card.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(card).to_contain_text("There are no endpoints.")


def test_long_names_fit_a_telephone(site: Site, browser: Browser, tmp_path: Path) -> None:
    name = "a-name-as-cameras-and-people-make-them-without-any-place-to-break-2026-11-24T10-11-12"
    (tmp_path / f"{name}.png").write_bytes(image("#336699"))
    key = site.made.submit({"campaign": name}, image=site.made.upload(tmp_path / f"{name}.png"))
    claim = site.made.claim()
    site.made.succeed(claim, site.made.artifact(claim, f"{name}.png", image("#ff0000"), "image/png"), text=name * 3)
    with tab(browser, site.url, key=site.all_key, viewport=NARROW) as page:
        row = page.get_by_role("row").filter(has_text=key.id[-12:])
        expect(row).to_be_visible()
        assert overflow_px(page) == 0
        box = row.bounding_box()
        assert box is not None
        assert box["height"] < 150, "a long value makes a row of the list tall"
        visit(page, f"#/job/{key.id}")
        expect(page.get_by_role("img", name=f"{name}.png")).to_be_visible()
        assert (serious(page), overflow_px(page)) == ([], 0)


def test_images_have_their_boxes_and_masks(site: Site, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(image("#336699"))
    key = site.made.submit({}, image=site.made.upload(tmp_path / "photo.png"))
    claim = site.made.claim()
    box = {"xmin": 20, "ymin": 30, "xmax": 100, "ymax": 90}
    found = {"width": 160, "height": 120, "objects": [{"label_id": 3, "label": "cat", "score": 0.93, "box": box}]}
    site.made.succeed(claim, site.made.artifact(claim, "mask.png", image("#ff0000"), "image/png"), data=found)
    with tab(browser, site.url, key=site.read_key) as page:
        visit(page, f"#/job/{key.id}")
        expect(page.get_by_role("table", name="Answer")).to_contain_text("3cat0.9320, 30, 100, 90")
        shown = page.locator(".overlay")
        page.wait_for_function(
            "() => [...document.querySelectorAll('.overlay img')].every((each) => each.naturalWidth)"
        )
        page.get_by_label("Opacity of the mask").fill("0")
        pixel = Image.open(io.BytesIO(shown.screenshot())).convert("RGB").getpixel((150, 10))
        assert np.allclose(pixel, (0x33, 0x66, 0x99), atol=4)
        page.get_by_label("Opacity of the mask").fill("100")
        pixel = Image.open(io.BytesIO(shown.screenshot())).convert("RGB").getpixel((150, 10))
        assert np.allclose(pixel, (255, 0, 0), atol=4)


def test_a_recording_plays_the_passage_that_was_chosen(site: Site, browser: Browser, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "talk.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(2 * 8000 * 4))
    key = site.made.submit({}, image=site.made.upload(tmp_path / "talk.wav"))
    passages = [
        {"id": 0, "start": 0.0, "end": 2.0, "text": "Go forward."},
        {"id": 1, "start": 2.5, "end": 4.0, "text": "Ten metres."},
    ]
    site.made.succeed(site.made.claim(), text="Go forward. Ten metres.", data={"segments": passages})
    with tab(browser, site.url, key=site.read_key) as page:
        visit(page, f"#/job/{key.id}")
        page.wait_for_function("() => document.querySelector('audio')?.duration > 3")
        page.get_by_role("button", name="Ten metres.").click()
        page.wait_for_function("() => document.querySelector('audio').currentTime >= 2.5")


def test_tables_and_other_results_have_their_viewers(site: Site, browser: Browser) -> None:
    table = site.made.submit({"case": "table"})
    claim = site.made.claim()
    rows = 'name,note\ngrado,"lagoon, water"\n' + "".join(f"row {n},x\n" for n in range(200))
    site.made.succeed(claim, site.made.artifact(claim, "rows.csv", rows.encode(), "text/csv"))
    map_of = site.made.submit({"case": "picture and table"})
    claim = site.made.claim()
    zones = "zone,water m2\nwest bank,250\n"
    files = [("preview.png", image("#336699"), "image/png"), ("zones.csv", zones.encode("utf-8-sig"), "text/csv")]
    site.made.succeed(claim, *(site.made.artifact(claim, *file) for file in files))
    other = site.made.submit({"case": "json"})
    site.made.succeed(site.made.claim(), data={"labels": [{"label": "cat", "score": 0.5}]})
    with tab(browser, site.url, key=site.read_key) as page:
        visit(page, f"#/job/{table.id}")
        expect(page.get_by_role("table", name="rows.csv")).to_contain_text("lagoon, water")
        expect(page.get_by_text("The first 100 rows.")).to_be_visible()
        visit(page, f"#/job/{map_of.id}")
        expect(page.get_by_role("table", name="zones.csv")).to_contain_text("west bank")
        expect(page.get_by_role("columnheader", name="zone", exact=True)).to_be_visible()
        expect(page.get_by_role("img", name="preview.png").first).to_be_visible()
        visit(page, f"#/job/{other.id}")
        expect(page.locator("section").filter(has_text="Result").locator("pre")).to_contain_text('"label": "cat"')


def test_an_answer_comes_first_in_the_form_that_its_model_declares(
    site: Site, browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "photo.png").write_bytes(image("#336699"))
    key = site.made.submit({}, image=site.made.upload(tmp_path / "photo.png"))
    labels = [{"id": 1, "label": "tabby cat", "score": 0.8125}, {"id": 2, "label": "dog", "score": 0.1}]
    data = {"images": [{"labels": labels}, {"labels": labels[:1]}], "embeddings": [[0.5] * 384]}
    site.made.succeed(site.made.claim(), data=data)
    with tab(browser, site.url, key=site.read_key) as page:
        visit(page, f"#/job/{key.id}")
        result = page.get_by_role("region", name="Result")
        expect(result.get_by_role("heading", name="image 2")).to_be_visible()
        expect(result.get_by_role("listitem").first).to_have_text("tabby cat0.8125")
        expect(result.locator("meter").first).to_have_js_property("value", 0.8125)
        expect(result.get_by_text("384 numbers: 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, …")).to_be_visible()
        expect(result.get_by_role("img", name="photo.png")).to_be_visible()
        above = result.locator("meter").first.bounding_box()
        below = result.get_by_role("img", name="photo.png").bounding_box()
        assert above is not None
        assert below is not None
        assert above["y"] < below["y"], "the input is shown before the answer"
        assert (serious(page), overflow_px(page)) == ([], 0)


def test_a_scene_without_a_proj4_text_is_drawn_with_a_message(site: Site, browser: Browser, tmp_path: Path) -> None:
    site.stack.cli("sample", str(tmp_path / "s.tif"), "--size", "256")
    with site.stack.client() as client:
        made = client.wait(client.submit("csmask", files={"scene": tmp_path / "s.tif"}).id)
        client.download(made, tmp_path / "out")
    key = site.made.submit({"case": "plan"})
    claim = site.made.claim()
    data = json.loads((tmp_path / "out" / "stats.json").read_text())
    data["scene"]["crs"] = {"name": "a plan", "proj4": None}
    raster = site.made.artifact(claim, "classes.tif", (tmp_path / "out" / "classes.tif").read_bytes(), "image/tiff")
    site.made.succeed(claim, raster, data=data)
    with tab(browser, site.url, key=site.read_key) as page:
        visit(page, f"#/job/{key.id}")
        expect(page.get_by_role("alert")).to_contain_text("a plan has no proj4 text")
        expect(page.get_by_role("table", name="Classes")).to_be_visible()
        page.get_by_role("application").hover()
        expect(page.locator(".readout")).to_contain_text("x, y")
        expect(page.locator(".readout")).not_to_contain_text("°")


def test_operators_see_queues_workers_models_and_dead_letters(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page:
        visit(page, "#/operate")
        queues = page.locator("section").filter(has=page.get_by_role("heading", name="Queues"))
        expect(queues).to_contain_text("Wanted workers")
        expect(queues.locator("canvas").first).to_be_visible()
        expect(page.get_by_role("table", name="Workers")).to_contain_text("cpu")
        expect(page.get_by_role("table", name="Models")).to_contain_text("csmask")
        expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
        expect(page.locator("section").filter(has=page.get_by_role("heading", name="Key and limits"))).to_contain_text(
            "100,000"
        )
        panel = page.locator(".queue").filter(has_text="default")
        panel.get_by_role("button", name="Pause").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(panel.locator("h3 .badge")).to_have_text("paused")
        panel.get_by_role("button", name="Resume").click()
        page.get_by_role("dialog").get_by_role("button", name="Resume").click()
        expect(panel.locator("h3 .badge")).to_have_text("open")


def test_a_job_is_opened_with_the_keyboard_alone(site: Site, browser: Browser) -> None:
    job = a_job(site, case="keyboard")
    with tab(browser, site.url) as page:
        expect(page.get_by_label("Key")).to_be_focused()
        page.keyboard.type(site.all_key)
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name=job[-12:])).to_be_visible()
        reached = _tab_to(page, job[-12:])
        assert reached["outline"] != "none"
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="made")).to_be_visible()
        _tab_to(page, "Delete")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_serious_findings_or_is_wider_than_a_telephone(site: Site, browser: Browser, scheme: str) -> None:
    job = a_job(site, case="axe")
    with site.stack.client() as client:
        with_map = client.wait(
            client.submit(
                "csmask", {"outputs": ["classes", "confidence", "stats", "polygons"]}, files={"scene": scene()}
            ).id
        )
    for window in ({"width": 1280, "height": 900}, NARROW):
        options = {"color_scheme": scheme, "reduced_motion": "reduce", "viewport": window}
        with tab(browser, site.url, **options) as page:
            expect(page.get_by_label("Key")).to_be_visible()
            assert (serious(page), overflow_px(page)) == ([], 0)
            page.get_by_label("Key").fill(site.all_key)
            page.get_by_role("button", name="Open").click()
            expect(page.get_by_role("link", name=job[-12:])).to_be_visible()
            assert (serious(page), overflow_px(page)) == ([], 0)
            places = {
                f"#/job/{job}": ".text", f"#/job/{with_map.id}": ".map canvas", "#/submit/made": "textarea",
                "#/submit/csmask": ".drop", "#/operate": ".queue canvas",
            }  # fmt: skip
            for place, sign in places.items():
                visit(page, place)
                expect(page.locator(sign).first).to_be_visible()
                for summary in page.locator("form > details > summary").all():
                    summary.click()
                assert (place, serious(page), overflow_px(page)) == (place, [], 0)
            moving = page.evaluate("() => document.getAnimations().length")
            assert moving == 0


def _tab_to(page: Page, text: str) -> dict[str, str]:
    """Press Tab until an element with this text has the focus; return its outline."""
    for _ in range(60):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "() => [document.activeElement.textContent, getComputedStyle(document.activeElement).outlineStyle]"
        )
        if found[0] == text:
            return {"outline": found[1]}
    raise AssertionError(f"{text} is not reached by Tab")
