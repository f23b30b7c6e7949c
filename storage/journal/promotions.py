"""Promoted aliases: names in requests, each of which leads to one model, or to several models by percent.

Two revisions of a model are two models of the catalogue. `penstock models promote` selects the model of an alias,
without a restart. The object `promotions/ALIAS.json` has the current shares and the last `_MAX_EARLIER` before them. It
lies outside a tenant's prefix, because all tenants share the models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import structlog

from penstock.errors import MediaTooLarge
from penstock.formats import WRITES, is_readable, version_of
from penstock.models import CatalogueEntry, find
from penstock.storage.journal.json_objects import put_json, read_json
from penstock.storage.objects.base import ObjectStore

_PREFIX = "promotions/"
_LIMIT_BYTES, _MAX_EARLIER = 100_000, 10

#: Percent of the jobs by model; the sum is 100.
Shares = Mapping[str, int]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Promotion:
    """The models that an alias leads to."""

    alias: str
    shares: Shares
    #: The shares before, the latest first.
    earlier: tuple[Shares, ...] = ()
    owner: str = ""
    #: Etag of the object that it was read from.
    etag: str = field(default="", compare=False)

    @property
    def models(self) -> tuple[str, ...]:
        """All models that the alias leads to or has led to, the one with the largest share first."""
        current = sorted(self.shares, key=lambda name: (-self.shares[name], name))
        return tuple(dict.fromkeys([*current, *(name for shares in self.earlier for name in shares)]))

    def moved(self, shares: Shares, owner: str) -> Promotion:
        """Return the promotion with other shares; the same ones change nothing, so that a repeated command is safe."""
        if shares == self.shares:
            return self
        return Promotion(self.alias, shares, (self.shares, *self.earlier)[:_MAX_EARLIER], owner)

    def back(self, owner: str) -> Promotion:
        """Return the promotion with the shares before, which must exist; going back twice changes nothing."""
        before, *others = self.earlier
        return Promotion(self.alias, before, (self.shares, *others), owner)


class ServedCatalogue(dict[str, CatalogueEntry]):
    """Entries by name, and the promotions of the aliases that count."""

    def __init__(self, entries: Mapping[str, CatalogueEntry], promotions: Mapping[str, Promotion]) -> None:
        super().__init__(entries)
        self.promotions = promotions


def with_promotions(
    entries: Mapping[str, CatalogueEntry], promotions: Mapping[str, Promotion]
) -> ServedCatalogue:  # fmt: skip
    """Return entries with promoted aliases: `ALIAS` at the model with the largest share, `ALIAS@REVISION` at each.

    A name or alias that a model's record has takes precedence. Models that are not served are left out.
    """
    found, counted = dict(entries), dict[str, Promotion]()
    for alias, promotion in sorted(promotions.items()):
        served = [name for name in promotion.models if name in entries]
        if find(entries, alias) is not None or not served:
            continue
        for name in served:
            added = [*([alias] if name == served[0] else []), f"{alias}@{entries[name].revision}"]
            aliases = (*found[name].aliases, *(each for each in added if find(found, each) is None))
            found[name] = found[name].model_copy(update={"aliases": aliases})
        counted[alias] = promotion
    return ServedCatalogue(found, counted)


def model_for(catalogue: Mapping[str, CatalogueEntry], name: str, job: str) -> str:
    """Return the model of a job among those that share a promoted alias; `name` itself for any other name.

    The same job gets the same model as long as the shares and the usable models stay. Models that cannot be used get
    no job; the others keep the proportions of their shares.
    """
    promotion = _promotion(catalogue, name)
    shares = {} if promotion is None else promotion.shares
    usable = {model: each for model, each in shares.items() if model in catalogue and not catalogue[model].problem}
    return chosen(usable, job) if usable else name


def models_behind(catalogue: Mapping[str, CatalogueEntry], name: str) -> frozenset[str]:
    """Return the models whose jobs may come from requests for this name, with the earlier models of an alias."""
    promotion, entry = _promotion(catalogue, name), find(catalogue, name)
    return frozenset({name, *([] if entry is None else [entry.name]), *(promotion.models if promotion else ())})


def _promotion(catalogue: Mapping[str, CatalogueEntry], name: str) -> Promotion | None:
    return catalogue.promotions.get(name) if isinstance(catalogue, ServedCatalogue) else None


def chosen(shares: Shares, job: str) -> str:
    """Return a model by the shares: a hash of the job's id is a point on their line, in the order of the names."""
    point = int.from_bytes(hashlib.sha256(job.encode()).digest()[:8], "big") % sum(shares.values())
    for model in sorted(shares):
        point -= shares[model]
        if point < 0:
            return model
    raise ValueError("shares are positive numbers")


def full_shares(given: Mapping[str, int | None], before: Shares) -> Shares:
    """Return given shares filled up to 100: one model without a number gets the rest, else the largest one before.

    Raises `ValueError` in words.
    """
    open_ended = [name for name, percent in given.items() if percent is None]
    shares = {name: percent for name, percent in given.items() if percent is not None}
    rest = 100 - sum(shares.values())
    if any(percent < 0 for percent in shares.values()) or rest < 0 or len(open_ended) > 1:
        raise ValueError("percentages are whole numbers with a sum of 100; only one model may have none")
    if rest and not open_ended:
        open_ended = sorted(before.keys() - shares.keys(), key=lambda name: (-before[name], name))[:1]
        if not open_ended:
            raise ValueError(f"the percentages add up to {100 - rest}, and no other model has the alias")
    shares |= dict.fromkeys(open_ended, rest)
    return {name: percent for name, percent in shares.items() if percent}


def put_promotion(store: ObjectStore, promotion: Promotion) -> None:
    """Store a promotion; every API process follows within seconds."""
    document = {
        "version": WRITES, "owner": promotion.owner, "shares": dict(promotion.shares),
        "earlier": [dict(shares) for shares in promotion.earlier],
    }  # fmt: skip
    put_json(store, _key(promotion.alias), document)


def remove_promotion(store: ObjectStore, alias: str) -> None:
    """Forget an alias. Safe to repeat."""
    store.delete(_key(alias))


def read_promotions(store: ObjectStore, before: Mapping[str, Promotion] = MappingProxyType({})) -> dict[str, Promotion]:
    """Return the promotions by alias; log and skip unreadable ones. Unchanged ones are taken from `before`."""
    return {each.alias: each for each in _all(store, before)}


def _all(store: ObjectStore, before: Mapping[str, Promotion]) -> Iterator[Promotion]:
    for info in store.list(_PREFIX):
        alias = info.key.removeprefix(_PREFIX).removesuffix(".json")
        if alias in before and before[alias].etag == info.etag:
            yield before[alias]
            continue
        try:
            document = read_json(store, info.key, limit_bytes=_LIMIT_BYTES)
            if document is not None:
                yield replace(_of(alias, document), etag=info.etag)
        except (ValueError, KeyError, TypeError, AttributeError, MediaTooLarge) as error:
            log.warning("promotion.skipped", key=info.key, error=type(error).__name__)


def _of(alias: str, document: Mapping[str, Any]) -> Promotion:
    if not is_readable(version_of(document)):
        raise ValueError("of a newer format")
    earlier = tuple(_shares(each) for each in document["earlier"])
    return Promotion(alias, _shares(document["shares"]), earlier, str(document["owner"]))


def _shares(value: Mapping[str, Any]) -> Shares:
    shares = {str(name): int(percent) for name, percent in value.items()}
    if sum(shares.values()) != 100 or min(shares.values()) < 1:
        raise ValueError("not shares")
    return shares


def _key(alias: str) -> str:
    return f"{_PREFIX}{alias}.json"
