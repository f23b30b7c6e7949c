from __future__ import annotations

from penstock.views import Shown, View, shown

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
