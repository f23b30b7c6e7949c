"""The table of error codes, from the tree of errors and the API's table of statuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock import errors
from penstock.api.errors import status_of
from penstock.errors import PenstockError

#: Of the tree's branches: what a client sees of them, in the order of the page.
_BRANCHES: tuple[tuple[type[PenstockError], str], ...] = (
    (errors.RequestError, "The request was refused; there is no job"),
    (errors.InputError, "The job's data; a job that fails so is not tried again"),
    (errors.ServiceError, "The service's part"),
    (PenstockError, "A bug, or the operator's; clients do not meet them where the service runs as it should"),
)


@dataclass
class _Code:
    title: str
    statuses: list[int] = field(default_factory=list)
    retryable: bool = False


def tables() -> str:
    """Return a table for each branch of the tree, with every code once."""
    told: set[str] = set()
    return "\n".join(_table(branch, heading, told) for branch, heading in _BRANCHES)


def _table(branch: type[PenstockError], heading: str, told: set[str]) -> str:
    codes: dict[str, _Code] = {}
    for cls in _tree(branch):
        if cls.code not in told:
            code = codes.setdefault(cls.code, _Code((cls.__doc__ or "").strip()))
            code.retryable = cls.retryable
            code.statuses += [status for status in [status_of(cls())] if status not in code.statuses]
    told |= set(codes)
    rows = [_row(name, code) for name, code in sorted(codes.items())]
    head = [f"## {heading}", "", "| code | status | retryable | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows, ""])


def _row(name: str, code: _Code) -> str:
    statuses = ", ".join(map(str, code.statuses))
    return f'| <a id="{name}"></a>`{name}` | {statuses} | {"yes" if code.retryable else "no"} | {code.title} |'


def _tree(cls: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _tree(child)
