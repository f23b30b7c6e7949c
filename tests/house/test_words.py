"""Docstrings and field comments begin with a verb or a noun, never with a question word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "api", "workers", "processors", "storage", "tests", "docs", "benchmarks", "examples")
BANNED = re.compile(r"(What|Whatever|Whether|Who|Whom|Whose|How|Where|When|Which|Why|Of|That|Those|Said|Told)\b")
COMMENT = re.compile(r"#: " + BANNED.pattern)


def sources(folder: str) -> Iterator[Path]:
    """Yield the Python files of a folder, each once: the links in `src/penstock` are not followed."""
    links = [link for link in (ROOT / "src" / "penstock").iterdir() if link.is_symlink()]
    for path in sorted((ROOT / folder).rglob("*.py")):
        if not any(link in path.parents for link in links) and "node_modules" not in path.parts:
            yield path


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield getattr(node, "lineno", 1), text


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_or_field_comment_begins_with_a_question_word(folder: str) -> None:
    found = []
    for path in sources(folder):
        source = path.read_text()
        where = path.relative_to(ROOT)
        found += [f"{where}:{line}: {text[:60]}" for line, text in docstrings(ast.parse(source)) if BANNED.match(text)]
        lines = enumerate(source.splitlines(), 1)
        found += [f"{where}:{number}: {line.strip()[:60]}" for number, line in lines if COMMENT.search(line)]

    assert not found, "\n".join(["begin these with a verb or a noun:", *found])


def test_the_rule_finds_what_it_is_for() -> None:
    assert BANNED.match("What a torch network is to its runner.")
    assert not BANNED.match("Whatnot is a noun.")
    assert COMMENT.search("    #" + ": Of one tenant.")
    assert [text for _, text in docstrings(ast.parse('"""One."""\ndef f():\n    """Two."""\n'))] == ["One.", "Two."]
