"""Environments of models: built once per machine by uv, shared by all models with equal locks.

FOLDER/locks/KEY.json       the lock of what a file or record asks for: its packages with hashes, and the interpreter
FOLDER/DIGEST/              the environment of a lock; `built.json` in it says that it is complete
FOLDER/uv/                  uv's cache, from which packages are hard-linked
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from packaging.requirements import InvalidRequirement, Requirement

from penstock.catalogue.script import Script
from penstock.config import default_model_cache
from penstock.errors import ConfigError, ModelUnavailable
from penstock.functions.confinement import environment
from penstock.models import Model

if TYPE_CHECKING:
    from penstock.config import Settings

#: Seconds that uv may take for one step.
_STEP_S = 3600
#: Last lines of a step that failed.
_LAST_LINES = 12
#: Folder of all environments inside the folder of fetched models.
_FOLDER = "environments"
_BUILT = "built.json"
#: Packages that Penstock's side of a record's model needs in its environment, by their modules. Functions need none.
OWN_NEEDS = {
    "jsonschema": "jsonschema>=4.23", "numpy": "numpy", "PIL": "pillow", "psutil": "psutil>=6",
    "pydantic": "pydantic>=2.12", "pydantic_settings": "pydantic-settings>=2.7",
    "pyseccomp": "pyseccomp>=0.1.2; sys_platform == 'linux'",
    "safetensors": "safetensors", "structlog": "structlog>=25.1",
}  # fmt: skip

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """An environment on this machine."""

    folder: Path
    size_bytes: int
    #: Time of its last use, in seconds since 1970.
    used_at: float
    #: Its packages, as `NAME==VERSION`.
    packages: Sequence[str]

    @property
    def broken(self) -> bool:
        """True if its interpreter is gone, for instance because the system's Python was replaced."""
        return not os.access(python_of(self.folder), os.X_OK)


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of one machine."""

    folder: Path
    #: uv's configuration (`uv.toml`), with indexes and the like; None: uv's own defaults.
    uv_config: Path | None = None
    #: Bytes beyond which environments are removed that were not used for longest.
    most_bytes: int = 50 << 30

    @classmethod
    def of(cls, settings: Settings) -> Environments:
        """Return the environments of a service's machine."""
        return cls(settings.model_cache_dir / _FOLDER, settings.uv_config, settings.environments_bytes)

    @classmethod
    def here(cls) -> Environments:
        """Return the environments in the folder that settings have by default."""
        return cls(default_model_cache() / _FOLDER)

    def find(self, script: Script) -> Path | None:
        """Return the interpreter of a file's environment; None if it is not built. Raises `ConfigError`.

        The environment is not removed while this process lives: a model whose process ends starts from it again.
        """
        if script.environment is not None:
            return _ready(script.environment)
        if not script.dependencies:
            return Path(sys.executable)
        lock = self._lock(script)
        if lock is None:
            return None
        folder = self.folder / _digest(lock)
        _hold(folder)
        return python_of(folder) if _is_whole(folder) else None

    def with_environment(self, model: Model, *, build: bool) -> Model:
        """Return a record with the interpreter of its environment; raise `ModelUnavailable` if there is none.

        With `build` it is built if it is not there. A record whose packages are all installed here needs none.
        """
        if model.environment is not None:
            try:
                python = _ready(Path(model.environment))
            except ConfigError as error:
                raise ModelUnavailable(f"model {model.name!r}: {error.detail}") from error
            _require_own_needs(model.name, python)
            return model.model_copy(update={"environment": str(python)})
        if all(map(_is_installed, model.dependencies)):
            return model.model_copy(update={"dependencies": ()})
        script = script_of(model)
        found = self.build(script) if build else self.find(script)
        if found is None:
            raise ModelUnavailable(f"the environment of model {model.name!r} is not built yet: `penstock models build`")
        return model.model_copy(update={"environment": str(found)})

    def build(self, script: Script) -> Path:
        """Return the interpreter of a file's environment, which is built if it is not there.

        Waits where another process builds it. Raises `ModelUnavailable` with uv's last lines.
        """
        if (found := self.find(script)) is not None:
            return found
        (self.folder / "locks").mkdir(parents=True, exist_ok=True)
        with _alone(self.folder / "locks" / f"{script.key}.flock"):
            lock = self._lock(script) or self._make_lock(script)
            folder = self.folder / _digest(lock)
            with _alone(self.folder / f"{folder.name}.flock"):
                if not _is_whole(folder):
                    self._make(folder, lock)
            _hold(folder)
        self.evict()
        return python_of(folder)

    def listed(self) -> list[Built]:
        """Return the environments that are built here, those used last first."""
        found = []
        for said in self.folder.glob(f"*/{_BUILT}"):
            with suppress(OSError, ValueError, KeyError):
                about = json.loads(said.read_text())
                found.append(Built(said.parent, about["bytes"], said.stat().st_mtime, about["packages"]))
        return sorted(found, key=lambda one: -one.used_at)

    def evict(self) -> list[Path]:
        """Remove environments beyond the bound that no process uses, the least recently used first; return them."""
        total, gone = 0, []
        for one in self.listed():
            total += one.size_bytes
            if total > self.most_bytes and _remove_unused(one.folder):
                gone.append(one.folder)
                total -= one.size_bytes
                log.info("environment.removed", folder=one.folder.name, bytes=one.size_bytes)
        if gone:
            self._uv("cache", "clean")  # it links to the files of the environments
        return gone

    def _lock(self, script: Script) -> dict[str, Any] | None:
        try:
            return dict(json.loads((self.folder / "locks" / f"{script.key}.json").read_text()))
        except (OSError, ValueError):
            return None

    def _make_lock(self, script: Script) -> dict[str, Any]:
        log.info("environment.locking", dependencies=list(script.dependencies))
        python = self._interpreter(script)
        with tempfile.TemporaryDirectory(prefix="lock-") as name:
            if script.lock:
                given, locked = Path(name, "script.py"), Path(name, "script.py.lock")
                given.write_text(_as_block(script))
                locked.write_text(script.lock)
                words = ["export", "--script", str(given), "--frozen", "--no-header", "--no-annotate"]
            else:
                given = Path(name, "requirements.in")
                given.write_text("\n".join(script.dependencies))
                words = ["pip", "compile", str(given), "--generate-hashes", "--no-header", "--no-annotate"]
            packages = self._uv(*words, "--python", python)
        lock = {"python": python, "packages": packages}
        _write(self.folder / "locks" / f"{script.key}.json", json.dumps(lock))
        return lock

    def _interpreter(self, script: Script) -> str:
        """Return the worker's own interpreter, or one on this machine that the file wants; uv fetches none."""
        own = os.path.realpath(sys.executable)
        if not script.requires_python:
            return own
        return self._uv("python", "find", "--system", "--no-project", script.requires_python).strip()

    def _make(self, folder: Path, lock: dict[str, Any]) -> None:
        log.info("environment.building", folder=folder.name)
        if (held := _HELD.pop(folder, None)) is not None:  # it was there and is broken
            os.close(held)
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=self.folder) as name:
            made, packages = Path(name, "made"), Path(name, "packages.txt")
            packages.write_text(lock["packages"])
            self._uv("venv", "--relocatable", "--no-project", "--python", lock["python"], str(made))
            # uv checks the hashes; packages of a folder or a repository have none in locks of `uv lock`.
            self._uv("pip", "sync", "--python", str(python_of(made)), str(packages))
            names = [line.split(" ")[0] for line in lock["packages"].splitlines() if line[:1].isalnum()]
            said = {"bytes": _bytes_of(made), "packages": names}
            (made / _BUILT).write_text(json.dumps(said))
            made.rename(folder)
        log.info("environment.built", folder=folder.name, **said)

    def _uv(self, *words: str) -> str:
        """Run uv and return what it prints. It sees no credentials of the service, and fetches no Python."""
        options = ["--no-python-downloads", "--cache-dir", str(self.folder / "uv"), "--no-progress", "--color", "never"]
        if self.uv_config is not None:
            options += ["--config-file", str(self.uv_config)]
        with tempfile.TemporaryDirectory(prefix="home-") as home:
            variables = {**environment(network=True), "HOME": home, "UV_LINK_MODE": "hardlink"}
            for name in ("VIRTUAL_ENV", "PYTHONPATH"):
                variables.pop(name, None)
            try:
                done = subprocess.run(
                    [_program(), *words, *options], capture_output=True, text=True, timeout=_STEP_S, check=False,
                    stdin=subprocess.DEVNULL, env=variables, cwd=home,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise ModelUnavailable(f"uv {words[0]} took more than {_STEP_S} s") from None
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
            raise ModelUnavailable(f"the environment could not be built: {said}")
        return done.stdout


def script_of(model: Model) -> Script:
    """Return what the environment of a record needs."""
    return Script((*model.dependencies, *OWN_NEEDS.values()))


def _is_installed(dependency: str) -> bool:
    """Return True if this environment has what a requirement asks for; never for one with an address or extras."""
    try:
        asked = Requirement(dependency)
        if asked.marker is not None and not asked.marker.evaluate():
            return True  # it is for other systems
        return not (asked.url or asked.extras) and asked.specifier.contains(version(asked.name), prereleases=True)
    except (InvalidRequirement, PackageNotFoundError):  # of the former, uv says what is wrong
        return False


#: Descriptors that keep environments from being removed, for the rest of this process's life.
_HELD: dict[Path, int] = {}


def _hold(folder: Path) -> None:
    """Keep an environment, if it is there, from being removed while this process lives; note the time of its use."""
    if folder not in _HELD:
        with suppress(OSError):
            os.utime(folder / _BUILT)
            _HELD[folder] = os.open(folder / _BUILT, os.O_RDONLY)
            fcntl.flock(_HELD[folder], fcntl.LOCK_SH)


def python_of(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"


def _ready(folder: Path) -> Path:
    python = python_of(folder) if folder.is_dir() else folder
    if not os.access(python, os.X_OK):
        raise ConfigError(f"there is no environment with `bin/python` at {folder}")
    return python


@cache
def _require_own_needs(name: str, python: Path) -> None:
    """Raise `ModelUnavailable` where an environment that is ready lacks what Penstock needs there."""
    asked = f"from importlib.util import find_spec; print(*(n for n in {list(OWN_NEEDS)} if find_spec(n) is None))"
    try:
        said = subprocess.run(
            [str(python), "-I", "-c", asked], capture_output=True, text=True, timeout=_STEP_S, check=True,
            stdin=subprocess.DEVNULL, env=environment(),
        ).stdout.split()  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise ModelUnavailable(f"model {name!r}: the interpreter {python} of its environment fails: {error}") from error
    if said:
        packages = " ".join(f"'{OWN_NEEDS[each].partition(';')[0]}'" for each in said)
        raise ModelUnavailable(
            f"model {name!r}: its environment lacks what Penstock needs there: `{python} -m pip install {packages}`"
        )


def digest_of(python: Path) -> str | None:
    """Return what tells the packages of an environment: the name of its lock, or a digest of what is installed there.

    None for an interpreter whose packages are not found beside it.
    """
    folder = python.parent.parent
    if (folder / _BUILT).exists():
        return folder.name
    names = sorted(path.name for path in folder.glob("lib/python3*/site-packages/*.dist-info"))
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else None


def _is_whole(folder: Path) -> bool:
    return (folder / _BUILT).exists() and os.access(python_of(folder), os.X_OK)


def _digest(lock: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(lock, sort_keys=True).encode()).hexdigest()[:20]


def _as_block(script: Script) -> str:
    said = [f"# dependencies = {json.dumps(list(script.dependencies))}"]
    if script.requires_python:
        said.append(f"# requires-python = {json.dumps(script.requires_python)}")
    return "\n".join(["# /// script", *said, "# ///", ""])


def _program() -> str:
    """Return uv's program, from its Python package or from the PATH; raise `ConfigError`."""
    if importlib.util.find_spec("uv") is not None:
        from uv import find_uv_bin

        return str(find_uv_bin())
    if found := shutil.which("uv"):
        return found
    raise ConfigError(
        "environments of models are built by uv, which is not installed: `pip install uv`, or name one that is ready: "
        '`environment = "PATH"` in the record, or in `[tool.penstock]` of the file\'s block `# /// script`'
    )


def _bytes_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def _write(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        file.write(text)
    Path(file.name).rename(path)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process of this machine at a time into the block."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_unused(folder: Path) -> bool:
    """Remove an environment unless a process uses it."""
    with suppress(OSError), (folder / _BUILT).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / _BUILT).unlink()
        shutil.rmtree(folder, ignore_errors=True)
        return True
    return False
