"""Which drop rule an object is of. Pure; said once for those who hear of objects, look at them and check the rules.

A place is a bucket and a full key. Folders are one bucket without a name, in which a key is the file's whole path, so
that rules on nested folders are compared like prefixes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.config import DropRule, Settings
from penstock.errors import ConfigError

#: The ends of an object's markers, and of the file with its parameters.
DONE, ERROR, SIDECAR = ".done.json", ".error.json", ".json"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object lies: `key` is that in its bucket, whatever part of it the rule's address names."""

    bucket: str
    key: str


def place(rule: DropRule, key: str) -> Place:
    """Return where a key of the rule's store lies."""
    parts = urlsplit(rule.bucket)
    if parts.scheme == "file":
        return Place("", f"{unquote(parts.path).rstrip('/')}/{key}")
    return Place(parts.netloc, f"{parts.path.strip('/')}/{key}".lstrip("/") if parts.path.strip("/") else key)


def listed_every_s(rule: DropRule, settings: Settings) -> float:
    """Return how often the rule's bucket is listed."""
    return settings.drop_poll_s if rule.events is None else settings.drop_list_s


def watched_folder(rule: DropRule) -> Path | None:
    """Return the folder in which a rule's files lie; None for a bucket."""
    if not rule.bucket.startswith("file:"):
        return None
    return Path(place(rule, rule.prefix).key.rpartition("/")[0] or "/")


def key_of(rule: DropRule, found: Place) -> str | None:
    """Return the key by which the rule's store knows an object; None for one that is elsewhere."""
    root = place(rule, "")
    if found.bucket != root.bucket or not found.key.startswith(root.key):
        return None
    return found.key.removeprefix(root.key)


def wanted(rule: DropRule, key: str) -> bool:
    """Return whether an object under this key is a scene of the rule, not a folder, sidecar, result or marker.

    Names that begin with `._` are what macOS writes beside a file on foreign disks.
    """
    return (
        key.startswith(rule.prefix)
        and _fits(rule, key)
        and not key.endswith(("/", DONE, ERROR))
        and not key.rpartition("/")[2].startswith("._")
        and not (key.endswith(SIDECAR) and _fits(rule, key.removesuffix(SIDECAR)))
        and not key.startswith(rule.output_prefix)
    )


def _fits(rule: DropRule, key: str) -> bool:
    return key.lower().endswith(tuple(suffix.lower() for suffix in rule.suffixes))


def owner(rules: Sequence[DropRule], found: Place) -> tuple[DropRule, str] | None:
    """Return the first rule that wants an object, and the key in its store; None for nobody's, and for any's output."""
    if any(_lies_in(found, place(rule, rule.output_prefix)) for rule in rules):
        return None
    for rule in rules:
        key = key_of(rule, found)
        if key is not None and wanted(rule, key):
            return rule, key
    return None


def conflicts(rules: Sequence[DropRule]) -> Iterator[tuple[str, str]]:
    """Yield the names of rules that take something from each other, with a sentence on what."""
    for first, second in combinations(rules, 2):
        if _overlap(first, second):
            yield second.name, f"objects that {first.name!r} wants too are that rule's: it stands before"
    yield from _shared_outputs(rules)
    for rule in rules:
        for other in rules:
            if rule is not other and _lies_in(place(rule, rule.output_prefix), place(other, other.prefix)):
                yield rule.name, f"its results lie where {other.name!r} looks: they are not taken as objects"
            if rule is not other and _lies_in(place(rule, rule.prefix), place(other, other.output_prefix)):
                yield rule.name, f"it looks where the results of {other.name!r} lie: nothing there is taken"


def require_own_outputs(rules: Sequence[DropRule]) -> None:
    """Raise `ConfigError` where the results of one rule could take the place of another's, for ever in turn."""
    for name, detail in _shared_outputs(rules):
        raise ConfigError(f"drop rule {name!r}: {detail}: give each an output_prefix of its own")


def _shared_outputs(rules: Sequence[DropRule]) -> Iterator[tuple[str, str]]:
    for first, second in combinations(rules, 2):
        one, two = place(first, first.output_prefix), place(second, second.output_prefix)
        if (_lies_in(one, two) or _lies_in(two, one)) and _ends_meet(first, second):
            where = f"output_prefix {second.output_prefix!r} and the {first.output_prefix!r} of {first.name!r}"
            yield second.name, f"{where} lie in each other, and results of one name would replace each other"


def _lies_in(found: Place, folder: Place) -> bool:
    return found.bucket == folder.bucket and found.key.startswith(folder.key)


def _overlap(first: DropRule, second: DropRule) -> bool:
    one, two = place(first, first.prefix), place(second, second.prefix)
    return (_lies_in(one, two) or _lies_in(two, one)) and _ends_meet(first, second)


def _ends_meet(first: DropRule, second: DropRule) -> bool:
    """Return whether one key could end as both rules want it."""
    ends = [(a.lower(), b.lower()) for a in first.suffixes for b in second.suffixes]
    return any(a.endswith(b) or b.endswith(a) for a, b in ends)
