"""The lines to paste that `penstock serve` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.cli.options import DEFAULT_URL
from penstock.cli.serve import check_names, lines_to_paste
from penstock.client.local_files import UsageProblem

MEDIA = {"type": "string", "format": "media"}
TEXT = {"type": "string"}
CALL = f"curl {DEFAULT_URL}/v1/jobs -H 'prefer: wait=30'"


@pytest.mark.parametrize(
    ("fields", "words", "curl"),
    [
        (
            {"text": TEXT},
            "TEXT",
            """-H 'content-type: application/json' -d '{"model": "m", "input": {"text": "TEXT"}}'""",
        ),
        (
            {"a": TEXT, "b": TEXT},
            "TEXT --b TEXT",
            """-H 'content-type: application/json' -d '{"model": "m", "input": {"a": "TEXT", "b": "TEXT"}}'""",
        ),
        (
            {"table": MEDIA, "by": TEXT, "top": {"type": "integer"}},
            "FILE --by TEXT --top 1",
            "-F model=m -F table=@FILE -F by=TEXT -F top=1",
        ),
        ({"images": {"type": "array", "items": MEDIA}}, "FILE", "-F model=m -F images=@FILE"),
    ],
)
def test_each_line_names_what_the_model_needs(fields: dict[str, Any], words: str, curl: str) -> None:
    submit, python, by_curl = lines_to_paste(
        DEFAULT_URL, "m", {"type": "object", "properties": fields, "required": list(fields)}
    )
    assert submit == f"penstock submit m {words} --wait"
    assert by_curl == f"{CALL} {curl}"
    compile(python, "line", "exec")
    assert python.startswith('from penstock.client import Client; print(Client("http://127.0.0.1:8080").run("m", ')


def test_a_model_that_needs_nothing_and_another_address_are_named() -> None:
    submit, python, _ = lines_to_paste(
        "http://127.0.0.1:81", "m", {"type": "object", "properties": {"a": TEXT}, "required": []}
    )
    assert submit == "penstock submit m --wait --url http://127.0.0.1:81"
    assert python == 'from penstock.client import Client; print(Client("http://127.0.0.1:81").run("m"))'


@pytest.mark.parametrize(
    ("bounds", "number"),
    [
        ({"minimum": 16, "maximum": 1024}, 16),
        ({"exclusiveMinimum": 5}, 6),
        ({"exclusiveMaximum": 0}, -1),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
    ],
)
def test_a_number_lies_within_its_bounds(bounds: dict[str, int], number: float) -> None:
    part = {"type": "number", **bounds}
    submit, _, _ = lines_to_paste(DEFAULT_URL, "m", {"type": "object", "properties": {"a": part}, "required": ["a"]})
    assert submit == f"penstock submit m --a {number} --wait"


def test_two_files_with_one_name_are_refused(tmp_path: Path) -> None:
    code = "import penstock\n@penstock.model\ndef f(a: int) -> int:\n    return a\n"
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(code)
    with pytest.raises(UsageProblem, match=r"a\.py and .*b\.py both have a model 'f': give one of them a `name`"):
        check_names([tmp_path / "a.py", tmp_path / "b.py"])
    (tmp_path / "b.py").write_text(code.replace("model\n", "model(name='g')\n"))
    check_names([tmp_path / "a.py", tmp_path / "b.py"])
