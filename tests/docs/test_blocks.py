"""Programs in the how-to pages are run; those that are not, use nothing but Python and Penstock."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest

from tests.support.doc_pages import PAGES, ROOT, blocks, imports

PAGE_NAMES = sorted(path.name for path in PAGES.glob("*.md"))
#: Folders with tests that run pages.
RUN_BY = ("docs", "helm", "terratorch", "vllm")


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_an_excerpt_that_is_not_run_uses_no_other_library(page: str) -> None:
    excerpts = [block.code for block in blocks(page) if block.language == "py"]
    used = {name for code in excerpts for name in imports(dedent(code))}
    assert used <= {"penstock", *sys.stdlib_module_names}


def test_each_page_with_a_program_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for name in RUN_BY for path in (ROOT / "tests" / name).glob("test_*.py"))
    programs = {page for page in PAGE_NAMES if any(block.language == "python" for block in blocks(page))}
    assert {page for page in programs if f'"{page}"' not in tests} == set()
