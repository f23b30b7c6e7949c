"""The rule of an object, for all code that receives events, checks objects or checks rules. Pure.

A place is a bucket and a full key. All folders form one bucket without a name, in which a key is the file's whole path:
so rules on nested folders compare like prefixes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.config import Settings
from penstock.config_tables import DropRule
from penstock.errors import ConfigError

#: Suffixes of an object's markers, and of the file with its parameters.
DONE, ERROR, SIDECAR = ".done.json", ".error.json", ".json"
#: Ending of the metadata of a Landsat product.
PRODUCT_METADATA = "_MTL.json"


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """The location of an object: `key` is the full key in its bucket, including the path in the rule's address."""

    bucket: str
    key: str


def place(rule: DropRule, key: str) -> ObjectPlace:
    """Return the place of a key of the rule's store."""
    parts = urlsplit(rule.bucket)
    if parts.scheme == "file":
        return ObjectPlace("", f"{unquote(parts.path).rstrip('/')}/{key}")
    return ObjectPlace(parts.netloc, f"{parts.path.strip('/')}/{key}".lstrip("/") if parts.path.strip("/") else key)


def listed_every_s(rule: DropRule, settings: Settings) -> float:
    """Return the seconds between two listings of the rule's bucket."""
    return settings.drop_poll_s if rule.events is None else settings.drop_list_s


def watched_folder(rule: DropRule) -> Path | None:
    """Return the folder of a rule's files; None for a bucket."""
    if not rule.bucket.startswith("file:"):
        return None
    return Path(place(rule, rule.prefix).key.rpartition("/")[0] or "/")


def key_of(rule: DropRule, found: ObjectPlace) -> str | None:
    """Return an object's key in the rule's store; None for an object outside it."""
    root = place(rule, "")
    if found.bucket != root.bucket or not found.key.startswith(root.key):
        return None
    return found.key.removeprefix(root.key)


def wanted(rule: DropRule, key: str) -> bool:
    """Return True if an object with this key is input of the rule, not a folder, sidecar, result or marker.

    Names that begin with `._` are files that macOS writes beside others on foreign disks.
    """
    return (
        key.startswith(rule.prefix)
        and _fits(rule, key)
        and not key.endswith(("/", DONE, ERROR))
        and not key.rpartition("/")[2].startswith("._")
        and not (key.endswith(SIDECAR) and _fits(rule, key.removesuffix(SIDECAR)))
        and not key.startswith(rule.output_prefix)
        and not is_product_metadata(rule, key)
    )


def is_product_metadata(rule: DropRule, key: str) -> bool:
    """Return True for the metadata of a Landsat product, which documents name, among documents of a rule."""
    return rule.takes_documents and key.lower().endswith(PRODUCT_METADATA.lower())


def _fits(rule: DropRule, key: str) -> bool:
    """Return True for a key with a suffix of the rule. Without suffixes, hidden files alone do not count."""
    hidden = key.rpartition("/")[2].startswith(".")
    return any(key.lower().endswith(suffix.lower()) and (suffix or not hidden) for suffix in _suffixes(rule))


def _suffixes(rule: DropRule) -> tuple[str, ...]:
    """Return the suffixes of a rule; one that every key has while they are not known."""
    return ("",) if rule.suffixes is None else rule.suffixes


def ignored(rule: DropRule, key: str) -> bool:
    """Return True for a file of a person under the rule's prefix without its suffixes, and for product metadata."""
    name = key.rpartition("/")[2]
    return (
        key.startswith(rule.prefix)
        and bool(name)
        and not name.startswith(".")
        and (not _fits(rule, key) or is_product_metadata(rule, key))
        and not (key.endswith(SIDECAR) and _fits(rule, key.removesuffix(SIDECAR)))
    )


def owner(rules: Sequence[DropRule], found: ObjectPlace) -> tuple[DropRule, str] | None:
    """Return the first rule that wants an object, and its key in the rule's store; None for outputs and others."""
    if any(_lies_in(found, place(rule, rule.output_prefix)) for rule in rules):
        return None
    for rule in rules:
        key = key_of(rule, found)
        if key is not None and wanted(rule, key):
            return rule, key
    return None


def conflicts(rules: Sequence[DropRule]) -> Iterator[tuple[str, str]]:
    """Yield the names of rules that conflict with others, with a sentence on the conflict."""
    for first, second in combinations(rules, 2):
        if _overlap(first, second):
            yield second.name, f"objects that {first.name!r} wants too belong to that rule, which comes first"
    yield from _shared_outputs(rules)
    for rule in rules:
        for other in rules:
            if rule is not other and _lies_in(place(rule, rule.output_prefix), place(other, other.prefix)):
                yield rule.name, f"its results lie under the prefix of {other.name!r}: they are ignored there"
            if rule is not other and _lies_in(place(rule, rule.prefix), place(other, other.output_prefix)):
                yield rule.name, f"its prefix lies in the results of {other.name!r}: objects there are ignored"


def require_own_outputs(rules: Sequence[DropRule]) -> None:
    """Raise `ConfigError` if two rules could overwrite each other's results in turn, for ever."""
    for name, detail in _shared_outputs(rules):
        raise ConfigError(
            f"drop rule {name!r}: {detail}: give each rule an output_prefix of its own, or suffixes that differ"
        )


def _shared_outputs(rules: Sequence[DropRule]) -> Iterator[tuple[str, str]]:
    for first, second in combinations(rules, 2):
        one, two = place(first, first.output_prefix), place(second, second.output_prefix)
        if (_lies_in(one, two) or _lies_in(two, one)) and _ends_meet(first, second):
            where = f"output_prefix {second.output_prefix!r} and the {first.output_prefix!r} of {first.name!r}"
            yield second.name, f"{where} overlap, and results of one name would replace each other"


def _lies_in(found: ObjectPlace, folder: ObjectPlace) -> bool:
    return found.bucket == folder.bucket and found.key.startswith(folder.key)


def _overlap(first: DropRule, second: DropRule) -> bool:
    one, two = place(first, first.prefix), place(second, second.prefix)
    return (_lies_in(one, two) or _lies_in(two, one)) and _ends_meet(first, second)


def _ends_meet(first: DropRule, second: DropRule) -> bool:
    """Return True if one key could have a suffix of both rules."""
    ends = [(a.lower(), b.lower()) for a in _suffixes(first) for b in _suffixes(second)]
    return any(a.endswith(b) or b.endswith(a) for a, b in ends)
