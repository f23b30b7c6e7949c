"""The size of the product: lines of code in all and in each module, and the modules of the kernel.

`python -m tests.house.test_size` prints the lines of each room.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("src", "api", "workers", "processors", "storage")
#: Written by commands from other modules, which are counted: `make client`.
GENERATED = ("src/penstock/client/synchronous",)
#: Lines of code, at most, without blank lines, comments and docstrings (decision 113): raise it for a new feature only.
#: Generated modules are left out.
MOST_LINES = 71_617
#: Lines of a module, at most, with everything in it.
MOST_LINES_OF_A_MODULE = 450
#: Modules directly in `src/penstock`, at most.
MOST_KERNEL_MODULES = 20

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> Iterator[Path]:
    """Yield the product's modules."""
    for room in ROOMS:
        yield from (path for path in (ROOT / room).rglob("*.py") if "node_modules" not in path.parts)


def written() -> Iterator[Path]:
    """Yield the modules that are not generated."""
    yield from (path for path in modules() if str(path.parent.relative_to(ROOT)) not in GENERATED)


def code_lines(path: Path) -> int:
    """Return the lines of a module that hold code."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in _NO_CODE]
    used = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return len(used - set(_docstring_lines(ast.parse(path.read_text(encoding="utf-8")))))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def test_the_product_stays_small() -> None:
    assert sum(map(code_lines, written())) <= MOST_LINES


def test_what_is_not_counted_says_that_it_is_generated() -> None:
    left = set(modules()) - set(written())
    assert left
    assert [path for path in left if "enerated from" not in path.read_text(encoding="utf-8").partition("\n")[0]] == []


def test_each_module_stays_readable() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {path: size for path, size in sizes.items() if size > MOST_LINES_OF_A_MODULE} == {}


def test_the_kernel_stays_small() -> None:
    kernel = [path.name for path in (ROOT / "src" / "penstock").glob("*.py") if path.name != "__init__.py"]
    assert len(kernel) <= MOST_KERNEL_MODULES, sorted(kernel)


if __name__ == "__main__":
    rooms: Counter[str] = Counter()
    for module in written():
        parts = module.relative_to(ROOT).parts
        rooms["/".join(parts[: 3 if parts[0] == "src" else 2])] += code_lines(module)
    for room, lines in sorted(rooms.items()):
        sys.stdout.write(f"{lines:7,}  {room}\n")
    sys.stdout.write(f"{sum(rooms.values()):7,}\n")
