from __future__ import annotations

from penstock.views import Shown, View, found_nothing, shown

LABELS = [{"id": 1, "label": "tabby cat", "score": 0.8}, {"id": 2, "label": "dog", "score": 0.1}]
IMAGES = View("labels", "/images/*/labels", "image")


def test_a_view_names_every_item_of_a_list() -> None:
    both = {"images": [{"labels": LABELS}, {"labels": LABELS[:1]}]}
    assert shown([IMAGES], both) == [Shown("labels", "image 1", LABELS), Shown("labels", "image 2", LABELS[:1])]


def test_the_only_item_has_no_heading() -> None:
    assert shown([IMAGES], {"images": [{"labels": LABELS}]}) == [Shown("labels", "", LABELS)]


def test_the_items_of_an_object_have_their_names() -> None:
    data = {"tensors": {"logits": {"values": [1, 2]}}}
    assert shown([View("rows", "/tensors/*/values")], data) == [Shown("rows", "logits", [1, 2])]


def test_a_view_of_something_that_is_not_there_shows_nothing() -> None:
    for data in (None, {}, {"images": None}, {"images": [{}]}, {"images": 3}, {"images": [{"labels": []}]}):
        assert shown([IMAGES], data) == []


def test_items_have_what_their_form_promises() -> None:
    assert Shown("labels", "", LABELS).fits
    assert not Shown("labels", "", [{"label": "cat"}]).fits
    assert not Shown("labels", "", ["cat"]).fits
    assert not Shown("vectors", "", [1.0]).fits
    assert Shown("vectors", "", [[1.0]]).fits
    assert Shown("rows", "", ["anything"]).fits


def test_what_an_earlier_part_has_is_not_shown_again() -> None:
    views = [View("labels", "/labels"), View("labels", "/windows/*/labels", "window")]
    assert shown(views, {"labels": LABELS, "windows": [{"labels": LABELS}]}) == [Shown("labels", "", LABELS)]
    two = shown(views, {"labels": LABELS, "windows": [{"labels": LABELS}, {"labels": LABELS}]})
    assert [part.heading for part in two] == ["", "window 1", "window 2"]


def test_an_object_is_shown_as_rows_of_its_members() -> None:
    rows = [{"name": "count", "value": 3}, {"name": "box", "value": [1, 2]}]
    assert shown([View("rows", "/of")], {"of": {"count": 3, "unit": None, "box": [1, 2]}}) == [Shown("rows", "", rows)]
    assert shown([View("rows", "")], {"count": 3}) == [Shown("rows", "", rows[:1])]


def test_views_of_empty_lists_alone_mean_that_nothing_was_found() -> None:
    views = [View("boxes", "/objects"), View("rows", "/classes")]
    assert found_nothing(views, {"objects": [], "classes": []})
    assert not found_nothing(views, {"objects": [], "classes": [1]})
    assert not found_nothing(views, {"width": 3})
    assert not found_nothing([], {"objects": []})


def test_one_value_is_a_row() -> None:
    views = [View("rows", "/note"), View("rows", "/none")]
    assert shown(views, {"note": "RGB", "none": None}) == [Shown("rows", "", ["RGB"])]
