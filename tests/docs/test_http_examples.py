"""The HTTP reference: jobs first, and a request by curl for each operation whose body fits the operation."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import jsonschema

from docs.generator.http_api import operations

ROOT = Path(__file__).parents[2]
PAGE = operations()
DOCUMENT = json.loads((ROOT / "docs" / "openapi.json").read_text())
VARIABLE = re.compile(r"\$([A-Z_]+)")


def test_jobs_come_first_and_each_operation_has_an_example() -> None:
    assert PAGE.startswith("## Jobs\n")
    for section in re.split(r"^### ", PAGE, flags=re.M)[1:]:
        assert section.count("```sh\ncurl") == 1, section.splitlines()[0]


def test_each_example_is_a_request_that_fits_its_operation() -> None:
    seen = 0
    for path, verbs in DOCUMENT["paths"].items():
        for verb, operation in verbs.items():
            section = re.search(rf"^### .*#{operation['operationId']} }}$(.*?)(?=^### |\Z)", PAGE, re.M | re.S)
            assert section is not None
            words = shlex.split(re.search(r"```sh\n(.*?)```", section[1], re.S)[1].replace("\\\n", " "))  # type: ignore[index]
            url = next(word for word in words if word.startswith("$PENSTOCK_URL"))
            assert re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), url.removeprefix("$PENSTOCK_URL").partition("?")[0])
            assert ("-X" in words) == (verb != "get")
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                seen += 1
                body = json.loads(words[words.index("-d") + 1])
                schema = {**content["application/json"]["schema"], "components": DOCUMENT["components"]}
                jsonschema.validate(body, schema)
    assert seen > 8


def test_no_page_names_an_extra_that_a_checkout_cannot_install() -> None:
    for page in [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src/penstock/catalogue/ready").glob("*.toml"),
    ]:
        if "decisions" not in page.parts:
            wrong = re.findall(r"pip install '?penstock\[[a-z,]+\]'?(?! @ file)", page.read_text())
            assert not wrong, (page, wrong)


def test_git_ignores_what_the_commands_of_the_readme_write() -> None:
    written = ["scene.tif", "result/classes.tif", "requests.jsonl", "penstock.toml", "penstock-data/secret"]
    done = subprocess.run(["git", "check-ignore", *written], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == written


def test_the_home_page_has_a_picture_code_and_the_three_ways_in() -> None:
    home = (ROOT / "docs" / "index.md").read_text()
    assert "](images/result.webp)" in home
    for code in ("penstock submit csmask scene.tif", 'penstock.run("csmask", scene="scene.tif")', "curl http"):
        assert code in home
