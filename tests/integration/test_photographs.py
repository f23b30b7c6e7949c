"""Depth, objects, segments and labels of one's own: what transformers' own pipelines make of the same picture."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.numpy import load as load_tensors

from penstock.errors import InvalidInput, MediaUnreadable, ModelUnavailable, ProcessorFailed
from penstock.intake.local_media import LocalMedia
from penstock.models import Limits, Model
from penstock.processors.base import Prompt
from penstock.processors.registry import Registry
from penstock.processors.testing import Finished, FolderSink, LocalFiles, check_processor
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Work
from tests.support import vision
from tests.support.hub import a_model, a_segformer, an_image, finish, load

Make = Callable[[Path], Path]


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return a picture that EXIF turns upright, and a smaller one."""
    return {
        "media://a": vision.a_picture(tmp_path / "a.png", rotated=True),
        "media://b": vision.a_picture(tmp_path / "b.png", size=(90, 110)),
    }


@pytest.fixture
def check(engine: BatchingEngine, files: dict[str, Path]) -> Callable[..., Finished]:
    """Return the conformance test on the real engine."""

    def check(model: Model, request: Mapping[str, Any], **other: Any) -> Finished:
        image = "images" if model.processor == "zero-shot-classification" else "image"
        return check_processor(
            Registry.imported().processor_for(model),
            {image: "media://a", **request},
            files,
            engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
            other={image: "media://b", **request, **other},
            limits=model.limits,
        )

    return check


def answered(model: Model, engine: BatchingEngine, files: Mapping[str, Path], **request: Any) -> Mapping[str, Any]:
    """Return the result of one run."""
    processor = Registry.imported().processor_for(model)
    prepared = processor.pre_process(processor.request.model_validate(request), LocalFiles(files))
    outputs = engine.run(model, prepared.prompts, check=lambda: None)
    with TemporaryDirectory() as folder:
        return processor.post_process(outputs, prepared.context, FolderSink(Path(folder))).data or {}


def pipeline(task: str, source: Path, **options: Any) -> Any:
    """Return the library's own; its image processor is the one without torchvision."""
    processor = transformers.AutoImageProcessor.from_pretrained(source, backend="pil")
    return transformers.pipeline(task, model=str(source), image_processor=processor, **options)


def image_of(done: Finished, name: str) -> Any:
    media_type, content = done.artifacts[name]
    assert media_type == "image/png"
    return np.asarray(Image.open(io.BytesIO(content)))


@pytest.mark.breadth(every=3)
@pytest.mark.parametrize("make", [vision.a_depth_anything, vision.a_dpt, vision.a_glpn])
@torch.inference_mode()
def test_depth_is_that_of_the_library_at_the_pictures_size(
    make: Make, check: Callable[..., Finished], files: dict[str, Path], tmp_path: Path
) -> None:
    model = a_model(make(tmp_path / "m"), processor="depth-estimation", max_batch=1)
    done = check(model, {"outputs": ["depth", "preview", "values"]})
    expected = pipeline("depth-estimation", tmp_path / "m")(vision.as_seen(files["media://a"]))
    depth = expected["predicted_depth"].numpy()
    values = load_tensors(done.artifacts["values.safetensors"][1])["depth"]
    assert (values.shape, values.dtype) == ((180, 120), np.float32)
    assert np.ptp(depth) > 1
    np.testing.assert_allclose(values, depth, rtol=0, atol=1e-4 * np.ptp(depth))
    told = json.loads(done.artifacts["depth.json"][1])
    assert told == done.result.data
    assert (told["width"], told["height"]) == (120, 180)
    assert (told["min"], told["max"]) == (values.min(), values.max())
    stored = image_of(done, "depth.png")
    assert stored.dtype == np.uint16
    scale = told["png"]["scale"]
    np.testing.assert_allclose(stored * scale + told["png"]["offset"], values, rtol=0, atol=0.51 * scale)


def test_depth_says_whether_it_is_in_metres(engine: BatchingEngine, files: dict[str, Path], tmp_path: Path) -> None:
    def told(source: Path, **options: str) -> tuple[Any, ...]:
        fields = {"revision": f"{source.name} {options}", "options": options}
        model = a_model(source, processor="depth-estimation", max_batch=1, **fields)
        data = answered(model, engine, files, image="media://a", outputs=["preview"])
        return data["kind"], data["unit"], data["nearer"], data["png"]["scale"]

    metres = told(vision.a_glpn(tmp_path / "glpn"))
    assert metres == ("metric", "m", "smaller", 0.001)
    relative = vision.a_depth_anything(tmp_path / "relative")
    assert told(relative)[:3] == ("relative", None, "larger")
    trained = vision.a_depth_anything(tmp_path / "metric", depth_estimation_type="metric", max_depth=20)
    assert told(trained)[:3] == metres[:3]
    assert told(relative, depth="metric")[:3] == metres[:3]


@pytest.mark.breadth(but=("a_detr",))
@pytest.mark.parametrize(
    "make",
    [
        vision.a_conditional_detr,
        vision.a_d_fine,
        vision.a_dab_detr,
        vision.a_deformable_detr,
        vision.a_detr,
        vision.a_table_transformer,
        vision.a_yolos,
        vision.an_rt_detr,
        vision.an_rt_detr_v2,
    ],
)
@torch.inference_mode()
def test_objects_are_those_of_the_library_in_pixels_of_the_picture_as_it_is_seen(
    make: Make, check: Callable[..., Finished], files: dict[str, Path], tmp_path: Path
) -> None:
    model = a_model(make(tmp_path / "m"), processor="object-detection", max_batch=1)
    done = check(model, {"threshold": 0.25}, outputs=["annotated"])
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "m", backend="pil")
    network = transformers.AutoModelForObjectDetection.from_pretrained(tmp_path / "m").eval()
    seen = vision.as_seen(files["media://a"])
    inputs = {name: value for name, value in processor(seen, return_tensors="pt").items() if name != "labels"}
    if "yolos" in make.__name__:
        inputs.pop("pixel_mask")
    answer = network(**inputs)
    [expected] = processor.post_process_object_detection(answer, threshold=0.25, target_sizes=[(180, 120)])
    order = np.argsort(-expected["scores"].numpy(), kind="stable")
    data = done.result.data or {}
    assert (data["width"], data["height"]) == (120, 180)
    scores = [found["score"] for found in data["objects"]]
    assert len(scores) >= 2
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx(expected["scores"].numpy()[order], abs=2e-5)
    theirs = np.array(
        [
            (int(label), *np.clip(box.numpy(), 0, [120, 180, 120, 180]))
            for label, box in zip(expected["labels"], expected["boxes"], strict=True)
        ]
    )
    ours = np.array([(found["label_id"], *found["box"].values()) for found in data["objects"]])
    # Not in an order: noise decides about scores, and sides, that are all but equal.
    apart = np.abs(ours[:, None] - theirs[None]).max(axis=2)
    assert apart.min(axis=0).max() <= 0.02
    assert apart.min(axis=1).max() <= 0.02
    assert {found["label"] for found in data["objects"]} <= set(vision.LABELS.values())
    assert json.loads(done.artifacts["boxes.json"][1]) == data
    changed = (image_of(done, "annotated.png") != np.asarray(seen)).any(axis=2)
    assert 0.01 < changed.mean() < 0.9


@pytest.mark.breadth(but=("a_mask2former",))
@pytest.mark.parametrize("make", [vision.a_mask2former, vision.a_maskformer, vision.a_panoptic_detr])
@torch.inference_mode()
def test_segments_are_those_of_the_library(
    make: Make, check: Callable[..., Finished], files: dict[str, Path], tmp_path: Path
) -> None:
    model = a_model(make(tmp_path / "m"), processor="instance-segmentation", max_batch=1)
    asked = {"threshold": 0.2, "mask_threshold": 0.3}
    done = check(model, {**asked, "overlap_threshold": 0.05}, threshold=0.3)
    seen = vision.as_seen(files["media://a"])
    segments = pipeline("image-segmentation", tmp_path / "m")
    expected = segments(seen, subtask="panoptic", **asked, overlap_mask_area_threshold=0.05)
    assert len(expected) >= (1 if "detr" in make.__name__ else 3)
    data = done.result.data or {}
    mask = image_of(done, "mask.png")
    assert mask.shape == (180, 120)
    for number, (ours, theirs) in enumerate(zip(data["segments"], expected, strict=True), start=1):
        region = np.asarray(theirs["mask"]) > 0
        assert ((mask == number) == region).mean() > 0.999
        assert (ours["id"], ours["label"]) == (number, theirs["label"])
        # A mean over the region, in which noise may decide about a pixel at its edge.
        assert ours["score"] == pytest.approx(theirs["score"], abs=1e-3)
        assert ours["pixels"] == (mask == number).sum()
        rows, columns = np.nonzero(mask == number)
        box = {"xmin": columns.min(), "ymin": rows.min(), "xmax": columns.max() + 1, "ymax": rows.max() + 1}
        assert ours["box"] == box
    assert json.loads(done.artifacts["segments.json"][1]) == data
    overlay = image_of(done, "overlay.png")
    np.testing.assert_array_equal((overlay == np.asarray(seen)).all(axis=2)[mask == 0], True)


@pytest.mark.breadth
def test_a_picture_without_segments_has_an_empty_mask(check: Callable[..., Finished], tmp_path: Path) -> None:
    model = a_model(vision.a_mask2former(tmp_path / "m"), processor="instance-segmentation", max_batch=1)
    done = check(model, {"threshold": 1})
    assert (done.result.data or {})["segments"] == []
    assert not image_of(done, "mask.png").any()


@pytest.mark.breadth(but=("a_clip",))
@pytest.mark.parametrize("make", [vision.a_clip, vision.a_metaclip_2, vision.a_siglip])
@torch.inference_mode()
def test_labels_of_ones_own_get_the_scores_of_the_library(
    make: Make, check: Callable[..., Finished], files: dict[str, Path], tmp_path: Path
) -> None:
    model = a_model(make(tmp_path / "m"), processor="zero-shot-classification", max_batch=1)
    labels = ["a cat", "an old dog", "sky", "grey tree"]
    sentence = {"template": "photo of {}"}
    done = check(model, {"labels": labels, **sentence, "images": ["media://a", "media://b"]}, labels=["dog", "sky"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    classify = pipeline("zero-shot-image-classification", tmp_path / "m", tokenizer=tokenizer)
    found = (done.result.data or {})["images"]
    assert len(found) == 2
    for ours, name in zip(found, "ab", strict=True):
        seen = vision.as_seen(files[f"media://{name}"])
        expected = classify(seen, candidate_labels=labels, hypothesis_template="photo of {}")
        scores = [one["score"] for one in expected]
        assert max(scores) - min(scores) > 0.001
        assert [one["label"] for one in ours["labels"]] == [one["label"] for one in expected]
        assert [one["score"] for one in ours["labels"]] == pytest.approx(scores, abs=1e-5)
        assert all(labels[one["id"]] == one["label"] for one in ours["labels"])


def test_what_is_typed_as_a_label_is_text_and_no_special_token(tmp_path: Path) -> None:
    processor = Registry.imported().processor_for(
        a_model(vision.a_clip(tmp_path / "m"), processor="zero-shot-classification")
    )
    picture = {"media://a": vision.a_picture(tmp_path / "a.png")}
    request = {"images": "media://a", "labels": ["cat [end] dog"], "template": "{}"}
    prepared = processor.pre_process(processor.request.model_validate(request), LocalFiles(picture))
    ids = next(prepared.prompts).data["input_ids"].tolist()
    end = len(vision.WORDS) + 2
    assert ids.count(end) == 1
    assert ids[-1] == end


def test_a_label_that_is_too_long_is_refused_by_its_place(tmp_path: Path) -> None:
    processor = Registry.imported().processor_for(
        a_model(vision.a_clip(tmp_path / "m"), processor="zero-shot-classification")
    )
    picture = {"media://a": vision.a_picture(tmp_path / "a.png")}
    request = {"images": "media://a", "labels": ["cat", "old " * 20]}
    with pytest.raises(
        InvalidInput, match=r"label 1 makes a text of 2. tokens; this model accepts at most 12"
    ) as refusal:
        processor.pre_process(processor.request.model_validate(request), LocalFiles(picture))
    assert refusal.value.errors[0].pointer == "/input/labels/1"


@pytest.mark.parametrize("template", ["no place", "{} and {}", "{0}", "{cat}"])
def test_a_template_has_one_place_for_the_label(template: str, tmp_path: Path) -> None:
    processor = Registry.imported().processor_for(
        a_model(vision.a_siglip(tmp_path / "m"), processor="zero-shot-classification")
    )
    with pytest.raises(ValueError, match="template"):
        processor.request.model_validate({"images": "media://a", "labels": ["cat"], "template": template})


MODELS: list[tuple[str, Make, dict[str, Any]]] = [
    ("depth-estimation", vision.a_dpt, {}),
    ("object-detection", vision.a_detr, {}),
    ("instance-segmentation", vision.a_mask2former, {}),
    ("zero-shot-classification", vision.a_clip, {"labels": ["cat"]}),
]


@pytest.mark.breadth(every=4)
@pytest.mark.parametrize(("name", "make", "request_"), MODELS)
def test_a_broken_picture_is_refused_and_the_next_one_is_served(
    name: str, make: Make, request_: dict[str, Any], engine: BatchingEngine, tmp_path: Path
) -> None:
    model = a_model(make(tmp_path / "m"), processor=name)
    processor = Registry.imported().processor_for(model)
    (tmp_path / "cut.png").write_bytes(vision.a_picture(tmp_path / "a.png").read_bytes()[:2000])
    files = {"media://a": tmp_path / "a.png", "media://cut": tmp_path / "cut.png"}
    field = "images" if "images" in processor.request.model_fields else "image"

    def run(reference: str) -> Any:
        request = processor.request.model_validate({field: reference, **request_})
        prepared = processor.pre_process(request, LocalFiles(files))
        outputs = engine.run(model, prepared.prompts, check=lambda: None)
        return processor.post_process(outputs, prepared.context, FolderSink(tmp_path)).data

    before = run("media://a")
    with pytest.raises(MediaUnreadable, match="damaged or incomplete"):
        run("media://cut")
    assert run("media://a") == before


@pytest.mark.parametrize(("name", "make", "request_"), MODELS)
def test_a_picture_with_too_many_pixels_is_refused_unread(
    name: str, make: Make, request_: dict[str, Any], tmp_path: Path
) -> None:
    model = a_model(make(tmp_path / "m"), processor=name, limits=Limits(max_pixels=1000))
    processor = Registry.imported().processor_for(model)
    field = "images" if "images" in processor.request.model_fields else "image"
    files = {"media://a": vision.a_picture(tmp_path / "a.png")}
    with pytest.raises(Exception, match="180 x 120 = 21600 pixels; at most 1000"):
        processor.pre_process(processor.request.model_validate({field: "media://a", **request_}), LocalFiles(files))


@pytest.mark.parametrize("name", [name for name, _, _ in MODELS])
def test_a_directory_of_another_kind_makes_the_model_unavailable(name: str, tmp_path: Path) -> None:
    source = a_segformer(tmp_path)
    with pytest.raises(ModelUnavailable, match=f"task '{name}' does not fit model_type 'segformer', which can do: "):
        load(source, processor=name)


def change(folder: Path, **fields: Any) -> None:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("name", "make", "fields", "options", "sentence"),
    [
        (
            "depth-estimation",
            vision.a_dpt,
            {"image_processor_type": "ZoeDepthImageProcessor"},
            {},
            "'ZoeDepth.* are not supported",
        ),
        (
            "depth-estimation",
            vision.a_dpt,
            {},
            {"depth": "feet"},
            "options.depth must be one of metric, relative, not 'feet'",
        ),
        ("depth-estimation", vision.a_dpt, {}, {"deep": 1}, "unknown options: deep; known: .*depth"),
        (
            "object-detection",
            vision.a_detr,
            {"image_processor_type": "ViTImageProcessor", "do_pad": None},
            {},
            "detectors with image processors of the kind 'ViT' are not supported; supported: ConditionalDetr",
        ),
        ("object-detection", vision.a_detr, {"do_center_crop": True}, {}, "boxes would not fit"),
        (
            "instance-segmentation",
            vision.a_mask2former,
            {"pad_size": {"height": 160, "width": 160}},
            {},
            "masks would not fit",
        ),
        ("depth-estimation", vision.a_dpt, {"do_center_crop": True}, {}, "a depth map would not fit"),
    ],
)
def test_a_directory_whose_pictures_cannot_be_prepared_says_why(
    name: str, make: Make, fields: dict[str, Any], options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    source = make(tmp_path / "m")
    change(source, **fields)
    with pytest.raises(ModelUnavailable, match=sentence):
        Registry.imported().processor_for(a_model(source, processor=name, options=options))


@torch.inference_mode()
def test_what_pads_a_picture_is_hidden_from_the_network(files: dict[str, Path], tmp_path: Path) -> None:
    source = vision.a_detr(tmp_path / "m")
    change(source, pad_size={"height": 160, "width": 160})
    processor = Registry.imported().processor_for(a_model(source, processor="object-detection"))
    request = processor.request.model_validate({"image": "media://a"})
    [prompt] = processor.pre_process(request, LocalFiles(files)).prompts
    assert (prompt.data["pixels"].shape, prompt.data["shown"]) == ((3, 160, 160), [128, 85])
    with closing(load(source)) as runner:
        [output] = finish(runner, prompt)
        with pytest.raises(ProcessorFailed, match=r"`shown` is the \[height, width\] of the image within \[160, 160\]"):
            runner.admit(replace(prompt, data={**prompt.data, "shown": [161, 5]}))
    theirs = transformers.AutoImageProcessor.from_pretrained(source, backend="pil")
    inputs = theirs(vision.as_seen(files["media://a"]), return_tensors="pt")
    network = transformers.AutoModelForObjectDetection.from_pretrained(source).eval()
    expected = network(**inputs).logits[0]
    plain = network(pixel_values=inputs["pixel_values"]).logits[0]
    np.testing.assert_allclose(output.data["logits"], expected, rtol=0, atol=1e-4)
    assert not np.allclose(output.data["logits"], plain, atol=1e-3)


@pytest.mark.breadth(but=("asked0", "asked2"))
@pytest.mark.parametrize(
    "asked",
    [
        {"size": [5, 0]},
        {"size": None},
        {"threshold": 1.5},
        {"mask_threshold": "0.5"},
        {"overlap_threshold": None},
    ],
)
def test_a_prompt_for_segments_that_makes_no_sense_is_the_processors_fault(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    good = {"size": [9, 9], "threshold": 0.5, "mask_threshold": 0.5, "overlap_threshold": 0.5}
    with closing(load(vision.a_maskformer(tmp_path))) as runner:
        runner.admit(Prompt({"pixels": an_image(3, 64, 64), **good}))
        with pytest.raises(ProcessorFailed, match=r"`size` is the answer's|numbers from 0 to 1"):
            runner.admit(Prompt({"pixels": an_image(3, 64, 64), **good, **asked}))


def test_pictures_of_different_jobs_share_a_batch_whatever_they_ask(tmp_path: Path) -> None:
    pixels = an_image(3, 64, 64)
    prompts = [
        Prompt({"pixels": pixels, "size": [side, 9], "threshold": 0.1, "mask_threshold": 0.3, "overlap_threshold": 0.0})
        for side in (30, 50)
    ]
    with closing(load(vision.a_maskformer(tmp_path))) as runner:
        assert runner.bucket(prompts[0]) == runner.bucket(prompts[1])
        first, second = finish(runner, *prompts)
        assert (first.data["segments"].shape, second.data["segments"].shape) == ((30, 9), (50, 9))
        np.testing.assert_array_equal(first.data["segments"], finish(runner, prompts[0])[0].data["segments"])


def test_half_a_model_cannot_compare_pictures_with_texts(tmp_path: Path) -> None:
    whole = transformers.CLIPModel.from_pretrained(vision.a_clip(tmp_path / "whole"))
    whole.vision_model.save_pretrained(tmp_path / "half")
    with pytest.raises(ModelUnavailable, match="zero-shot-classification' does not fit model_type 'clip_vision_model'"):
        load(tmp_path / "half", processor="zero-shot-classification")


@pytest.mark.breadth
@pytest.mark.parametrize(("name", "make", "request_"), MODELS)
def test_pictures_are_looked_at_from_an_io_process(
    name: str, make: Make, request_: dict[str, Any], engine: BatchingEngine, tmp_path: Path
) -> None:
    model = a_model(make(tmp_path / "m"), processor=name)
    field = "images" if name == "zero-shot-classification" else "image"
    picture = vision.a_picture(tmp_path / "a.png")
    request = {field: "media://a", **request_}
    work = Work(model, request, {"media://a": LocalMedia(picture)}, tmp_path / "artifacts")
    with (
        closing(IOPool(1, ForkOptions(512 * 2**20))) as pool,
        pool.open(work, check=lambda: None, say=lambda _: None) as session,
    ):
        done = session.finish(engine.run(model, session.prepared.prompts, check=lambda: None))
    processor = Registry.imported().processor_for(model)
    prepared = processor.pre_process(processor.request.model_validate(request), LocalFiles({"media://a": picture}))
    outputs, sink = engine.run(model, prepared.prompts, check=lambda: None), FolderSink(tmp_path)
    assert done.result == processor.post_process(outputs, prepared.context, sink)
    assert set(done.files) == set(sink.artifacts)
