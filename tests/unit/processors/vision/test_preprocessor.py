"""The image preprocessor: equal to transformers, number by number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model
from penstock.processors.vision.preprocessor import Size, parse_preprocessor, read_preprocessor, target

#: (kind, its module in transformers, fields of the directory's file)
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("ViT", "vit", {}),
    ("ViT", "vit", {"size": {"height": 97, "width": 130}, "resample": 3, "image_mean": [0.1, 0.2, 0.3]}),
    ("ViT", "vit", {"do_resize": False, "do_normalize": False}),
    ("ViT", "vit", {"do_rescale": False}),
    ("CLIP", "clip", {}),
    ("CLIP", "clip", {"size": {"shortest_edge": 50}, "crop_size": {"height": 64, "width": 45}}),
    ("CLIP", "clip", {"size": {"shortest_edge": 90, "longest_edge": 110}, "do_center_crop": False}),
    ("DeiT", "deit", {}),
    ("Beit", "beit", {}),
    ("Bit", "bit", {}),
    ("ConvNext", "convnext", {}),
    ("ConvNext", "convnext", {"size": {"shortest_edge": 224}}),
    ("ConditionalDetr", "conditional_detr", {}),
    ("DPT", "dpt", {}),
    ("DPT", "dpt", {"keep_aspect_ratio": True, "ensure_multiple_of": 14, "size": {"height": 98, "width": 98}}),
    ("DeformableDetr", "deformable_detr", {"size": {"shortest_edge": 90, "longest_edge": 110}}),
    ("Detr", "detr", {}),
    ("Detr", "detr", {"size": {"shortest_edge": 100, "longest_edge": 130}}),
    ("Detr", "detr", {"size": {"max_height": 90, "max_width": 100}, "pad_size": {"height": 100, "width": 120}}),
    ("EfficientNet", "efficientnet", {"rescale_offset": True, "rescale_factor": 1 / 127.5}),
    ("EfficientNet", "efficientnet", {"include_top": False, "do_center_crop": True}),
    ("GLPN", "glpn", {}),
    ("GLPN", "glpn", {"size_divisor": 20}),
    ("Mask2Former", "mask2former", {"size": {"shortest_edge": 100, "longest_edge": 130}}),
    ("MaskFormer", "maskformer", {"size": {"shortest_edge": 50, "longest_edge": 130}, "size_divisor": 24}),
    ("MaskFormer", "maskformer", {"size": {"height": 50, "width": 60}, "pad_size": {"height": 80, "width": 70}}),
    ("MobileNetV1", "mobilenet_v1", {}),
    ("MobileNetV2", "mobilenet_v2", {}),
    ("RTDetr", "rt_detr", {}),
    ("RTDetr", "rt_detr", {"do_normalize": True, "do_pad": True, "pad_size": {"height": 700, "width": 640}}),
    ("Segformer", "segformer", {}),
    ("Siglip", "siglip", {}),
    ("Yolos", "yolos", {"size": {"shortest_edge": 100, "longest_edge": 130}}),
    ("Yolos", "yolos", {"size": {"height": 90, "width": 130}}),
]


def image(height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(("height", "width"), [(120, 161), (161, 120), (40, 40), (224, 224)])
@pytest.mark.parametrize(("kind", "module", "fields"), CASES)
def test_a_directorys_file_is_carried_out_as_transformers_does(
    kind: str, module: str, fields: dict[str, Any], height: int, width: int, tmp_path: Path
) -> None:
    from importlib import import_module

    theirs = getattr(
        import_module(f"transformers.models.{module}.image_processing_pil_{module}"), f"{kind}ImageProcessorPil"
    )(**fields)
    theirs.save_pretrained(tmp_path)
    ours = read_preprocessor(model(source=str(tmp_path)))
    prepared = theirs(image(height, width), input_data_format="channels_last", return_tensors="np")
    expected = prepared["pixel_values"][0]
    pixels = ours.apply(image(height, width))
    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels, expected, rtol=0, atol=2e-6)
    assert ours.cost(height, width) == pixels.shape[1] * pixels.shape[2]
    mask = np.zeros(pixels.shape[1:])
    shown = ours.resized_shape(height, width)
    mask[: shown[0], : shown[1]] = 1
    if "pixel_mask" in prepared:
        np.testing.assert_array_equal(mask, prepared["pixel_mask"][0])


@pytest.mark.parametrize(("kind", "module"), sorted({(kind, module) for kind, module, _ in CASES}))
def test_what_an_old_file_leaves_out_is_what_transformers_takes(kind: str, module: str) -> None:
    from importlib import import_module

    cls = getattr(
        import_module(f"transformers.models.{module}.image_processing_pil_{module}"), f"{kind}ImageProcessorPil"
    )
    full = parse_preprocessor(json.loads(cls().to_json_string()))
    assert parse_preprocessor({"image_processor_type": f"{kind}ImageProcessor"}) == full
    assert parse_preprocessor({"feature_extractor_type": f"{kind}FeatureExtractor"}) == full


def test_a_size_of_one_number_is_a_square_or_the_shorter_edge_by_the_kind() -> None:
    vit = parse_preprocessor({"feature_extractor_type": "ViTFeatureExtractor", "size": 100})
    clip = parse_preprocessor({"feature_extractor_type": "CLIPFeatureExtractor", "size": 100, "crop_size": 100})
    assert vit.fields.size == Size(height=100, width=100)
    assert (clip.fields.size, clip.fields.crop_size) == (Size(shortest_edge=100), Size(height=100, width=100))


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((100, 200), Size(shortest_edge=50), (50, 100)),
        ((200, 100), Size(shortest_edge=50), (100, 50)),
        ((100, 1000), Size(shortest_edge=50, longest_edge=200), (20, 200)),
        ((100, 1335), Size(shortest_edge=800, longest_edge=1333), (100, 1335)),
        ((100, 1000), Size(max_height=80, max_width=70), (7, 70)),
        ((3, 1000), Size(shortest_edge=50, longest_edge=100), (1, 100)),
        ((5, 7), Size(height=3, width=4), (3, 4)),
    ],
)
def test_sizes(shape: tuple[int, int], size: Size, expected: tuple[int, int]) -> None:
    assert target(shape, size) == expected


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"image_processor_type": "ZoeDepthImageProcessor"}, "'ZoeDepthImageProcessor' are not supported.* ViT"),
        ({"size": {"shortest": 3}}, "size.shortest"),
        ({"image_processor_type": "DetrImageProcessor", "pad_size": {"height": 3}}, "pad_size must have height and"),
        ({"size": {"longest_edge": 3}}, "size must have height and width"),
        ({"do_center_crop": True, "crop_size": {"height": 3}}, "crop_size must have height and width"),
        ({"image_std": [0, 1, 1]}, "image_std must not be 0"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"do_pad": True}, "do_pad"),
        ({"resample": 17}, "resample"),
    ],
)
def test_what_is_not_understood_makes_the_model_unavailable(
    data: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(data))
    with pytest.raises(ModelUnavailable, match=sentence):
        read_preprocessor(model(source=str(tmp_path)))


@pytest.mark.parametrize(
    ("data", "shape", "sentence"),
    [
        ({"image_processor_type": "GLPNImageProcessor"}, (31, 64), "too small or too narrow for this model: 64 x 31"),
        ({"image_processor_type": "YolosImageProcessor"}, (10, 2000), "too small or too narrow"),
        (
            {
                "image_processor_type": "DetrImageProcessor",
                "size": {"height": 9, "width": 9},
                "pad_size": {"height": 9, "width": 8},
            },
            (5, 5),
            "resized image has 9 x 9 pixels, more than the 8 x 9",
        ),
    ],
)
def test_an_image_that_a_kind_cannot_take_is_refused(
    data: dict[str, Any], shape: tuple[int, int], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        parse_preprocessor(data).apply(image(*shape))


def test_a_size_and_a_greatest_size_of_old_files_are_one() -> None:
    detr = parse_preprocessor({"feature_extractor_type": "DetrFeatureExtractor", "size": 600, "max_size": 900})
    assert detr.fields.size == Size(shortest_edge=600, longest_edge=900)
    assert (
        parse_preprocessor({"feature_extractor_type": "DetrFeatureExtractor", "size": 600}).fields.size.longest_edge
        == 1333
    )


def test_models_of_images_and_texts_have_it_beside_their_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text('{"image_processor": {"size": 9}, "processor_class": "X"}')
    assert read_preprocessor(model(source=str(tmp_path))).apply(image(64, 64)).shape == (3, 9, 9)
    (tmp_path / "processor_config.json").write_text('{"processor_class": "X"}')
    (tmp_path / "preprocessor_config.json").write_text('{"size": 8}')
    assert read_preprocessor(model(source=str(tmp_path))).apply(image(64, 64)).shape == (3, 8, 8)


def test_a_directory_without_the_file_says_so_or_has_it_in_the_options(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"neither a file preprocessor_config.json nor an option"):
        read_preprocessor(model(source=str(tmp_path)))
    plain = model(source=str(tmp_path), options={"preprocessor": {"size": 32, "do_normalize": False}})
    assert read_preprocessor(plain).apply(image(64, 64)).shape == (3, 32, 32)


def model(**fields: Any) -> Model:
    names = {"name": "toy", "title": "A toy", "runner": "fake", "processor": "any", "revision": "1"}
    return Model(**{**names, **fields})
