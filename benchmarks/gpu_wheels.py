"""Wheels for a machine with a GPU: `python -m benchmarks.gpu_wheels FOLDER THERE`, called by `gpu_bundle.sh`.

Downloads what the extras need and the file THERE does not name, in the versions that are installed here, for the Python
and system of that machine, and strips the wheels: no tests, no type stubs, of botocore only what S3 needs, of csmask
only the network of six bands. The wheels are not compressed: their archive is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = "service,worker,transformers"
#: Further packages of the tests on that machine.
TESTS = ("pytest", "pytest-asyncio")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
#: Files of wheels that are left out, and botocore's descriptions of other services than S3.
_LEFT_OUT = re.compile(
    r"(^|/)tests?/|\.pyi$|/__pycache__/|^botocore/data/(?!s3/|[^/]+\.json)|^ukis_csmask/(?!model_6b)[^/]*\.onnx"
)
#: Packages that only other results than those of the benchmarks and tests need: polygons.
WITHOUT = {"pyogrio"}


def main(arguments: Sequence[str]) -> None:
    """Write the wheels."""
    folder, there = Path(arguments[0]), set(Path(arguments[1]).read_text(encoding="utf-8").split())
    extras = os.environ.get("EXTRAS", EXTRAS)
    names = sorted(set(needed([f"penstock[{extras}]", *TESTS])) - there - WITHOUT - {"penstock"})
    wanted = [f"{name}=={distribution(name).version}" for name in names]
    python = os.environ.get("PYTHON_THERE", "3.12")
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", python, *platforms]
    subprocess.run([sys.executable, "-m", "pip", *words, "-d", str(folder), *wanted], check=True)
    for wheel in folder.glob("*.whl"):
        strip(wheel)


def needed(requirements: Sequence[str]) -> Iterator[str]:
    """Yield the normal names of all packages that requirements need here, themselves included."""
    waiting, seen = list(requirements), set[str]()
    while waiting:
        one = Requirement(waiting.pop())
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if (key := f"{name}[{','.join(sorted(one.extras))}]") in seen:
            continue
        seen.add(key)
        try:
            further = distribution(name).requires or []
        except PackageNotFoundError:  # for another Python or system
            continue
        yield name
        for text in further:
            marker = Requirement(text).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *one.extras)):
                waiting.append(text)


def strip(wheel: Path) -> None:
    """Write a wheel anew without what does not run; its list of files is that of the rest."""
    made = wheel.with_suffix(".tmp")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            if info.is_dir() or _LEFT_OUT.search(info.filename):
                continue
            content = old.read(info)
            if info.filename.endswith(".dist-info/RECORD"):
                rows = content.decode().splitlines(keepends=True)
                content = "".join(row for row in rows if not _LEFT_OUT.search(row.partition(",")[0])).encode()
            new.writestr(info.filename, content)
    made.replace(wheel)


if __name__ == "__main__":
    main(sys.argv[1:])
