"""Every module is in a layer of import-linter's contract, as ARCHITECTURE.md shows them, and no imports are circles."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules() -> Mapping[str, Path]:
    """Return the files of the package by module name."""
    found = {}
    for folder, _, names in os.walk(ROOT / "src" / "penstock", followlinks=True):
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            parts = path.relative_to(ROOT / "src").with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports, inside functions too; what type checkers alone import is left out."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                inner = (f"{module}.{name.name}" for name in names)
                yield from (name if name in known else module for name in inner)
            case ast.ImportFrom():
                raise AssertionError("relative imports are not counted")
            case _:
                yield from imports(node, known)


def test_every_module_is_in_a_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    known = modules()
    assert known.keys() >= named
    outside = [name for name in known if not any(f"{name}.".startswith(f"{layer}.") for layer in named)]
    assert outside == ["penstock"], "name each module, or a package above it, in the layers of pyproject.toml"


def test_the_page_on_architecture_shows_the_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    [shown] = re.findall(r"^cli -> [^`]+", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    assert " ".join(shown.split()) == " -> ".join(layers).replace("penstock.", "")


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    graph = {
        name: {one for one in imports(ast.parse(path.read_text()), known) if one in known and one != name}
        for name, path in known.items()
    }
    assert len(graph) > 400
    assert sum(map(len, graph.values())) > 1500
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(reversed(error.args[1]))) from None
