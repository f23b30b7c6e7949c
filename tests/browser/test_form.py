"""From a file or a text on the form to a readable answer, without a word of JSON."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Site
from tests.browser.test_views import image
from tests.support.browser import overflow_px, serious, tab, visit
from tests.support.made_jobs import of_processor

pytestmark = [pytest.mark.slow, pytest.mark.breadth]

#: Folder for screenshots to look at; none are taken without it.
SHOTS = os.environ.get("PENSTOCK_SHOTS")


@pytest.fixture(scope="module")
def kinds(site: Site) -> Site:
    """Return the site with models of shipped processors, whose jobs the tests run."""
    site.made.publish(*map(of_processor, ("image-classification", "text-embedding", "text-ranking")))
    return site


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def input_of(site: Site, page: Page) -> dict[str, object]:
    """Return the input of the job whose page is shown."""
    page.wait_for_function("() => location.hash.startsWith('#/job/')")
    with site.stack.client() as client:
        return dict(client.job(page.url.rpartition("/")[2]).raw["input"])


def test_images_are_dropped_and_their_labels_are_read(kinds: Site, browser: Browser, tmp_path: Path) -> None:
    cat, dog = tmp_path / "cat.png", tmp_path / "dog.png"
    cat.write_bytes(image("#b08050", (320, 240)))
    dog.write_bytes(image("#506070", (320, 240)))
    with tab(browser, kinds.url, key=kinds.all_key) as page:
        visit(page, "#/submit/image-classification")
        page.locator("input[type=file]").set_input_files([cat, dog])
        expect(page.get_by_text("is uploaded.")).to_have_count(2)
        panel = page.get_by_label("The same as commands")
        expect(panel).to_contain_text("penstock submit image-classification \\\n  'cat.png' \\\n  'dog.png'")
        expect(panel).to_contain_text('penstock.run("image-classification", {"images": ["cat.png", "dog.png"]}')
        expect(panel).to_contain_text("-F 'images=@cat.png' \\\n  -F 'images=@dog.png'")
        assert (serious(page), overflow_px(page)) == ([], 0)
        shot(page, "form-images")
        page.get_by_role("button", name="Submit", exact=True).click()
        given = input_of(kinds, page)["images"]
        assert isinstance(given, list)
        assert [each.rpartition("/")[2] for each in given] == ["cat.png", "dog.png"]
        labels = [{"id": 1, "label": "tabby cat", "score": 0.8125}, {"id": 2, "label": "dog", "score": 0.1}]
        data = {"images": [{"labels": labels}, {"labels": labels[::-1]}]}
        kinds.made.succeed(kinds.made.claim("image-classification"), data=data)
        result = page.get_by_role("region", name="Result")
        expect(result.get_by_role("listitem").first).to_have_text("tabby cat0.8125")
        shot(page, "result-labels")


def test_one_image_alone_is_no_list(kinds: Site, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(image("#b08050"))
    with tab(browser, kinds.url, key=kinds.all_key) as page:
        visit(page, "#/submit/image-classification")
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.get_by_label("images 1", exact=True)).to_be_focused()  # the browser asks for it
        page.locator("input[type=file]").set_input_files([tmp_path / "cat.png"])
        expect(page.get_by_text("is uploaded.")).to_be_visible()
        page.get_by_role("button", name="Add a reference").click()
        page.get_by_label("images 2", exact=True).fill("media://none/none.png")
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.get_by_role("alert").last).to_contain_text("/input/images/1")
        expect(page.get_by_label("images 2", exact=True)).to_be_focused()
        page.get_by_role("button", name="Remove images 2").click()
        page.get_by_role("button", name="Submit", exact=True).click()
        given = input_of(kinds, page)["images"]
        assert isinstance(given, str)
        assert given.endswith("/cat.png")
        kinds.made.succeed(kinds.made.claim("image-classification"), data={"images": [{"labels": []}]})


def test_texts_are_written_into_fields(kinds: Site, browser: Browser) -> None:
    with tab(browser, kinds.url, key=kinds.all_key) as page:
        visit(page, "#/submit/text-embedding")
        page.get_by_label("texts 1", exact=True).fill("A lagoon.")
        page.get_by_role("button", name="Add to texts").click()
        page.get_by_label("texts 2", exact=True).fill("A river.")
        page.get_by_role("button", name="Submit", exact=True).click()
        assert input_of(kinds, page) == {"texts": ["A lagoon.", "A river."]}
        kinds.made.succeed(kinds.made.claim("text-embedding"), data={"embeddings": [[0.5] * 8, [0.25] * 8]})
        expect(page.get_by_text("8 numbers: 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, …")).to_be_visible()


def test_a_job_runs_again_with_changes(kinds: Site, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(image("#b08050"))
    media = kinds.made.upload(tmp_path / "photo.png")
    given = {
        "image": media, "steps": 7, "style": "rich", "upright": False, "box": {"left": 1.5}, "stops": ["end", "fin"],
    }  # fmt: skip
    key = kinds.made.submit({"campaign": "autumn"}, **given)
    kinds.made.succeed(kinds.made.claim(), text="Hello.")
    with tab(browser, kinds.url, key=kinds.all_key) as page:
        visit(page, f"#/job/{key.id}")
        page.get_by_role("link", name="Run again with changes").click()
        expect(page.get_by_label("prompt")).to_have_value("hello")
        expect(page.get_by_label("stops 2")).to_have_value("fin")
        page.get_by_label("prompt").fill("goodbye")
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.locator("h1 .badge")).to_have_text("queued")
        assert page.url.rpartition("/")[2] != key.id
        assert input_of(kinds, page) == given | {"prompt": "goodbye"}
        expect(page.get_by_text("campaign=autumn")).to_be_visible()
        kinds.made.succeed(kinds.made.claim(), text="Bye.")


def test_an_unknown_job_is_named_and_a_known_one_found_in_both_places(site: Site, browser: Browser) -> None:
    key = site.made.submit({"case": "places"})
    site.made.succeed(site.made.claim(), text="It is here.")
    with tab(browser, site.url, key=site.read_key) as page:
        for place in (f"#/jobs/{uuid.uuid4()}", f"#/job/{uuid.uuid4()}", "#/job/nonsense", "#/jobs/non%2Fsense"):
            visit(page, place)
            expect(page.get_by_role("heading", name="No such job")).to_be_visible()
            expect(page.get_by_role("alert")).to_contain_text("This tenant has no job")
            visit(page, "#/jobs")
            expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
        visit(page, f"#/jobs/{key.id}")
        expect(page.get_by_text("It is here.")).to_be_visible()


def test_a_key_survives_a_reload_where_the_person_ticks_it(site: Site, browser: Browser) -> None:
    with tab(browser, site.url) as page:
        page.get_by_label("Key", exact=True).fill(site.all_key)
        page.get_by_label("Keep it when I reload the page").check()
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
        page.reload()
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
        assert page.evaluate("() => JSON.stringify(localStorage) + document.cookie") == "{}"
        page.get_by_role("button", name="Forget the key").click()
        expect(page.get_by_role("heading", name="API key")).to_be_visible()
        page.reload()
        expect(page.get_by_role("heading", name="API key")).to_be_visible()


def test_a_model_has_a_page_with_an_example_to_run(kinds: Site, browser: Browser) -> None:
    with tab(browser, kinds.url, key=kinds.all_key) as page:
        visit(page, "#/operate")
        page.get_by_role("table", name="Models").get_by_role("link", name="text-ranking").click()
        expect(page.get_by_role("heading", name="text-ranking")).to_be_visible()
        expect(page.get_by_role("table", name="Input")).to_contain_text("documentsyesone or a list of text")
        expect(page.get_by_label("The same as commands")).to_contain_text("penstock submit text-ranking")
        assert (serious(page), overflow_px(page)) == ([], 0)
        shot(page, "model")
        page.get_by_role("button", name="Run the example").click()
        given = input_of(kinds, page)
        assert given["queries"] == "Where is the lagoon?"
        kinds.made.succeed(kinds.made.claim("text-ranking"), data={"scores": [0.5]})


def test_the_page_makes_the_picture_of_an_example(kinds: Site, browser: Browser) -> None:
    entry = of_processor("image-classification")
    images = entry.input_schema["properties"]["images"] | {"x-suffixes": [".jpg", ".png"]}
    schema = {**entry.input_schema, "properties": {**entry.input_schema["properties"], "images": images}}
    kinds.made.publish(
        *map(of_processor, ("text-embedding", "text-ranking")),
        entry.model_copy(update={"name": "pictures", "input_schema": schema}),
    )
    with tab(browser, kinds.url, key=kinds.all_key) as page:
        visit(page, "#/model/pictures")
        page.get_by_role("button", name="Run the example").click()
        given = input_of(kinds, page)["images"]
        assert isinstance(given, str)
        assert given.endswith("/images.png")
        labels = [{"id": 1, "label": "cottage", "score": 0.7}]
        kinds.made.succeed(kinds.made.claim("pictures"), data={"images": [{"labels": labels}]})
        expect(page.get_by_role("region", name="Result").get_by_role("listitem")).to_have_text("cottage0.7")
        drawn = page.get_by_role("region", name="Result").get_by_role("img").first
        expect(drawn).to_have_js_property("naturalWidth", 640)
        shot(page, "result-example")


def test_an_endpoint_of_webhooks_is_made_on_the_page(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page:
        visit(page, "#/operate")
        card = page.locator("section").filter(has=page.get_by_role("heading", name="Webhooks"))
        card.get_by_text("New endpoint").click()
        card.get_by_label("URL of the receiver").fill("http://10.0.0.1/hooks")
        card.get_by_role("button", name="Create the endpoint").click()
        expect(card.locator(".problem")).to_be_visible()  # no public address
        card.get_by_label("URL of the receiver").fill(site.receiver.url)
        card.get_by_label("job.canceled").uncheck()
        card.get_by_role("button", name="Create the endpoint").click()
        expect(card.get_by_role("status").locator("pre")).to_contain_text("whsec_")
        row = card.get_by_role("table", name="Webhook endpoints").get_by_role("row").last
        expect(row).to_contain_text("job.succeeded, job.failed, job.expired")
        assert (serious(page), overflow_px(page)) == ([], 0)
        card.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(card).to_contain_text("There are no endpoints.")


def test_workers_have_the_name_of_their_host_and_their_process(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page, site.stack.client() as client:
        visit(page, "#/operate")
        found = client.workers()[0]
        workers = page.get_by_role("table", name="Workers")
        expect(workers).to_contain_text(f"{found.host} pid {found.raw['pid']}")
        assert Path(f"/proc/{found.raw['pid']}").is_dir()
        workers.get_by_role("link", name="Log").click()
        expect(page.get_by_role("heading", name="Log of a worker")).to_be_visible()
        expect(page.locator("pre.lines")).to_contain_text("worker.starting")
        assert (serious(page), overflow_px(page)) == ([], 0)
        shot(page, "worker-log")
    with tab(browser, site.url, key=site.read_key) as page:
        visit(page, f"#/worker/{found.id}")
        expect(page.get_by_role("heading", name="Not with this key")).to_be_visible()
