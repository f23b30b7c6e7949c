"""Hosts on the web from which a job may fetch its media: a worker at the limit of its fetches passes over such jobs.

The record has them since the submit, so that `claim.lua` need not read requests. Every text of the input that begins as
a web address counts, media or not: only the worker knows the model's schema, and a text that is no reference costs a
job nothing but its turn while its tenant's fetches are at their limit.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

#: Hosts of a job that are kept: a job of more hosts counts for the first ones.
MAX_HOSTS = 8

_WEB = re.compile(r"(?i)https?://(\[[0-9a-f:.]{2,45}\]|[^/?#\\@%:\s\x00-\x20\x7f]{1,253})")

#: The first characters of a web address, in any case: most texts are told apart by them.
_BEGINS = frozenset(map("".join, itertools.product(*zip("http", "HTTP", strict=True))))
#: Types of JSON values that hold others, and those that are looked at: an input may hold many numbers.
_HOLD = frozenset({dict, list})
_LOOKED_AT = _HOLD | {str}


@dataclass(frozen=True, slots=True)
class Full:
    """The limits that a worker's fetches have reached: it claims no job that would fetch beyond them."""

    #: True where the worker fetches for no further job.
    all: bool = False
    #: Tenants for which it fetches no more, and hosts from which it fetches no more.
    tenants: Collection[str] = ()
    hosts: Collection[str] = ()


#: No limit is reached.
NOT_FULL = Full()


def is_on_the_web(reference: str) -> bool:
    """Return True for a reference that only the guard can fetch."""
    return _WEB.match(reference) is not None


def _plain(host: str) -> str:
    """Return a host as its other spellings are written that lead to the same name: full stops, width, case."""
    return "".join(unicodedata.normalize("NFKC", host).split()).replace("\u3002", ".").lower().rstrip(".") or "."


def hosts_in(value: Mapping[str, Any]) -> str:
    """Return the hosts of all web addresses in a JSON object, each once, with spaces between them."""
    found: dict[str, None] = {}
    left = list(value.values())
    while left and len(found) < MAX_HOSTS:
        each = left.pop()
        if type(each) is str:
            if each[:4] in _BEGINS and (web := _WEB.match(each)) is not None:
                found[_plain(web[1])] = None
        elif type(each) in _HOLD:
            left += [inner for inner in (each.values() if type(each) is dict else each) if type(inner) in _LOOKED_AT]
    return " ".join(found)
