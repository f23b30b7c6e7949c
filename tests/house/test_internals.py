"""Private names of other packages: none is read but those listed here, each in one module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_size import ROOT, modules

#: Module -> the private names of a library that only it reads. Each has a test that `make test-versions` runs on the
#: oldest and on the newest release.
ALLOWED: dict[str, frozenset[str]] = {
    # Rasterio lets errors of GDAL through whose base class it does not export (tests/geo/test_conformance.py).
    "processors/geo/read/gdal.py": frozenset({"rasterio._err"}),
    # Starlette's parser has no public way to the file of a part (tests/integration/test_forms.py).
    "api/forms.py": frozenset({"_current_part", "_files_to_close_on_error"}),
    # RapidOCR loads its networks at the first page, which would be a user's (tests/integration/test_pages.py).
    "workers/engine/onnx/ocr.py": frozenset({"_load_cls_model", "_load_det_model", "_load_rec_model"}),
}
#: Names with an underscore that the standard library documents.
_DOCUMENTED = frozenset({"_asdict", "_exit", "_fields", "_getframe", "_make", "_replace", "_value_"})
_OURS = frozenset({"penstock", "tests", "benchmarks"})
_READERS = frozenset({"getattr", "hasattr", "setattr", "delattr"})


def is_private(name: str) -> bool:
    """Return True for a name of one underscore."""
    return name.startswith("_") and not name.startswith("__")


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield private modules and names that a module imports from other packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            at = next((at for at, part in enumerate(rest) if is_private(part)), None)
            if at is not None and first not in _OURS and first not in sys.stdlib_module_names:
                yield ".".join((first, *rest[: at + 1]))


def read(tree: ast.Module) -> Iterator[str]:
    """Yield private names of attributes that a module reads, also by `getattr` and its like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            name: object = node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _READERS:
            name = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else None
        else:
            continue
        if isinstance(name, str) and is_private(name):
            yield name


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines: functions, classes, variables, fields and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def internals(trees: dict[str, ast.Module]) -> dict[str, frozenset[str]]:
    """Return by module the private names that it reads and that no module defines."""
    ours = {name for tree in trees.values() for name in defined(tree)} | _DOCUMENTED
    found = {path: frozenset((*imported(tree), *(set(read(tree)) - ours))) for path, tree in trees.items()}
    return {path: names for path, names in found.items() if names}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_no_module_reads_internals_of_a_library() -> None:
    assert internals({str(path.relative_to(ROOT)): parsed(path) for path in modules()}) == ALLOWED


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from rasterio._err import CPLE_BaseError", {"rasterio._err"}),
        ("import numpy._core.umath as umath", {"numpy._core"}),
        ("from torch import _C", {"torch._C"}),
        ("network._update_model_kwargs(1)", {"_update_model_kwargs"}),
        ("getattr(network, '_is_stateful', False)", {"_is_stateful"}),
        ("from penstock.api import _own; self._mine = 1; self._mine; value.__class__; row._asdict()", set()),
    ],
)
def test_the_rule_finds_what_it_is_for(source: str, names: set[str]) -> None:
    assert internals({"a.py": ast.parse(source)}).get("a.py", frozenset()) == names
