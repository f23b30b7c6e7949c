from __future__ import annotations

from penstock.client.answer_text import MAX_ITEMS, MAX_JSON_LINES, answer_lines
from penstock.views import View

LABELS = [{"id": 1, "label": "tabby cat", "score": 0.8}, {"id": 2, "label": "dog", "score": 0.1}]
IMAGES = View("labels", "/images/*/labels", "image")


def test_labels_are_lines_with_bars() -> None:
    lines = answer_lines(None, {"images": [{"labels": LABELS}]}, [IMAGES])
    assert lines == ["tabby cat       0.8  ████████████████", "dog             0.1  ██"]


def test_raw_scores_have_no_bars() -> None:
    [line] = answer_lines(None, {"labels": [{"label": "cat", "score": 7.25}]}, [View("labels", "/labels")])
    assert line == "cat      7.25"


def test_each_list_has_its_heading() -> None:
    lines = answer_lines(None, {"images": [{"labels": LABELS}] * 2}, [IMAGES])
    assert [line for line in lines if line.endswith(":")] == ["image 1:", "image 2:"]


def test_rows_are_a_table_with_aligned_columns() -> None:
    data = {"classes": [{"name": "water", "pixels": 12}, {"name": "land", "pixels": None, "percent": 8.25}]}
    assert answer_lines(None, data, [View("rows", "/classes")]) == [
        "name   pixels  percent",
        "water  12",
        "land           8.25",
    ]


def test_boxes_are_rows_with_their_corners() -> None:
    box = {"xmin": 1.2, "ymin": 2.0, "xmax": 30.7, "ymax": 40.0}
    data = {"objects": [{"label": "boat", "score": 0.5, "box": box}]}
    assert answer_lines(None, data, [View("boxes", "/objects")]) == [
        "label  score  box",
        "boat   0.5    1, 2, 31, 40",
    ]


def test_vectors_are_told_by_their_length_and_beginning() -> None:
    data = {"embeddings": [[0.5, 1.0, 2.0, 3.0, 4.0]] * (MAX_ITEMS + 1)}
    lines = answer_lines(None, data, [View("vectors", "/embeddings")])
    assert lines[0] == "5 numbers: 0.5, 1, 2, 3, ..."
    assert lines[-1] == "... and 1 more"
    assert len(lines) == MAX_ITEMS + 1


def test_the_text_comes_first_and_has_the_passages() -> None:
    data = {"segments": [{"start": 0.0, "end": 1.0, "text": "Hello."}]}
    assert answer_lines("Hello.", data, [View("passages", "/segments")]) == ["Hello."]


def test_json_without_a_view_is_shown_as_json() -> None:
    assert answer_lines(None, {"count": 3}, []) == ["{", '  "count": 3', "}"]
    lines = answer_lines(None, {"numbers": list(range(100))}, [])
    assert len(lines) == MAX_JSON_LINES + 1
    assert lines[-1] == "... and 64 more lines of JSON"
    assert answer_lines("text", {"finish_reason": "stop"}, []) == ["text"]
    assert answer_lines(None, None, []) == []


def test_what_a_view_promises_and_the_answer_does_not_keep_is_shown_as_rows() -> None:
    data = {"labels": ["cat", "dog"], "vectors": [1.5]}
    lines = answer_lines(None, data, [View("labels", "/labels"), View("vectors", "/vectors")])
    assert lines == ["   value", "0  cat", "1  dog", "   value", "0  1.5"]


def test_empty_lists_are_said_in_words() -> None:
    data = {"width": 640, "objects": []}
    assert answer_lines(None, data, [View("boxes", "/objects")]) == ["nothing was found"]
    assert answer_lines("", data, [View("boxes", "/objects")]) == ["nothing was found"]


def test_one_plain_value_is_a_line() -> None:
    views = [View("rows", "/answer")]
    assert answer_lines(None, {"answer": 536870912}, views) == ["536870912"]
    assert answer_lines(None, {"answer": True}, views) == ["true"]
    assert answer_lines(None, {"answer": "a b"}, views) == ["a b"]
