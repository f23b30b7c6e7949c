from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.numbers import as_floats
from penstock.workers.engine.base import Runner
from penstock.workers.engine.torch.runner import load_torch
from tests.support.numbers import numbers_prompt

DESCRIPTION = """
multiples = { H = 4, W = 4 }
[inputs.pixels]
shape = ["bands=3", "H", "W"]
[inputs.when]
dtype = "int64"
shape = [2]
[outputs.probability]
reduce = "softmax"
"""


class Toy(nn.Module):
    """Four classes of an image, shifted by a date."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, pixels: Tensor, when: Tensor) -> Tensor:
        return torch.as_tensor(self.convolution(pixels)) + when.float().sum(dim=1)[:, None, None, None]


class Named(Toy):
    """The same, as a dictionary with more than anyone asked for."""

    def forward(self, pixels: Tensor, when: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"more": when, "probability": super().forward(pixels, when)}


class Pair(Toy):
    """The same, with something behind it."""

    def forward(self, pixels: Tensor, when: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(pixels, when), when


def export(network: nn.Module, folder: Path, *, batch: int | None = None) -> str:
    """Save a network as an exported program of any batch or one; return its hash."""
    auto = torch.export.Dim.AUTO
    sides: dict[int, Any] = {2: auto, 3: auto}
    shapes = {"pixels": {0: auto, **sides} if batch is None else sides, "when": {0: auto} if batch is None else None}
    size = batch or 2
    example = torch.zeros(size, 3, 8, 8), torch.zeros(size, 2, dtype=torch.int64)
    path = folder / "program.pt2"
    torch.export.save(torch.export.export(network.eval(), example, dynamic_shapes=shapes), path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def a_directory(folder: Path, network: nn.Module | None = None, description: str = DESCRIPTION) -> Model:
    """Make a directory with a program and return its model."""
    digest = export(network or Toy(), folder)
    (folder / "penstock.toml").write_text(description)
    return a_model(folder, files={"program.pt2": digest})


def a_model(folder: Path, **fields: Any) -> Model:
    common = {"title": "M", "runner": "torch", "processor": "none", "revision": "1", "device": "cpu"}
    return Model(name="toy", source=str(folder), **{**common, **fields})


def a_prompt(height: int = 8, width: int = 12) -> Prompt:
    noise = np.random.default_rng(3).normal(size=(3, height, width))
    return Prompt({"pixels": noise.astype(np.float32), "when": np.array([1, 2])})


def run(runner: Runner, prompt: Prompt) -> Output:
    (done,) = runner.step([runner.admit(prompt)])
    output: Output = done.output  # type: ignore[union-attr]
    return output


@torch.inference_mode()
def expected(prompt: Prompt) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the toy's own scores."""
    scores: np.ndarray[Any, np.dtype[np.float32]] = Toy()(
        *(torch.from_numpy(prompt.data[name])[None] for name in ("pixels", "when"))
    )[0].numpy()
    return scores


@pytest.mark.parametrize("network", [Toy(), Named(), Pair()])
def test_an_exported_program_takes_and_makes_what_its_directory_says(tmp_path: Path, network: nn.Module) -> None:
    prompt = a_prompt()
    with closing(load_torch(a_directory(tmp_path, network))) as runner:
        assert runner.memory_bytes == 4 * (4 * 3 * 9 + 4)
        output = run(runner, prompt)
    scores = torch.from_numpy(expected(prompt)).softmax(dim=0).numpy()
    assert list(output.data) == ["probability"]
    assert (output.data["probability"].shape, output.data["probability"].dtype) == ((4, 8, 12), np.float32)
    np.testing.assert_allclose(output.data["probability"], scores, atol=1e-6)


@pytest.mark.parametrize(("reduce", "dtype"), [("none", np.float32), ("argmax", np.uint8)])
def test_outputs_are_reduced_as_the_directory_says(tmp_path: Path, reduce: str, dtype: Any) -> None:
    prompt = a_prompt()
    with closing(load_torch(a_directory(tmp_path, description=DESCRIPTION.replace("softmax", reduce)))) as runner:
        found = run(runner, prompt).data["probability"]
    scores = expected(prompt)
    assert found.dtype == dtype
    if reduce == "argmax":
        assert np.array_equal(found, scores.argmax(axis=0))
    else:
        np.testing.assert_allclose(found, scores, atol=1e-6)


def test_several_prompts_share_a_step(tmp_path: Path) -> None:
    with closing(load_torch(a_directory(tmp_path))) as runner:
        other = Prompt({**a_prompt().data, "when": np.array([5, 5])})
        together = runner.step([runner.admit(a_prompt()), runner.admit(other)])
        for done, prompt in zip(together, (a_prompt(), other), strict=True):
            alone = run(runner, prompt).data["probability"]
            np.testing.assert_allclose(done.output.data["probability"], alone, atol=1e-6)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"pixels": None}, r"takes `pixels`, float32 \(bands=3, H, W\), not NoneType"),
        ({"pixels": np.zeros((3, 8, 8))}, r"takes `pixels`, float32 \(bands=3, H, W\), not float64 \(3, 8, 8\)"),
        ({"pixels": np.zeros((3, 8), np.float32)}, r"not float32 \(3, 8\)"),
        ({"pixels": np.zeros((4, 8, 8), np.float32)}, r"not \(4, 8, 8\)"),
        ({"pixels": np.zeros((3, 8, 6), np.float32)}, r"W a multiple of 4, not \(3, 8, 6\)"),
        ({"pixels": np.zeros((3, 0, 8), np.float32)}, r"not \(3, 0, 8\)"),
        ({"when": np.zeros(3, np.int64)}, r"takes `when`, int64 \(2\).*, not \(3,\)"),
    ],
)
def test_a_prompt_that_does_not_fit_is_told_what_is_expected(
    tmp_path: Path, changed: Mapping[str, Any], sentence: str
) -> None:
    kind = ProcessorFailed if re.search("not (float|None)", sentence) else InvalidInput
    with closing(load_torch(a_directory(tmp_path))) as runner, pytest.raises(kind, match=sentence):
        runner.admit(Prompt({**a_prompt().data, **changed}))


def test_a_name_is_one_number_in_all_inputs(tmp_path: Path) -> None:
    twins = '[inputs.a]\nshape = ["N"]\n[inputs.b]\nshape = ["N"]\n[outputs.sum]\n'

    class Sum(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    auto = torch.export.Dim.AUTO
    shapes = {"a": {0: auto, 1: auto}, "b": {0: auto, 1: auto}}
    program = torch.export.export(Sum(), (torch.zeros(2, 3), torch.zeros(2, 3)), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "program.pt2")
    (tmp_path / "penstock.toml").write_text(twins)
    digest = hashlib.sha256((tmp_path / "program.pt2").read_bytes()).hexdigest()
    with closing(load_torch(a_model(tmp_path, files={"program.pt2": digest}))) as runner:
        four = np.arange(4, dtype=np.float32)
        assert run(runner, Prompt({"a": four, "b": four})).data["sum"].tolist() == [0, 2, 4, 6]
        with pytest.raises(InvalidInput, match=r"takes `b`, float32 \(N\), not \(5,\)"):
            runner.admit(Prompt({"a": four, "b": np.zeros(5, np.float32)}))


def test_a_program_for_one_prompt_at_a_time_gets_one_and_for_just_two_is_refused(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(DESCRIPTION)
    digest = export(Toy(), tmp_path, batch=1)
    with closing(load_torch(a_model(tmp_path, files={"program.pt2": digest}, max_batch=8))) as runner:
        assert runner.max_batch == 1
        assert run(runner, a_prompt()).data["probability"].shape == (4, 8, 12)
    digest = export(Toy(), tmp_path, batch=2)
    with pytest.raises(ModelUnavailable, match="exported for batches of exactly 2: export it with a dynamic first"):
        load_torch(a_model(tmp_path, files={"program.pt2": digest}))


def test_a_program_that_nobody_vouches_for_is_not_read(tmp_path: Path) -> None:
    model = a_directory(tmp_path)
    digest = model.files["program.pt2"]
    with pytest.raises(ModelUnavailable, match=f'can run code: .* files = {{ "program.pt2" = "{digest}" }}'):
        load_torch(a_model(tmp_path))
    with pytest.raises(ModelUnavailable, match=f"'program.pt2' of model 'toy' is not the catalogue's: .*{digest}"):
        load_torch(a_model(tmp_path, files={"program.pt2": "0" * 64}))


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        (None, "lacks the file penstock.toml: No such file"),
        ("inputs = 1", "penstock.toml of model 'toy' is not valid"),
        ("[", "penstock.toml of model 'toy' is not valid"),
        ("surprise = 1", "penstock.toml of model 'toy' is not valid"),
        ('[inputs.a]\nshape = ["H=0"]\n[outputs.b]', "penstock.toml of model 'toy' is not valid"),
        ('[inputs.a]\nshape = ["H"]', "names no inputs or no outputs"),
        ('[inputs.a]\nshape = ["H"]\n[outputs.b]', "takes 2 inputs, penstock.toml names 1"),
        ('network = "unet"', "there is no network 'unet'; known networks: csmask-unet"),
        ('network = "csmask-unet"', "lacks the file model.safetensors"),
    ],
)
def test_a_directory_that_is_not_right_says_why(tmp_path: Path, description: str | None, sentence: str) -> None:
    model = a_directory(tmp_path)
    (tmp_path / "penstock.toml").unlink()
    if description is not None:
        (tmp_path / "penstock.toml").write_text(description)
    with pytest.raises(ModelUnavailable, match=sentence):
        load_torch(model)


def test_a_directory_without_a_program_or_with_a_damaged_one_says_so(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(DESCRIPTION)
    with pytest.raises(ModelUnavailable, match=r"names no `network` .* and lacks the file program.pt2"):
        load_torch(a_model(tmp_path))
    export(Toy(), tmp_path)
    whole = (tmp_path / "program.pt2").read_bytes()
    for damaged, sentence in [
        (b"nothing", "is not an exported program"),
        (whole.replace(b"aten", b"gone"), "cannot be read"),
    ]:
        (tmp_path / "program.pt2").write_bytes(damaged)
        files = {"program.pt2": hashlib.sha256(damaged).hexdigest()}
        with pytest.raises(ModelUnavailable, match=sentence):
            load_torch(a_model(tmp_path, files=files))


def test_a_network_we_know_is_read_from_safetensors_and_has_the_same_bits(tmp_path: Path) -> None:
    published = a_model(Path("unused")).model_copy(
        update={"source": "package:ukis_csmask/model_6b.onnx", "options": {"network": "csmask-unet"}}
    )
    prompt = Prompt({"pixels": np.random.default_rng(1).normal(size=(6, 32, 48)).astype(np.float32)})
    with closing(load_torch(published)) as runner:
        whole = run(runner, prompt).data["probability"]
        weights = {name: tensor.contiguous() for name, tensor in runner._module.state_dict().items()}  # type: ignore[attr-defined]
        save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "penstock.toml").write_text('network = "csmask-unet"')
    with closing(load_torch(a_model(tmp_path))) as runner:
        assert np.array_equal(run(runner, prompt).data["probability"], whole)
    for content, sentence in [(b"nothing", "model.safetensors of model 'toy' is damaged"), (None, "another network's")]:
        if content is None:
            save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
        else:
            (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ModelUnavailable, match=sentence):
            load_torch(a_model(tmp_path))


def test_a_program_normalises_a_file_s_own_numbers(tmp_path: Path) -> None:
    prompt = numbers_prompt(bands=3, side=8, when=np.array([1, 2]))
    with closing(load_torch(a_directory(tmp_path))) as runner:
        ours, before = run(runner, prompt), run(runner, as_floats(prompt))
    assert ours.data["probability"].tobytes() == before.data["probability"].tobytes()
