"""Tables of error codes, from the error tree and the API's table of HTTP statuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock import errors
from penstock.api.errors import status_of
from penstock.errors import PenstockError

#: Branches of the error tree and their headings, in page order.
_BRANCHES: tuple[tuple[type[PenstockError], str], ...] = (
    (errors.RequestError, "Rejected requests: no job was created"),
    (errors.InputError, "Errors of the input: the job fails and is not retried"),
    (errors.ServiceError, "Errors of the service"),
    (PenstockError, "Bugs and operator errors: not expected in a correctly configured service"),
)


@dataclass
class _Code:
    title: str
    statuses: list[int] = field(default_factory=list)
    retryable: bool = False


def tables() -> str:
    """Return one table for each branch of the tree; every code appears once."""
    listed: set[str] = set()
    return "\n".join(_table(branch, heading, listed) for branch, heading in _BRANCHES)


def _table(branch: type[PenstockError], heading: str, listed: set[str]) -> str:
    codes: dict[str, _Code] = {}
    for cls in _tree(branch):
        if cls.code not in listed:
            code = codes.setdefault(cls.code, _Code((cls.__doc__ or "").strip()))
            code.retryable = cls.retryable
            code.statuses += [status for status in [status_of(cls())] if status not in code.statuses]
    listed |= set(codes)
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
