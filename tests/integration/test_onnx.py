"""The runner `onnx`: what its files may be, how names and axes fit, and what is said where they do not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from structlog.testing import capture_logs

from penstock.errors import InvalidInput, ModelUnavailable, PenstockError, ProcessorFailed
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Runner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.onnx.session import warn_of_idle_gpu
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import sha256_of
from tests.support.hub import an_image, finish
from tests.support.onnx_files import a_model, conv, conv_weight, external, linear, load, save, value


def answer(runner: Runner, *arrays: Any, **data: Any) -> list[Output]:
    return finish(runner, *(Prompt({"pixels": array, **data}) for array in arrays))


def theirs(path: Path, array: Any, *, stride: int = 1) -> Any:
    """Return what torch makes of the same weights."""
    weight = torch.from_numpy(np.array(conv_weight(path)))
    return torch.nn.functional.conv2d(torch.from_numpy(array)[None], weight, padding=1, stride=stride)[0].numpy()


def test_a_dynamic_batch_axis_takes_several_prompts(tmp_path: Path) -> None:
    path = conv(tmp_path / "net.onnx")
    with closing(load(path)) as runner:
        assert runner.max_batch == 4
        images = [an_image(6, 20, 30, seed=seed) for seed in range(3)]
        for image, output in zip(images, answer(runner, *images), strict=True):
            np.testing.assert_allclose(output.data["logits"], theirs(path, image), atol=1e-4)


def test_a_batch_axis_of_one_takes_them_one_by_one(tmp_path: Path) -> None:
    model = a_model(conv(tmp_path / "net.onnx", batch=1), max_batch=8)
    sizes: list[int] = []
    with closing(BatchingEngine(Runners.installed())) as engine:
        prompts = iter([Prompt({"pixels": an_image(6, 16, 16, seed=seed)}) for seed in range(3)])
        made = list(engine.run(model, prompts, check=lambda: None, on_batch=lambda prompts, _: sizes.append(prompts)))
    assert (len(made), sizes) == (3, [1, 1, 1])


def test_channels_last_and_other_names_are_told_in_the_record(tmp_path: Path) -> None:
    weight = np.random.default_rng(2).normal(size=(5, 6, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Transpose", ["input_1"], ["x"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["x", "w"], ["y"]),
        helper.make_node("Transpose", ["y"], ["out"], perm=[0, 2, 3, 1]),
    ]
    shape = ("n", 16, 24, 6), ("n", 16, 24, 5)
    path = save(tmp_path / "n.onnx", nodes, [value("input_1", shape[0])], [value("out", shape[1])], {"w": weight})
    inputs = {"pixels": {"name": "input_1", "layout": "NHWC"}}
    outputs = {"probability": {"name": "out", "layout": "NHWC", "reduce": "softmax"}}
    runner = load(path, options={"onnx": {"inputs": inputs, "outputs": outputs}})
    image = an_image(6, 16, 24)
    [output] = answer(runner, image)
    scores = torch.from_numpy(np.einsum("oc,chw->ohw", weight[:, :, 0, 0], image))
    np.testing.assert_allclose(output.data["probability"], scores.softmax(dim=0).numpy(), atol=1e-6)
    with pytest.raises(InvalidInput, match=r"takes `pixels`, float32 \(6, 16, 24\), not \(6, 24, 16\)"):
        runner.admit(Prompt({"pixels": an_image(6, 24, 16)}))


@pytest.mark.parametrize("size", [(17, 23), (5, 6), (100, 9)])
def test_answers_are_resized_as_torch_does(tmp_path: Path, size: tuple[int, int]) -> None:
    path = conv(tmp_path / "net.onnx", stride=2)
    options = {"onnx": {"outputs": {"classes": {"name": "logits", "resize": True, "reduce": "argmax"}}}}
    image = an_image(6, 20, 30)
    [output] = answer(load(path, options=options), image, size=list(size))
    scores = torch.from_numpy(theirs(path, image, stride=2))[None]
    expected = torch.nn.functional.interpolate(scores, size=size, mode="bilinear")[0].argmax(dim=0).numpy()
    assert output.data["classes"].dtype == np.uint8
    assert (output.data["classes"] == expected).mean() > 0.999


def test_an_answer_without_a_size_is_resized_to_its_pixels(tmp_path: Path) -> None:
    options = {"onnx": {"outputs": {"probability": {"name": "logits", "resize": True, "reduce": "softmax"}}}}
    [output] = answer(load(conv(tmp_path / "net.onnx", stride=2), options=options), an_image(6, 20, 30))
    assert output.data["probability"].shape == (5, 20, 30)
    np.testing.assert_allclose(output.data["probability"].sum(axis=0), 1, atol=1e-5)


def test_float16_files_take_and_give_float32(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["pixels", "two"], ["double"])]
    sides = ("n", "h", "w")
    ports = [value("pixels", sides, TensorProto.FLOAT16)], [value("double", sides, TensorProto.FLOAT16)]
    path = save(tmp_path / "half.onnx", nodes, *ports, {"two": np.array(2, np.float16)})
    [output] = answer(load(path), np.full((4, 4), 1.5, np.float32))
    assert output.data["double"].dtype == np.float32
    assert (output.data["double"] == 3).all()


def test_a_table_brings_its_own_batch_axis(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)
    path = linear(tmp_path / "net.onnx", weight, np.zeros(2, np.float32))
    runner = load(path, options={"onnx": {"rows": True}})
    features = an_image(7, 3)
    [output] = finish(runner, Prompt({"features": features}))
    np.testing.assert_allclose(output.data["values"], features @ weight, atol=1e-5)
    with pytest.raises(InvalidInput, match=r"float32 \(any, 3\), not \(7, 4\)"):
        runner.admit(Prompt({"features": an_image(7, 4)}))


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        ({}, ProcessorFailed, r"takes `pixels`, float32 \(6, h, w\), not NoneType"),
        ({"pixels": np.zeros((6, 8, 8))}, ProcessorFailed, "not float64"),
        ({"pixels": np.zeros((8, 8), np.float32)}, ProcessorFailed, r"not float32 \(8, 8\)"),
        ({"pixels": np.zeros((5, 8, 8), np.float32)}, InvalidInput, r"not \(5, 8, 8\)"),
        ({"pixels": np.zeros((6, 0, 8), np.float32)}, InvalidInput, r"not \(6, 0, 8\)"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, data: Any, kind: type[PenstockError], said: str) -> None:
    runner = load(conv(tmp_path / "net.onnx"))
    with pytest.raises(kind, match=said):
        runner.admit(Prompt(data))


def test_a_forward_pass_that_fails_leaves_the_model_well(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["pixels", "shape"], ["flat"])]
    ports = [value("pixels", ("n", "w"))], [value("flat", ("n", 4))]
    path = save(tmp_path / "net.onnx", nodes, *ports, {"shape": np.array([-1, 4], np.int64)})
    runner = load(path)
    with pytest.raises(ProcessorFailed, match=r"the network failed on its input: .*reshape"):
        answer(runner, np.zeros(5, np.float32))
    [output] = answer(runner, np.arange(4, dtype=np.float32))
    assert output.data["flat"].tolist() == [0, 1, 2, 3]


# Files


def test_weights_beside_the_file_are_taken(tmp_path: Path) -> None:
    path = external(tmp_path / "net", "weights.bin")
    options = {"onnx": {"file": "model.onnx"}}
    image = an_image(6, 8, 8)
    [expected] = answer(load(conv(tmp_path / "whole.onnx")), image)
    for pins in ({}, {name: sha256_of(tmp_path / "net" / name) for name in ("model.onnx", "weights.bin")}):
        runner = load(path.parent, options=options, files=pins)
        assert runner.memory_bytes > 6 * 5 * 9 * 4
        [output] = answer(runner, image)
        assert np.array_equal(output.data["logits"], expected.data["logits"])


@pytest.mark.parametrize("place", ["../secret.bin", "/etc/passwd", "inner/../../secret.bin", "link.bin"])
def test_weights_outside_of_the_directory_are_refused(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "net"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(bytes(6 * 5 * 9 * 4))
    path = external(folder, place)
    if place == "link.bin":
        (folder / place).unlink()
        (folder / place).symlink_to(tmp_path / "secret.bin")
    for check in (Runners.installed().load, Runners.installed().check):
        with pytest.raises(ModelUnavailable, match="outside of its directory"):
            check(a_model(path.parent))  # type: ignore[operator]


def test_weights_in_the_hubs_cache_are_taken(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    external(snapshot, "model.onnx_data")
    blobs.mkdir()
    for path in list(snapshot.iterdir()):
        path.rename(blobs / f"of-{path.name}")
        path.symlink_to(f"../blobs/of-{path.name}")
    [output] = answer(load(snapshot), an_image(6, 8, 8))
    [expected] = answer(load(conv(tmp_path / "whole.onnx")), an_image(6, 8, 8))
    assert np.array_equal(output.data["logits"], expected.data["logits"])


def test_weights_that_are_hidden_in_a_branch_are_found(tmp_path: Path) -> None:
    away = helper.make_tensor("w", TensorProto.FLOAT, [1], b"\0\0\0\0", raw=True)
    away.ClearField("raw_data")
    away.data_location = TensorProto.EXTERNAL
    away.external_data.add(key="location", value="../secret.bin")
    branch = helper.make_graph([helper.make_node("Constant", [], ["c"], value=away)], "branch", [], [value("c", [1])])
    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)]
    path = save(
        tmp_path / "net" / "model.onnx", nodes, [value("flag", ["n"], TensorProto.BOOL)], [value("y", ["n"])], {}
    )
    with pytest.raises(ModelUnavailable, match="outside of its directory"):
        load(path.parent)


def test_one_file_has_its_weights_inside(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="let `source` name the directory"):
        load(external(tmp_path, "weights.bin"))


def test_what_is_pinned_is_checked(tmp_path: Path) -> None:
    path = external(tmp_path / "net", "weights.bin")
    pins = {"model.onnx": sha256_of(path)}
    with pytest.raises(ModelUnavailable, match=r"none of weights\.bin"):
        load(path.parent, files=pins)
    with pytest.raises(ModelUnavailable, match=r"none of model\.onnx"):
        load(path.parent, files={"weights.bin": sha256_of(tmp_path / "net" / "weights.bin")})
    with pytest.raises(ModelUnavailable, match="is not the catalogue's"):
        load(conv(tmp_path / "one.onnx"), sha256="0" * 64)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "not an ONNX file"), (b"\x08\x07garbage" * 9, "not an ONNX file"), (None, "does not exist")],
)
def test_a_broken_or_missing_file_is_said(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "net.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelUnavailable, match=said):
        load(path)


def test_a_directory_without_the_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"lacks the file model\.onnx"):
        load(tmp_path)


def test_an_unknown_operator_or_opset_is_said(tmp_path: Path) -> None:
    ports = [value("pixels", ("n", "w"))], [value("y", ("n", "w"))]
    strange = helper.make_node("Frobnicate", ["pixels"], ["y"], domain="org.example")
    with pytest.raises(ModelUnavailable, match=r"onnxruntime cannot load op\.onnx.*(Frobnicate|org\.example)"):
        load(save(tmp_path / "op.onnx", [strange], *ports, {}))
    plain = helper.make_node("Identity", ["pixels"], ["y"])
    with pytest.raises(ModelUnavailable, match=r"cannot load set\.onnx.*[Oo]pset"):
        load(save(tmp_path / "set.onnx", [plain], *ports, {}, opset=999))


def test_a_fixed_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="batches of exactly 3: export it with a dynamic first axis"):
        load(conv(tmp_path / "net.onnx", batch=3))
    path = linear(tmp_path / "rows.onnx", np.zeros((3, 1), np.float32), np.zeros(1, np.float32), rows=1)
    with pytest.raises(ModelUnavailable, match="batches of exactly 1"):
        load(path, options={"onnx": {"rows": True}})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"inputs": {"pixels": {"name": "image"}}}, "no input 'image'; known inputs: pixels"),
        ({"outputs": {"mask": {}}}, "no output 'mask'; known outputs: logits"),
        ({"inputs": {"pixels": {"layout": "HWC"}}}, r"onnx\.inputs\.pixels\.layout"),
        ({"file": "../net.onnx"}, "leads out"),
        ({"rows": True, "inputs": {"pixels": {"layout": "NHWC"}}}, "rows are no images"),
        ({"speed": 9}, r"onnx\.speed"),
    ],
)
def test_wrong_options_are_said(tmp_path: Path, table: Any, said: str) -> None:
    with pytest.raises(ModelUnavailable, match=said):
        load(conv(tmp_path / "net.onnx"), options={"onnx": table})


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_network_that_leaves_a_gpu_idle_says_so(tmp_path: Path, has_gpu: bool) -> None:
    if has_gpu:
        (tmp_path / "nvidiactl").touch()
    with capture_logs() as logged:
        warn_of_idle_gpu(a_model(tmp_path / "net.onnx"), tmp_path / "nvidiactl")
    assert [entry["event"] for entry in logged] == ["onnx.gpu_idle"] * has_gpu
    assert all("install onnxruntime-gpu" in entry["remedy"] for entry in logged)


def test_a_device_that_is_not_there_is_said(tmp_path: Path) -> None:
    path = conv(tmp_path / "net.onnx")
    with pytest.raises(ModelUnavailable, match="'tpu', which onnxruntime lacks"):
        load(path, device="tpu")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(ModelUnavailable, match="pip install onnxruntime-gpu"):
            load(path, device="cuda")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_any_size_lifts_the_sizes_that_the_file_declares(tmp_path: Path, layout: str) -> None:
    path = _sized(tmp_path / "net.onnx", layout)
    names = {
        "inputs": {"pixels": {"name": "in", "layout": layout}},
        "outputs": {"logits": {"name": "out", "layout": layout}},
    }
    image = an_image(6, 20, 30)
    with closing(load(path, options={"onnx": names})) as runner, pytest.raises(InvalidInput, match="16, 16"):
        answer(runner, image)
    with closing(load(path, options={"onnx": {**names, "any_size": True}})) as runner:
        (output,) = answer(runner, image)
    np.testing.assert_allclose(output.data["logits"], theirs(path, image), atol=1e-4)


def _sized(path: Path, layout: str) -> Path:
    """Save a convolution of 3 x 3 px whose file declares 16 x 16 px."""
    weight = np.random.default_rng(2).normal(size=(5, 6, 3, 3)).astype(np.float32)
    if layout == "NCHW":
        nodes = [helper.make_node("Conv", ["in", "w"], ["out"], pads=[1, 1, 1, 1])]
        return save(path, nodes, [value("in", ("n", 6, 16, 16))], [value("out", ("n", 5, 16, 16))], {"w": weight})
    nodes = [
        helper.make_node("Transpose", ["in"], ["x"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["y"], ["out"], perm=[0, 2, 3, 1]),
    ]
    return save(path, nodes, [value("in", ("n", 16, 16, 6))], [value("out", ("n", 16, 16, 5))], {"w": weight})


def test_any_size_needs_weights_in_one_file_and_images(tmp_path: Path) -> None:
    external(tmp_path, "weights.bin")
    with pytest.raises(ModelUnavailable, match=r"any_size needs all weights in model\.onnx"):
        load(tmp_path, options={"onnx": {"any_size": True}})
    with pytest.raises(ModelUnavailable, match="rows are no images"):
        load(conv(tmp_path / "net.onnx"), options={"onnx": {"any_size": True, "rows": True}})
