"""Names: a file of unit tests has that of its module, no two classes of a room have one, commands name modules."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("api", "workers", "processors", "storage", "src/penstock")
UNIT = ROOT / "tests" / "unit"
PACKAGE = ROOT / "src" / "penstock"

#: Files that test no single module, with the reason.
OTHERS = {
    "processors/language/test_prompt_embeddings.py": "a part of generation.py: test_generation.py is long enough",
    "workers/engine/test_answers.py": "answers of a batch's jobs in engine.py: test_engine.py is long enough",
    "workers/engine/test_engine_load.py": "fairness of engine.py, counted in batches: test_engine.py is long enough",
}


@pytest.mark.parametrize("path", sorted(UNIT.rglob("test_*.py")), ids=lambda path: str(path.relative_to(UNIT)))
def test_a_unit_test_carries_the_name_of_its_module(path: Path) -> None:
    place = path.relative_to(UNIT)
    # Benchmarks are no part of the package; what they compute purely is tested like a module of it.
    rooms = ROOT if place.parts[0] == "benchmarks" else PACKAGE
    module = rooms / place.parent / place.stem.removeprefix("test_")
    if str(place) in OTHERS:
        return
    assert module.with_suffix(".py").is_file() or (module / "__init__.py").is_file(), (
        f"there is no module {module.relative_to(rooms)}: rename {place}, or move it to tests/integration"
    )


def test_the_exceptions_are_files() -> None:
    assert [name for name in OTHERS if not (UNIT / name).is_file()] == []


def test_every_other_python_file_of_the_unit_tests_is_a_conftest() -> None:
    """Helpers lie in tests/support."""
    helpers = [path for path in UNIT.rglob("*.py") if not path.name.startswith("test_")]
    assert [path for path in helpers if path.name != "conftest.py"] == []


def test_commands_in_documents_name_modules() -> None:
    words = ["git", "ls-files", "*.md", "*.py"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    tracked = {name for name in listed if (ROOT / name).exists()}
    named = {
        (document, module)
        for document in tracked
        if document.endswith(".md")
        for module in re.findall(r"python3? -m ((?:benchmarks|tests)(?:\.\w+)*)", (ROOT / document).read_text("utf-8"))
    }
    assert len(named) > 5
    unknown = [
        (document, module)
        for document, module in sorted(named)
        if not {f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__main__.py"} & tracked
    ]
    assert unknown == []


def test_no_two_classes_of_a_room_have_the_same_name() -> None:
    """The processors of a kind, and the packages beside the kernel, are rooms of their own."""
    places = defaultdict(list)
    for top in ROOMS:
        for path in (ROOT / top).rglob("*.py"):
            inside = path.relative_to(ROOT / top).parts
            room = f"{top}/{inside[0]}" if top in ("processors", "src/penstock") and len(inside) > 1 else top
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    places[room, node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert {place: paths for place, paths in places.items() if len(paths) > 1} == {}
