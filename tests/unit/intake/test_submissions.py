"""Inputs that do not fit a model's schema: each issue names the place and what that very value lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.intake.submissions import check_input, upstreams_of
from penstock.models import CatalogueEntry, Limits
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.image_generation.request import TextToImageRequest
from penstock.processors.language.request import GenerationRequest
from penstock.processors.multimodal.request import ImageTextRequest
from penstock.processors.speech.request import SpeechRequest
from penstock.processors.vision.request import ZeroShotClassificationRequest
from penstock.requests import MAX_UPSTREAMS

SCENE = "media://u/scene.tif"
MODEL = CatalogueEntry(
    name="csmask",
    title="Clouds",
    revision="1",
    queue="default",
    input_schema=SegmentationRequest.model_json_schema(),
    outputs=(),
    limits=Limits(),
    execution_timeout_s=600,
    queue_ttl_s=3600,
    max_attempts=3,
)


def issues(document: dict[str, Any]) -> dict[str, str]:
    """Return what is told of the input, by place."""
    return told_by(MODEL.input_schema, {"scene": SCENE} | document)


def told_by(schema: Mapping[str, Any], document: dict[str, Any]) -> dict[str, str]:
    """Return what is told of an input of another schema."""
    with pytest.raises(InvalidRequest) as refused:
        check_input(MODEL.model_copy(update={"input_schema": schema}), document)
    return {issue.pointer: issue.detail for issue in refused.value.errors}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"radiometry": {"scale": 0}}, {"/input/radiometry/scale": "must be greater than 0"}),
        ({"radiometry": {"offset": 1}}, {"/input/radiometry/scale": "is required with offset"}),
        ({"radiometry": {"scal": 1}}, {"/input/radiometry/scal": "is not known to this model"}),
        (
            {"radiometry": {"scale": -1, "nodata": "none"}},
            {
                "/input/radiometry/scale": "must be greater than 0",
                "/input/radiometry/nodata": "must be one of: number, null",
            },
        ),
        ({"radiometry": 0.0001}, {"/input/radiometry": "must be one of: object, null"}),
        ({"bands": [0, 1, 2, 3, 4, 5]}, {"/input/bands/0": "must be at least 1"}),
        ({"bands": [1, "", 3]}, {"/input/bands/1": "'' should be non-empty"}),
        ({"bands": [1, 2.5]}, {"/input/bands/1": "must be one of: string, integer"}),
        ({"bands": "red"}, {"/input/bands": "must be one of: array, null"}),
        ({"scene": 7}, {"/input/scene": "7 is not of type 'string'"}),
    ],
)
def test_the_alternative_that_the_values_type_fits_is_told_of(document: dict[str, Any], told: dict[str, str]) -> None:
    assert issues(document) == told


@pytest.mark.parametrize(
    "document", [{"radiometry": None}, {"radiometry": {"scale": 1, "offset": 2}}, {"bands": ["a"]}]
)
def test_what_fits_passes(document: dict[str, Any]) -> None:
    check_input(MODEL, {"scene": SCENE} | document)


@pytest.mark.parametrize(
    ("request_model", "document", "told"),
    [
        (
            TextToImageRequest,
            {"prompt": "x" * 120_000},
            {"/input/prompt": "has 120000 characters; at most 10000 are allowed"},
        ),
        (
            GenerationRequest,
            {"prompt": "x", "stop": ["."] * 20},
            {"/input/stop": "has 20 items; at most 16 are allowed"},
        ),
        (GenerationRequest, {"prompt": ["x" * 200]}, {"/input/prompt": "must be one of: string, null"}),
        (SpeechRequest, {"audio": ["x" * 200]}, {"/input/audio": "this array is not of type 'string'"}),
        (
            GenerationRequest,
            {"prompt": "x", "messages": [{"role": "user", "content": "y" * 500}]},
            {"/input": "has prompt and messages; exactly one of them is allowed"},
        ),
        (
            ImageTextRequest,
            {"messages": [{"role": "user", "content": "y"}], "images": ["media://u/a"], "prompt": "x"},
            {"/input": "has images and messages; exactly one of them is allowed"},
        ),
        (
            ImageTextRequest,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "media://u/a"}]}]},
            {"/input/messages/0/content/0/type": "must be one of: image, text"},
        ),
        (
            ImageTextRequest,
            {"messages": [{"role": "user", "content": [{"type": "image", "text": "x"}]}]},
            {
                "/input/messages/0/content/0/image": "is required",
                "/input/messages/0/content/0/text": "is not known to this model",
            },
        ),
        (
            SpeechRequest,
            {"audio": "media://u/a", "language": "english!"},
            {"/input/language": "has the wrong format; an example is en"},
        ),
        (
            ZeroShotClassificationRequest,
            {"images": ["media://u/a"], "labels": ["x"], "template": "{} {}"},
            {"/input/template": "has the wrong format: A sentence whose {} is replaced by each label."},
        ),
    ],
)
def test_what_was_sent_is_told_of_and_not_sent_back(
    request_model: Any, document: dict[str, Any], told: dict[str, str]
) -> None:
    assert told_by(request_model.model_json_schema(), document) == told


class TestUpstreams:
    ID, OTHER = "0195c0de-0000-7000-8000-00000000000a", "0195c0de-0000-7000-8000-00000000000b"

    def test_are_the_named_jobs_and_those_whose_artifacts_are_inputs_each_once(self) -> None:
        references = [f"job://{self.OTHER.upper()}/a.tif", f"job://{self.ID}/a.tif", "media://u/a.tif", "https://h/a"]
        assert upstreams_of([self.ID.upper()], references) == (self.ID, self.OTHER)

    @pytest.mark.parametrize("text", [f"job://{ID}", f"job://{ID}/", "job://x/a", f"jobs://{ID}/a", f"job://{ID}/\0"])
    def test_are_not_named_by_other_texts(self, text: str) -> None:
        assert upstreams_of([], [text]) == ()

    def test_are_at_most_so_many(self) -> None:
        few = [f"0195c0de-0000-7000-8000-{n:012}" for n in range(MAX_UPSTREAMS)]
        assert upstreams_of(few, [f"job://{few[0]}/a"]) == tuple(few)
        with pytest.raises(InvalidRequest, match=r"may wait for 20 jobs; this one names 21"):
            upstreams_of(few, [f"job://{self.ID}/a"])
