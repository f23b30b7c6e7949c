"""The files that every IO process may read: Python, the installed packages, shared libraries and their data."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

#: Shared libraries, fonts, time zones, certificates and other data that packages of the system bring. Only these files
#: of /etc: the others may hold secrets.
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/nix/store", "/gnu/store", "/opt/homebrew",
    "/var/cache/fontconfig", "/etc/alternatives", "/etc/ca-certificates", "/etc/fonts", "/etc/group", "/etc/gnutls",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/localtime",
    "/etc/magic", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/pki/tls",
    "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/timezone",
)  # fmt: skip
#: Variables that name folders of libraries or of their data.
_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "GDAL_DATA", "PROJ_DATA", "PROJ_LIB")


def library_paths() -> tuple[Path, ...]:
    """Return the files and folders that processors and their libraries read, none of them inside of another.

    The folder from which the service was started is none of them, although Python looks for modules there.
    """
    named = [part for name in _VARIABLES for part in os.environ.get(name, "").split(os.pathsep) if part]
    bases = [f"{base}/{folder}" for base in _bases() for folder in ("lib", "lib64", "share", "etc/fonts", "DLLs")]
    searched = [path for path in sys.path if path and Path(path) != Path.cwd()]
    return outermost(map(Path, (*_SYSTEM, *bases, *named, *searched, *_loaded())))


def outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the existing paths without links, and without those inside of others."""
    folder: Callable[[Path], str] = cache(os.path.realpath)  # thousands of modules share their folders
    found: list[Path] = []
    for path in sorted({_unlinked(path, folder) for path in paths}):
        if not any(path.is_relative_to(outer) for outer in found[-1:]) and path.exists():
            found.append(path)
    return tuple(found)


def _unlinked(path: Path, folder: Callable[[Path], str]) -> Path:
    """Return the path without links; `folder` returns that of a folder."""
    made = Path(folder(path.parent), path.name)
    return Path(os.path.realpath(made)) if path.name in ("", "..") or made.is_symlink() else made


def sparing(paths: Iterable[Path], private: Iterable[Path]) -> tuple[Path, ...]:
    """Replace paths that contain a private folder by what lies in them beside it."""
    left = list(paths)
    for folder in private:
        secret = Path(os.path.realpath(folder))
        while containing := next((path for path in left if secret.is_relative_to(path)), None):
            left.remove(containing)
            if containing != secret:
                left += _entries(containing)
    return tuple(left)


def _entries(folder: Path) -> list[Path]:
    """Return what lies in a folder, without links: these may lead out of it."""
    try:
        return [entry for entry in folder.iterdir() if not entry.is_symlink()]
    except OSError:
        return []


def model_paths(source: str) -> tuple[Path, ...]:
    """Return the files and folders of a model's local source, with those that links in it name."""
    root = Path(source)
    if "://" in source or not root.exists():
        return ()
    return outermost([root, *_links(root)])


def _links(root: Path) -> list[Path]:
    """Return the symbolic links under a folder; a folder that cannot be read has none."""
    entries = (Path(folder) / name for folder, folders, files in os.walk(root) for name in (*folders, *files))
    return [path for path in entries if path.is_symlink()]


def _bases() -> set[str]:
    return {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}


def _loaded() -> list[str]:
    """Return the folders of imported packages and the files of imported modules: some are found in no search path."""
    found: list[str] = []
    for module in list(sys.modules.values()):
        folders = getattr(module, "__path__", None)
        try:
            found += list(folders) if folders else [getattr(module, "__file__", None) or ""]
        except Exception:  # a plugin's idea of a path  # noqa: S112
            continue
    return [path for path in found if isinstance(path, str) and path.startswith("/")]
