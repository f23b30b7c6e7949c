"""Decisions on a subscription: which versions of which items become jobs, when, and what is remembered."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count, pairwise
from typing import Any, ClassVar

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.journal.subscription_progress import Decision, Progress
from penstock.storage.journal.subscriptions import Subscription, SubscriptionKey
from penstock.workers.keeper.subscription_plan import (
    MAX_JOBS,
    STEP_S,
    Fate,
    FoundItem,
    Listing,
    Plan,
    Submission,
    begin,
    conclude,
    failed,
    plan,
    version_of,
    window_of,
)

DAY_S = 86_400.0
NOON_S = 1_700_049_600.0
SUBSCRIPTION = Subscription(
    SubscriptionKey("default", "lagoon"), "uid", "https://stac.example", ("scenes",), "csmask",
    every_s=900, look_back_s=5 * DAY_S, since_s=NOON_S - 20 * DAY_S, created_s=NOON_S - 20 * DAY_S,
)  # fmt: skip


def found(name: str, time_s: float = NOON_S - 60, version: str = "1", **more: Any) -> FoundItem:
    return FoundItem(name, "scenes", time_s, version, more.pop("updated_s", None), {"id": name}, **more)


def look(
    progress: Progress, *items: FoundItem, at: float = NOON_S, subscription: Subscription = SUBSCRIPTION,
    fates: dict[str, Submission] | None = None,
) -> tuple[Plan, Progress]:  # fmt: skip
    """Decide on a listing, and have all its jobs submitted, or treated as `fates` says by item."""
    planned = plan(subscription, progress, window_of(subscription, progress, at), items, at)
    submissions = [(fates or {}).get(job.item.id, Submission(Fate.SUBMITTED)) for job in planned.jobs]
    return planned, conclude(subscription, planned, submissions, at)


def ids(planned: Plan) -> list[str]:
    return [job.item.id for job in planned.jobs]


def decisions(progress: Progress) -> dict[str, str]:
    return {note.item: note.decision.value for note in reversed(progress.notes)}


def current() -> Progress:
    """Return a progress that is up to date."""
    return replace(begin(SUBSCRIPTION), cursor_s=NOON_S)


def test_each_version_becomes_one_job_in_the_order_of_the_items_times() -> None:
    late, early = found("b", NOON_S - 100), found("c", NOON_S - 200)
    planned, after = look(current(), late, early, late)
    assert ids(planned) == ["c", "b"]
    again, after = look(after, early, late, at=NOON_S + 900)
    assert ids(again) == []
    assert (after.counts.done, after.jobs, after.due_s) == (2, 2, NOON_S + 1800)


def test_the_id_of_a_job_depends_on_item_and_version_alone() -> None:
    first, _ = look(current(), found("a"))
    again, _ = look(current(), found("a"), at=NOON_S + 1)
    corrected, _ = look(current(), found("a", version="2"))
    recreated, _ = look(current(), found("a"), subscription=replace(SUBSCRIPTION, uid="another"))
    keys = [each.jobs[0].key for each in (first, again, corrected, recreated)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_a_corrected_item_is_a_new_job_and_an_old_version_seen_again_is_none() -> None:
    _, after = look(current(), found("a", version="1", updated_s=1))
    corrected, after = look(after, found("a", version="2", updated_s=2))
    assert ids(corrected) == ["a"]
    for stale in ("1", "0"):  # from a copy of the catalogue that lags behind
        planned, after = look(after, found("a", version=stale, updated_s=1))
        assert ids(planned) == []
    assert decisions(after) == {"a": "superseded"}
    planned, _ = look(after, found("a", version="2", updated_s=2))
    assert ids(planned) == []


def test_of_two_versions_in_one_listing_the_later_one_counts() -> None:
    planned, _ = look(current(), found("a", version="2", updated_s=2), found("a", version="1", updated_s=1))
    assert [job.item.version for job in planned.jobs] == ["2"]


def test_a_skipped_item_is_noted_once_with_its_reason_and_judged_anew_after_a_correction() -> None:
    cloudy = found("a", refusal=(Decision.FILTER, "eo:cloud_cover is 90"))
    _, after = look(current(), cloudy)
    _, after = look(after, cloudy)
    assert [(note.decision, note.reason) for note in after.notes] == [(Decision.FILTER, "eo:cloud_cover is 90")]
    assert after.counts.filtered == 1
    planned, _ = look(after, found("a", version="2"))
    assert ids(planned) == ["a"]


def test_a_withdrawn_item_is_noted_once_and_makes_no_second_job_when_it_comes_back() -> None:
    _, after = look(current(), found("a"))
    _, after = look(after)
    _, after = look(after)
    assert [note.decision for note in after.notes] == [Decision.WITHDRAWN, Decision.JOB]
    planned, after = look(after, found("a"))
    assert ids(planned) == []
    assert not after.entries["scenes/a"].withdrawn


def test_items_outside_the_range_that_was_asked_for_do_not_count() -> None:
    planned, _ = look(current(), found("old", NOON_S - 6 * DAY_S), found("future", NOON_S + 5))
    assert ids(planned) == []


def test_an_item_published_late_is_found_within_the_look_back_and_not_after_it() -> None:
    _, after = look(current(), at=NOON_S)
    _, after = look(after, at=NOON_S + 900)
    planned, _ = look(after, found("late", NOON_S + 900 - 4.9 * DAY_S), at=NOON_S + 1800)
    assert ids(planned) == ["late"]
    planned, _ = look(after, found("late", NOON_S + 900 - 5.1 * DAY_S), at=NOON_S + 1800)
    assert ids(planned) == []


def test_after_an_outage_the_look_begins_where_the_last_one_ended() -> None:
    later = NOON_S + 20 * DAY_S
    missed = found("missed", NOON_S + 60)
    planned, after = look(current(), missed, at=later)
    assert ids(planned) == ["missed"]
    assert after.cursor_s == later


def test_an_item_of_the_last_second_is_found_without_any_look_back() -> None:
    subscription = replace(SUBSCRIPTION, look_back_s=0)
    _, after = look(current(), at=NOON_S + 10.7, subscription=subscription)
    assert (after.cursor_s, after.due_s) == (NOON_S + 10, NOON_S + 910.7)
    planned, _ = look(after, found("a", NOON_S + 10.5), at=NOON_S + 20, subscription=subscription)
    assert ids(planned) == ["a"]


def test_a_backfill_goes_in_steps_without_pause_and_then_waits() -> None:
    subscription = replace(SUBSCRIPTION, since_s=NOON_S - 100 * DAY_S)
    progress, steps = begin(subscription), []
    for at in count(NOON_S):
        window = window_of(subscription, progress, at)
        steps.append(window)
        _, progress = look(progress, at=at, subscription=subscription)
        if progress.due_s > at:
            break
    assert [step.end_s for step in steps[:-1]] == [subscription.since_s + n * STEP_S for n in (1, 2, 3)]
    assert all(later.start_s == earlier.end_s - 5 * DAY_S for earlier, later in pairwise(steps))
    assert progress.cursor_s == NOON_S + len(steps) - 1


def test_the_jobs_of_a_day_are_limited_and_the_rest_follows_the_next_day_in_order() -> None:
    subscription = replace(SUBSCRIPTION, max_jobs_a_day=2)
    items = [found(name, NOON_S - 100 + number) for number, name in enumerate("abcde")]
    first, after = look(current(), *items, subscription=subscription)
    assert (ids(first), after.waiting) == (["a", "b"], "the subscription has made its jobs of the day")
    assert after.cursor_s == NOON_S
    none, after = look(after, *items, at=NOON_S + 900, subscription=subscription)
    assert (ids(none), after.counts.waiting) == ([], 3)
    assert [note.item for note in after.notes if note.decision is Decision.WAITING] == ["c"]
    second, after = look(after, *items, at=NOON_S + DAY_S, subscription=subscription)
    third, after = look(after, *items, at=NOON_S + 2 * DAY_S, subscription=subscription)
    assert (ids(second), ids(third), after.waiting, after.jobs) == (["c", "d"], ["e"], None, 5)


def test_a_full_quota_keeps_the_items_and_the_cursor() -> None:
    full = Submission(Fate.POSTPONED, "the tenant has used its device seconds")
    old = replace(current(), cursor_s=NOON_S - DAY_S)
    _, after = look(old, found("a", NOON_S - 90), found("b", NOON_S - 80), fates={"b": full})
    assert (after.waiting, after.counts.waiting, after.cursor_s) == (full.reason, 1, NOON_S - DAY_S)
    planned, after = look(after, found("a", NOON_S - 90), found("b", NOON_S - 80), at=NOON_S + 900)
    assert ids(planned) == ["b"]
    assert (after.waiting, after.cursor_s) == (None, NOON_S + 900)


def test_an_item_that_no_job_can_be_made_of_is_refused_once() -> None:
    refusal = Submission(Fate.REFUSED, "the input does not fit")
    _, after = look(current(), found("a"), fates={"a": refusal})
    planned, after = look(after, found("a"))
    assert ids(planned) == []
    assert [(note.decision, note.reason) for note in after.notes] == [(Decision.REFUSED, "the input does not fit")]


def test_failed_looks_come_back_soon_then_seldom_and_move_nothing() -> None:
    progress, pauses = current(), []
    for _ in range(8):
        progress = failed(SUBSCRIPTION, progress, "status 500", NOON_S)
        pauses.append(progress.due_s - NOON_S)
    assert pauses == [30, 60, 120, 240, 480, 900, 900, 900]
    assert (progress.cursor_s, progress.problem) == (NOON_S, "status 500")
    _, progress = look(progress)
    assert (progress.failures, progress.problem) == (0, None)


def test_a_look_makes_a_bounded_number_of_jobs() -> None:
    items = [found(f"{number:04}", NOON_S - number) for number in range(MAX_JOBS + 1)]
    planned, after = look(current(), *items)
    assert (len(planned.jobs), after.counts.waiting) == (MAX_JOBS, 1)


def test_items_are_forgotten_once_no_look_can_find_them_and_their_results_are_published() -> None:
    _, after = look(current(), *(found(name, NOON_S - 60) for name in ("open", "new", "failed", "published")))
    ends: dict[str, dict[str, Any]] = {
        "open": {}, "new": {"end": "succeeded"}, "failed": {"end": "failed"},
        "published": {"end": "succeeded", "published": True},
    }  # fmt: skip
    entries = {name: replace(entry, **ends[entry.id]) for name, entry in after.entries.items()}
    _, after = look(replace(after, entries=entries), at=NOON_S + 4 * DAY_S)
    assert len(after.entries) == 4  # the next look still begins before them
    _, after = look(after, at=NOON_S + 6 * DAY_S)
    assert set(after.entries) == {"scenes/open", "scenes/new"}


@given(times=st.lists(st.integers(0, 50), max_size=40), most=st.integers(1, 10), limit=st.integers(1, 10))
def test_a_listing_holds_the_documents_of_the_earliest_items_which_become_jobs_first(
    times: list[int], most: int, limit: int
) -> None:
    listing = Listing(current(), most=most)
    items = [found(f"i{number}", NOON_S - 100 + time) for number, time in enumerate(times)]
    for item in items:
        listing.add(item)
    held = [item for item in listing.items if item.document]
    assert len(held) == min(most, len(times))
    assert sorted(item.time_s for item in held) == sorted(item.time_s for item in items)[:most]
    subscription = replace(SUBSCRIPTION, max_jobs_a_day=limit)
    planned, after = look(current(), *listing.items, subscription=subscription)
    assert all(job.item.document for job in planned.jobs)
    ordered = [item.id for item in sorted(items, key=lambda item: (item.time_s, item.name))]
    assert ids(planned) == ordered[: len(planned.jobs)]
    assert (after.waiting is None) == (len(planned.jobs) == len(times))
    assert len(planned.jobs) > 0 or not times


def test_a_listing_drops_the_documents_of_items_that_make_no_job() -> None:
    _, after = look(current(), found("done"))
    listing = Listing(after)
    for item in (found("done"), found("cloudy", refusal=(Decision.FILTER, "")), found("new")):
        listing.add(item)
    assert [item.id for item in listing.items if item.document] == ["new"]


def test_progress_is_the_same_after_a_round_through_the_store() -> None:
    _, after = look(current(), found("a", updated_s=3.5), found("b", refusal=(Decision.AREA, "elsewhere")))
    assert Progress.from_bytes(after.to_bytes()) == after


class TestVersions:
    DOCUMENT: ClassVar[dict[str, Any]] = {
        "properties": {"datetime": "2026-01-01T00:00:00Z", "updated": "2026-01-02T00:00:00Z"},
        "assets": {"a": {"href": "https://h/a.tif?sig=1", "file:checksum": "1220aa"}},
    }

    def test_a_checksum_decides_before_the_time_of_the_change(self) -> None:
        touched = {**self.DOCUMENT, "properties": {**self.DOCUMENT["properties"], "updated": "2026-02-02T00:00:00Z"}}
        replaced = {**self.DOCUMENT, "assets": {"a": {"href": "https://h/a.tif", "file:checksum": "1220bb"}}}
        assert version_of(touched) == version_of(self.DOCUMENT)
        assert version_of(replaced) != version_of(self.DOCUMENT)

    def test_without_both_the_addresses_count_without_their_signatures(self) -> None:
        bare: dict[str, Any] = {"properties": {}, "assets": {"a": {"href": "https://h/a.tif?sig=1"}}}
        signed_anew = {**bare, "assets": {"a": {"href": "https://h/a.tif?sig=2"}}}
        moved = {**bare, "assets": {"a": {"href": "https://h/b.tif?sig=1"}}}
        assert version_of(signed_anew) == version_of(bare) != version_of(moved)

    def test_a_malformed_item_has_a_version_too(self) -> None:
        assert version_of({"assets": 3, "properties": None}) == version_of({"assets": [], "properties": 1})


#: The life of an item: seconds after which it is published, and for each version seconds until the next one.
LIVES = st.lists(
    st.tuples(
        st.floats(0, 30 * DAY_S), st.floats(0, 4.9 * DAY_S), st.lists(st.floats(60, DAY_S), max_size=3), st.booleans()
    ),
    max_size=12,
)


@given(
    lives=LIVES,
    pauses=st.lists(st.floats(60, 10 * DAY_S), min_size=1, max_size=15),
    limit=st.none() | st.integers(1, 5),
    stores=st.lists(st.booleans(), min_size=60, max_size=60),
    jumble=st.randoms(use_true_random=False),
)
def test_no_published_version_is_missed_or_doubled_in_whatever_order_and_with_crashes(
    lives: list[tuple[float, float, list[float], bool]], pauses: list[float], limit: int | None,
    stores: list[bool], jumble: Any,
) -> None:  # fmt: skip
    """Keepers that die after submitting, a catalogue that publishes late, corrects, repeats and withdraws items."""
    begun = NOON_S
    subscription = replace(SUBSCRIPTION, since_s=begun, created_s=begun, max_jobs_a_day=limit)
    versions = []  # (published, ends, item)
    for number, (time, delay, changes, withdrawn) in enumerate(lives):
        at = begun + time + delay
        for version, lasts in enumerate([*changes, float("inf")]):
            ends = at + lasts if version < len(changes) or not withdrawn else at + DAY_S
            item = found(f"i{number}", begun + time, f"v{version}", updated_s=at)
            versions.append((at, ends, item))
            at += lasts
    progress, submitted, crashes = begin(subscription), Counter[Any](), iter(stores)
    shown = set()
    ends_s = begun + 45 * DAY_S
    at = begun
    times = [at := at + pause for pause in pauses]
    times += [max(times[-1], ends_s) + n * DAY_S for n in range(60)]
    for at in times:
        listed = [item for published, ends, item in versions if published <= at < ends]
        jumble.shuffle(listed)
        listed += listed[: len(listed) // 2]
        while True:
            window = window_of(subscription, progress, at)
            planned = plan(subscription, progress, window, listed, at)
            submitted.update(job.key for job in planned.jobs)
            after = conclude(subscription, planned, [Submission(Fate.SUBMITTED)] * len(planned.jobs), at)
            if next(crashes, True):  # the progress was stored
                shown |= {job.key for job in planned.jobs}
                progress = after
                if progress.due_s > at:
                    break
    for published, ends, item in versions:
        if ends != float("inf") or published - item.time_s > subscription.look_back_s:
            continue  # replaced or withdrawn before a look could find it, or published too late
        assert subscription.job_key(item.name, item.version) in shown, item
    known = {subscription.job_key(item.name, item.version) for _, _, item in versions}
    assert set(submitted) <= known
    assert progress.jobs == len(shown) <= len(known)
