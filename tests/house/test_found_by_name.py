"""The modules that no file of tests is named after are listed, and the list only shrinks.

The tests of `storage/journal/manifests.py` lie in a file `test_manifests.py`, wherever below `tests`.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("modules_without_tests.txt")
#: Length of the list when it was begun: lower it when the list gets shorter.
MOST = 231


def modules() -> set[str]:
    """Return the paths of the package's modules, such as `storage/journal/manifests.py`."""
    package = ROOT / "src" / "penstock"
    return {
        str(Path(folder, name).relative_to(package))
        for folder, _, names in os.walk(package, followlinks=True)
        for name in names
        if name.endswith(".py") and name != "__init__.py"
    }


def test_only_listed_modules_have_no_test_of_their_name() -> None:
    named = {path.stem.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*.py")}
    without = {module for module in modules() if Path(module).stem not in named}
    listed = LIST.read_text(encoding="utf-8").splitlines()
    assert sorted(without - {*listed}) == [], "give these modules a file of tests with their name"
    assert sorted({*listed} - without) == [], f"these have tests now, or are gone: take them off {LIST.name}"
    assert listed == sorted(listed)
    assert len(listed) <= MOST, f"the list may only shrink: {len(listed)} modules, {MOST} before"
