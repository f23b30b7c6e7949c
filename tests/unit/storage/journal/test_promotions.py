"""The models that a promoted alias leads to, and the model that a job gets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.models import CatalogueEntry, find
from penstock.storage.journal.promotions import (
    Promotion,
    chosen,
    full_shares,
    model_for,
    models_behind,
    put_promotion,
    read_promotions,
    remove_promotion,
    with_promotions,
)
from penstock.storage.objects.local import LocalStore


def entry(name: str, revision: str, **fields: object) -> CatalogueEntry:
    return CatalogueEntry.model_validate(
        {
            "name": name, "title": name, "revision": revision, "queue": "default", "input_schema": {}, "outputs": [],
            "execution_timeout_s": 60, "queue_ttl_s": 60, "max_attempts": 3, **fields,
        }
    )  # fmt: skip


TWO = {"floods-1": entry("floods-1", "2024"), "floods-2": entry("floods-2", "2025", aliases=("new",))}


def test_an_alias_means_the_model_with_the_largest_share_and_its_revisions() -> None:
    served = with_promotions(TWO, {"floods": Promotion("floods", {"floods-1": 10, "floods-2": 90})})
    found = {name: model.name for name in ("floods", "floods@2024", "floods@2025") if (model := find(served, name))}
    assert found == {"floods": "floods-2", "floods@2024": "floods-1", "floods@2025": "floods-2"}
    assert find(served, "floods@2023") is None
    assert find(served, "new") is served["floods-2"]


def test_a_revision_may_be_asked_for_without_a_promotion() -> None:
    assert find(TWO, "floods-1@2024") is TWO["floods-1"]
    assert find(TWO, "new@2025") is TWO["floods-2"]
    assert find(TWO, "floods-1@2025") is None
    assert find(TWO, "@2024") is None


def test_a_revision_that_no_longer_has_a_share_is_still_found() -> None:
    moved = Promotion("floods", {"floods-1": 100}).moved({"floods-2": 100}, "me")
    assert find(with_promotions(TWO, {"floods": moved}), "floods@2024") is not None


@pytest.mark.parametrize("alias", ["floods-1", "new"])
def test_the_names_of_records_take_precedence(alias: str) -> None:
    served = with_promotions(TWO, {alias: Promotion(alias, {"floods-1": 100})})
    assert served == TWO
    assert served.promotions == {}


def test_without_its_models_an_alias_is_unknown() -> None:
    served = with_promotions(TWO, {"floods": Promotion("floods", {"floods-3": 100})})
    assert find(served, "floods") is None
    assert model_for(served, "floods", "a job") == "floods"


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 99), min_size=1))
def test_jobs_are_shared_by_percent(shares: dict[str, int]) -> None:
    jobs = 4000
    found = Counter(chosen(shares, f"job {number}") for number in range(jobs))
    total = sum(shares.values())
    for name, share in shares.items():
        expected = jobs * share / total
        assert abs(found[name] - expected) <= 5 * max(1.0, expected * (1 - share / total)) ** 0.5 + 1


def test_a_job_keeps_its_model() -> None:
    served = with_promotions(TWO, {"floods": Promotion("floods", {"floods-1": 50, "floods-2": 50})})
    assert models_behind(served, "floods") == {"floods", "floods-1", "floods-2"}
    assert models_behind(served, "new") == {"new", "floods-2"}
    jobs = [f"job {number}" for number in range(100)]
    first = [model_for(served, "floods", job) for job in jobs]
    assert first == [model_for(served, "floods", job) for job in jobs]
    assert set(first) == {"floods-1", "floods-2"}


def test_a_model_that_cannot_be_used_gets_no_job() -> None:
    broken = {**TWO, "floods-2": entry("floods-2", "2025", problem="no weights")}
    served = with_promotions(broken, {"floods": Promotion("floods", {"floods-1": 1, "floods-2": 99})})
    assert {model_for(served, "floods", str(job)) for job in range(50)} == {"floods-1"}


def test_forth_and_back() -> None:
    first = Promotion("floods", {"floods-1": 100}, (), "ann")
    second = first.moved({"floods-2": 100}, "bob")
    assert (second.shares, second.earlier, second.owner) == ({"floods-2": 100}, ({"floods-1": 100},), "bob")
    assert second.back("cy").shares == first.shares
    assert second.back("cy").back("cy").shares == second.shares
    assert second.moved({"floods-2": 100}, "dan") is second, "a repeated command keeps the way back"
    many = second
    for number in range(30):
        many = many.moved({f"floods-{number}": 100}, "bob")
    assert len(many.earlier) == 10


@pytest.mark.parametrize(
    ("given_shares", "before", "expected"),
    [
        ({"b": None}, {"a": 100}, {"b": 100}),
        ({"b": 10}, {"a": 100}, {"b": 10, "a": 90}),
        ({"b": 10, "a": None}, {}, {"b": 10, "a": 90}),
        ({"b": 30}, {"a": 20, "c": 80}, {"b": 30, "c": 70}),
        ({"b": 0, "a": 100}, {"b": 100}, {"a": 100}),
        ({"b": 100}, {"a": 100}, {"b": 100}),
    ],
)
def test_shares_are_filled_up(given_shares: dict[str, int | None], before: dict[str, int], expected: object) -> None:
    assert full_shares(given_shares, before) == expected


@pytest.mark.parametrize(
    ("given_shares", "before"),
    [({"b": 10}, {}), ({"b": 10}, {"b": 100}), ({"a": 60, "b": 60}, {}), ({"a": None, "b": None}, {})],
)
def test_wrong_shares_are_refused(given_shares: dict[str, int | None], before: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="percentages"):
        full_shares(given_shares, before)


def test_promotions_are_stored(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    kept = Promotion("floods", {"a": 100}, ({"b": 40, "c": 60},), "me")
    put_promotion(store, kept)
    store.put_bytes("promotions/cut.json", b"{", content_type="application/json")
    store.put_bytes("promotions/odd.json", b'{"version": 1, "shares": {"a": 99}}', content_type="application/json")
    found = read_promotions(store)
    assert found == {"floods": kept}
    assert read_promotions(store, found)["floods"] is found["floods"], "what did not change is not read again"
    put_promotion(store, kept.back("you"))
    assert read_promotions(store, found)["floods"].shares == {"b": 40, "c": 60}
    remove_promotion(store, "floods")
    remove_promotion(store, "floods")
    assert read_promotions(store) == {}
