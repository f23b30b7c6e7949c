"""Recipes for networks of one's own, with models that the real libraries made."""

from __future__ import annotations

import re
import subprocess
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow.parquet
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image

import penstock
from penstock.catalogue.environments import Environments
from penstock.catalogue.script import names_of, read_script
from penstock.errors import ModelUnavailable
from penstock.local.library import Result
from tests.support.doc_pages import ROOT, blocks
from tests.support.hub import a_bert_classifier

pytestmark = [pytest.mark.slow, pytest.mark.breadth, pytest.mark.timeout(900)]
RECIPES = {block.title: block.code for block in blocks("own-networks.md")}
ROWS = "np.array([[3.5, 8], [1, 2], [0, 6], [6, 1]] * 20)"


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs a recipe, after its library wrote the model in the recipe's environment."""
    monkeypatch.setenv("PENSTOCK_MODEL_CACHE", str(tmp_path / "cache"))

    def run(name: str, made_by: str = "", **given: Any) -> Result:
        path = tmp_path / name
        path.write_text(RECIPES[name])
        if made_by:
            try:
                python = Environments(tmp_path / "cache" / "environments").build(read_script(path))
            except ModelUnavailable as error:
                pytest.skip(f"no index of packages can be reached: {error.detail}")
            subprocess.run([python, "-c", f"import numpy as np\n{made_by}"], check=True, cwd=tmp_path, timeout=300)
        with penstock.Engine(catalogue=[path]) as engine:
            [model] = names_of(path)
            return engine.run(model, out=tmp_path / "out", **given)

    return run


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (40, 80, 3), np.uint8)).save(path)
    return path


def test_torchscript(tmp_path: Path, photo: Path, answer: Callable[..., Result]) -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 3)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # people still have such files
        torch.jit.save(torch.jit.script(net), tmp_path / "net.pt")
    with Image.open(photo) as image:
        pixels = torch.from_numpy(np.asarray(image.resize((64, 64))) / np.float32(255)).permute(2, 0, 1)[None]
    expected = net(pixels).softmax(1)[0]
    [labels] = answer("scripted.py", images=[photo]).data["answers"]
    found = {each["label"]: each["score"] for each in labels["labels"]}
    assert [found[f"class {at}"] for at in range(3)] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_state_dict_with_its_class(tmp_path: Path, answer: Callable[..., Result]) -> None:
    torch.save(
        {"layer.weight": torch.tensor([[2.0, 0.5]]), "layer.bias": torch.tensor([-1.0])}, tmp_path / "trained.pth"
    )
    assert answer("trained.py", rain=3.5, sun=8).data == {"answer": pytest.approx(10)}


def test_a_detector(tmp_path: Path, photo: Path) -> None:
    places = np.zeros((1, 7, 100), np.float32)  # centre, size, and the scores of three classes
    places[0, :, 3] = [210, 370, 220, 540, 0, 0, 0.9]
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["output0"], value=onnx.numpy_helper.from_array(places))],
        "detector",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 640, 640])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 7, 100])],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / "detector.onnx"
    )
    (tmp_path / "boxes.toml").write_text(RECIPES["boxes.toml"])
    with penstock.Engine(catalogue=[tmp_path / "boxes.toml"]) as engine:
        [box] = engine.run("boxes", image=photo).data["objects"]
    assert (box["label"], box["score"]) == ("bird", pytest.approx(0.9))
    assert box["box"] == {"xmin": 12.5, "ymin": 6.25, "xmax": 40.0, "ymax": 40.0}  # the photograph is 80 by 40 pixels


def test_scikit_learn(tmp_path: Path, answer: Callable[..., Result]) -> None:
    (tmp_path / "fields.csv").write_text("plot,rain,sun\nA,6,1\nB,1,2\n")
    made_by = (
        "import skops.io\nfrom sklearn.ensemble import RandomForestClassifier as F\n"
        f"net = F(random_state=1).fit({ROWS}, ['rice', 'oats', 'wheat', 'rice'] * 20)\n"
        "skops.io.dump(net, 'forest.skops')"
    )
    result = answer("forest.py", made_by, table=tmp_path / "fields.csv")
    [file] = result.artifacts.values()
    assert pyarrow.parquet.read_table(file.path).to_pylist() == [
        {"plot": "A", "rain": 6, "sun": 1, "crop": "rice"},
        {"plot": "B", "rain": 1, "sun": 2, "crop": "oats"},
    ]


def test_xgboost(answer: Callable[..., Result]) -> None:
    made_by = (
        f"import xgboost\nrows = {ROWS}\n"
        "xgboost.train({'seed': 1}, xgboost.DMatrix(rows, rows @ [2, 0.5] - 1), 50).save_model('boosted.json')"
    )
    assert answer("boosted.py", made_by, rain=3.5, sun=8).data == {"answer": pytest.approx(10, abs=0.1)}


def test_lightgbm(answer: Callable[..., Result]) -> None:
    made_by = (
        f"import lightgbm\nrows = {ROWS}\nlightgbm.train({{'min_data_in_leaf': 1, 'seed': 1, 'verbose': -1}}, "
        "lightgbm.Dataset(rows, rows @ [2, 0.5] - 1), 200).save_model('leaves.txt')"
    )
    assert answer("leaves.py", made_by, rain=3.5, sun=8).data == {"answer": pytest.approx(10, abs=0.1)}


def test_a_pipeline_of_transformers(tmp_path: Path, answer: Callable[..., Result]) -> None:
    a_bert_classifier(tmp_path / "classifier", labels=3)
    labels = answer("piped.py", text="A pleasant evening.").data["labels"]
    assert len(labels) == 3
    assert sum(each["score"] for each in labels) == pytest.approx(1, abs=1e-4)


#: An environment that has timm, open_clip and a torchvision that can be imported: `make terratorch-env`.
TORCHVISION = ROOT / ".venv-terratorch"


def in_torchvision(name: str, folder: Path, made_by: str) -> Path:
    """Write a recipe to run in that environment, after its library wrote the model."""
    if not TORCHVISION.exists():
        pytest.skip("needs torchvision: make terratorch-env")
    code = re.sub(r"# dependencies = .*", f"# [tool.penstock]\n# environment = '{TORCHVISION}'", RECIPES[name])
    (folder / name).write_text(code.replace("ViT-B-32", "ViT-S-32-alt"))
    words = [TORCHVISION / "bin" / "python", "-c", made_by]
    subprocess.run(words, check=True, cwd=folder, timeout=300)
    return folder / name


def test_timm(tmp_path: Path, photo: Path) -> None:
    made_by = (
        "import timm, torch\nfrom PIL import Image\nfrom safetensors.torch import save_file\ntorch.manual_seed(1)\n"
        "net = timm.create_model('resnet18', num_classes=3).eval()\nsave_file(net.state_dict(), 'leaf.safetensors')\n"
        "look = timm.data.create_transform(**timm.data.resolve_model_data_config(net))\n"
        "print(*net(look(Image.open('photo.png'))[None]).softmax(1)[0].tolist(), file=open('expected', 'w'))"
    )
    with penstock.Engine(catalogue=[in_torchvision("leaf.py", tmp_path, made_by)]) as engine:
        [answer] = engine.run("leaf", images=[photo]).data["answers"]
    expected = map(float, (tmp_path / "expected").read_text().split())
    found = {each["label"]: each["score"] for each in answer["labels"]}
    assert found == {f"class {at}": pytest.approx(score, abs=1e-4) for at, score in enumerate(expected)}


def test_open_clip(tmp_path: Path, photo: Path) -> None:
    made_by = (
        "import open_clip, torch\nfrom PIL import Image\nfrom safetensors.torch import save_file\n"
        "net, _, look = open_clip.create_model_and_transforms('ViT-S-32-alt')\n"
        "save_file(net.state_dict(), 'clip.safetensors')\nnet.eval()\n"
        "seen = net.encode_image(look(Image.open('photo.png'))[None], normalize=True)\n"
        "said = net.encode_text(open_clip.get_tokenizer('ViT-S-32-alt')(['a cat', 'a dog']), normalize=True)\n"
        "print(*(100 * seen @ said.T).softmax(1)[0].tolist(), file=open('expected', 'w'))"
    )
    with penstock.Engine(catalogue=[in_torchvision("said.py", tmp_path, made_by)]) as engine:
        labels = engine.run("said", image=photo, words=["a cat", "a dog"]).data["labels"]
    expected = map(float, (tmp_path / "expected").read_text().split())
    found = {each["label"]: each["score"] for each in labels}
    assert found == dict(zip(("a cat", "a dog"), (pytest.approx(each, abs=1e-3) for each in expected), strict=True))


def test_a_pinned_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.pkl").write_bytes(b"trained")
    for digest, fits in ((sha256(b"trained").hexdigest(), True), ("0" * 64, False)):
        path = tmp_path / f"pinned_{fits}.py"
        path.write_text(
            "import penstock\n@penstock.model\nclass Size:\n    def load(self) -> None:\n"
            f"        self.path = penstock.weights('net.pkl', sha256='{digest}')\n"
            "    def predict(self) -> int:\n        return self.path.stat().st_size\n"
        )
        with penstock.Engine(catalogue=[path]) as engine:
            if fits:
                assert engine.run("size").data == {"answer": 7}
            else:
                with pytest.raises(ModelUnavailable, match="is not the file that was pinned"):
                    engine.run("size")
