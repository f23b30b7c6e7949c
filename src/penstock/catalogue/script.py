"""A Python file's own words on its environment (PEP 723), and its models, read without running it."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

#: The block, as PEP 723 defines it.
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_BEGIN = re.compile(r"(?m)^# /// script\s*$")
#: The service's own package: the worker brings it into each environment.
_OURS = re.compile(r"penstock\b(?![-_.])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Script:
    """A file's words on its environment."""

    #: Requirements, without `penstock`; empty: the file runs in the worker's environment.
    dependencies: tuple[str, ...] = ()
    #: A specifier of Python versions, such as `>=3.12`.
    requires_python: str = ""
    #: Folder of an environment that is ready, from `[tool.penstock]`.
    environment: Path | None = None
    #: The lock of `uv lock --script FILE`, which lies beside the file as `FILE.lock`.
    lock: str = ""

    @property
    def has_environment(self) -> bool:
        """True if the file does not run in the worker's environment."""
        return bool(self.dependencies) or self.environment is not None

    @property
    def key(self) -> str:
        """The digest of all that chooses the packages."""
        said = json.dumps([sorted(self.dependencies), self.requires_python, self.lock])
        return hashlib.sha256(said.encode()).hexdigest()[:32]


def read_script(path: Path) -> Script:
    """Return what a file says of its environment; raise `ConfigError` with the file and what is wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        lock = path.with_name(f"{path.name}.lock")
        locked = lock.read_text(encoding="utf-8") if lock.exists() else ""
    except OSError as error:
        raise ConfigError(f"cannot read the models in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read the models in {path}: it is not UTF-8") from error
    text = text.replace("\r\n", "\n")
    blocks = [found for found in _BLOCK.finditer(text) if found["type"] == "script"]
    if not blocks and _BEGIN.search(text):
        raise ConfigError(
            f"{path}: the block `# /// script` has no end: begin its lines with `#`, and end it with `# ///`"
        )
    if not blocks:
        return Script()
    if len(blocks) > 1:
        raise ConfigError(f"{path} has several blocks `# /// script`: keep one")
    lines = blocks[0]["content"].splitlines()
    try:
        said = tomllib.loads("\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: the block `# /// script` is not TOML: {error}") from error
    return _script(path, said, locked)


def _script(path: Path, said: Mapping[str, Any], lock: str) -> Script:
    dependencies, python = said.get("dependencies", []), said.get("requires-python", "")
    ready = said.get("tool", {}).get("penstock", {}).get("environment")
    if not isinstance(dependencies, list) or not all(isinstance(one, str) for one in dependencies):
        raise ConfigError(f'{path}: `dependencies` is a list of texts: ["numpy>=2"]')
    if not isinstance(python, str) or not isinstance(ready, str | None):
        raise ConfigError(f"{path}: `requires-python` and `environment` are texts")
    if ready is not None:
        return Script(environment=path.parent.absolute() / Path(ready).expanduser())
    kept = tuple(one for one in dependencies if not _OURS.match(one.strip()))
    return Script(kept, python, None, lock if kept else "")


def names_of(path: Path) -> list[str]:
    """Return the names of a file's models, in its order, without running it; raise `ConfigError`.

    A name that is computed is not seen.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8-sig"), str(path))
    except SyntaxError as error:
        raise ConfigError(f"cannot read the models in {path}: {error.msg} ({path.name}:{error.lineno})") from error
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found += [_name(node.name, mark) for mark in node.decorator_list if _is_mark(mark)]
    return found


def _is_mark(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(called) in ("penstock.model", "model")


def _name(function: str, mark: ast.expr) -> str:
    given = {one.arg: one.value for one in mark.keywords} if isinstance(mark, ast.Call) else {}
    chosen = given.get("name")
    said = chosen.value if isinstance(chosen, ast.Constant) else None
    return said if isinstance(said, str) else function.strip("_").lower()
