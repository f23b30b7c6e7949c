"""`penstock models promote`: show and change the models behind an alias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.display import out, print_json, table
from penstock.cli.options import AsJson, Data, Owner
from penstock.cli.upkeep import opened, operator
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.storage.journal.promotions import Promotion
    from penstock.storage.journal.stored_models import StoredCatalogue


def promote(
    alias: Annotated[str | None, typer.Argument(metavar="ALIAS", help="Name that requests use [show all].")] = None,
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL[=PERCENT]...", help="Names of models; one without a number gets the rest."),
    ] = None,
    back: Annotated[bool, typer.Option("--back", help="Return to the models before the last change.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the alias.")] = False,
    by: Owner = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Let an alias lead to a model, or to several by percent; without a model, show where aliases lead.

    Two revisions of a model are two models of the catalogue. New jobs follow within 10 seconds; those that were
    accepted before keep their model. ALIAS@REVISION means the revision itself.

    - `penstock models promote floods floods-2=10`: floods-2 gets every tenth job, the model before the others

    - `penstock models promote floods floods-2`: floods-2 gets all

    - `penstock models promote floods --back`: as it was before
    """
    from penstock.storage.journal.promotions import put_promotion, remove_promotion
    from penstock.storage.journal.stored_models import read_stored

    _, store = opened(data)
    stored = read_stored(store)
    if alias is None:
        _show(list(stored.promotions.values()), as_json=as_json)
        return
    if back + remove + bool(targets) > 1:
        raise ConfigError("give models, --back or --remove")
    before = stored.promotions.get(alias)
    if before is None and not targets:
        raise ConfigError(f"no alias {alias!r} was promoted; see `penstock models promote`")
    if remove:
        remove_promotion(store, alias)
        if not as_json:
            out.print(f"{alias}  removed")
        return
    if targets or back:
        changed = _changed(alias, targets or [], before, stored, by or operator())
        put_promotion(store, changed)
        before = changed
    _show([before] if before else [], as_json=as_json)


def _changed(
    alias: str, targets: Sequence[str], before: Promotion | None, stored: StoredCatalogue, owner: str
) -> Promotion:
    """Return the new promotion of an alias; without targets, the previous shares."""
    from penstock.storage.journal.promotions import Promotion, full_shares

    if not targets:
        if before is None or not before.earlier:
            raise ConfigError(f"{alias!r} has led nowhere else before")
        return before.back(owner)
    given = _given(targets)
    _check(alias, given, stored)
    try:
        shares = full_shares(given, before.shares if before else {})
    except ValueError as error:
        raise ConfigError(f"{error}") from error
    return before.moved(shares, owner) if before else Promotion(alias, shares, (), owner)


def _given(targets: Sequence[str]) -> dict[str, int | None]:
    """Return the percentages by model, None where none is given."""
    given: dict[str, int | None] = {}
    for target in targets:
        name, equals, percent = target.partition("=")
        if name in given or (equals and not percent.isdecimal()):
            raise ConfigError(f"not a model and a whole number of percent: {target!r}; an example is floods-2=10")
        given[name] = int(percent) if equals else None
    return given


def _check(alias: str, models: Mapping[str, object], stored: StoredCatalogue) -> None:
    """Raise `ConfigError` for an alias that is a model's own name or no name at all, and for unknown models."""
    from penstock.models import find, is_name

    entries = {name: entry for name in {*stored.published, *stored.checked} if (entry := stored.entry(name))}
    if not is_name(alias):
        raise ConfigError(f"{alias!r} is not a name: use lower-case letters, digits, '.', '_' and '-'")
    if owner := find(entries, alias):
        raise ConfigError(f"{alias!r} is a name of model {owner.name!r}: give the model another name first")
    if unknown := sorted(models.keys() - entries):
        raise ConfigError(
            f"the service has no model {', '.join(map(repr, unknown))}: a worker must serve it, or "
            f"`penstock models publish` make it known; known models: {', '.join(sorted(entries)) or 'none'}"
        )


def _show(promotions: Sequence[Promotion], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"alias": each.alias, "shares": each.shares, "earlier": each.earlier, "owner": each.owner}
                for each in promotions
            ]
        )
        return
    rows = table("alias", "models", "before", "by")
    for each in promotions:
        before = _percentages(each.earlier[0]) if each.earlier else ""
        rows.add_row(each.alias, _percentages(each.shares), before, each.owner)
    out.print(rows)


def _percentages(shares: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {percent} %" for name, percent in sorted(shares.items(), key=lambda each: -each[1]))
