"""Records of shipped functions, run through the engine of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock

RECORD = """
[models.{name}]
function = "{function}"
source = "{source}"
revision = "1"
{more}
"""


@contextmanager
def serving(folder: Path, function: str, source: Path | str, *, more: str = "") -> Iterator[penstock.Engine]:
    """Give an engine with one model, `mine`."""
    catalogue = folder / "models.toml"
    catalogue.write_text(RECORD.format(name="mine", function=function, source=source, more=more))
    with penstock.Engine(catalogue=[catalogue]) as engine:
        yield engine
