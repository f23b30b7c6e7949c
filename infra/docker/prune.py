"""Remove from an environment what running needs not, and compile the rest: `python3 prune.py FOLDER`."""

from __future__ import annotations

import compileall
import py_compile
import shutil
import sys
from pathlib import Path

#: AWS services that Penstock talks to, and those in which boto3 finds credentials.
AWS_SERVICES = {"s3", "sqs", "sso", "sso-oidc", "signin", "sts"}
#: Tests of packages. torch's programs are tests, but for `torch_shm_manager` and `protoc`.
TESTS = ("**/tests", "torch/test", "torch/bin/*[Tt]est*", "torch/lib/*_test.so")
#: Headers, static libraries and programs to compile extensions with.
TOOLCHAIN = ("torch/include", "torch/share", "torch/bin/protoc*", "**/*.a")
#: Widths of letters in single terminals, which wcwidth does without: the shell of `celery amqp` alone asks for them.
TERMINALS = ("wcwidth/table_grapheme_overrides/_known_*.py",)


def prune(site: Path) -> None:
    """Remove tests, headers, static libraries, unused AWS services and terminals; compile the rest."""
    unused = [path for path in site.glob("botocore/data/*/") if path.is_dir() and path.name not in AWS_SERVICES]
    for path in [*unused, *(path for pattern in (*TESTS, *TOOLCHAIN, *TERMINALS) for path in site.glob(pattern))]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    # By hash and unchecked: times of files may change when an image is copied.
    compileall.compile_dir(site, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


if __name__ == "__main__":
    for packages in Path(sys.argv[1]).glob("lib/python3*/site-packages"):
        prune(packages)
