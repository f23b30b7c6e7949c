"""Networks of `benchmarks.gpu` in realistic sizes, with random weights except for csmask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.scenery import export, record
from penstock.catalogue.records import read_catalogue
from penstock.models import Model

#: Networks for scenes and tiles.
SCENES = ("csmask-bfloat16", "vit-bfloat16")
IMAGE_MODELS = ("vit-base", "resnet-50")
#: Window of csmask's tiles in pixels: 576 px plus twice the halo.
TILE_PX = 768
_CLASSES = 5
_VIT_CUT = "tile_px = 768\nhalo_px = 0\nstride_px = 16\n"

IMAGE = """
[models.{name}]
title = "{name}"
runner = "transformers"
processor = "image-classification"
source = "{source}"
revision = "1"
dtype = "bfloat16"
max_batch = 32
"""

TEXT = """
[models.llama]
title = "llama"
runner = "transformers"
processor = "text-generation"
source = "{source}"
revision = "1"
dtype = "{dtype}"
max_batch = 32
"""

#: Precision of texts.
TEXT_DTYPE = "bfloat16" if torch.cuda.is_available() else "float32"


class Vit(nn.Module):
    """A vision transformer with patches of 16 px and a linear head: 303 million parameters by default."""

    def __init__(self, *, width: int = 1024, depth: int = 24, heads: int = 16) -> None:
        super().__init__()
        self.embed = nn.Conv2d(6, width, 16, 16)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.head = nn.ConvTranspose2d(width, _CLASSES, 16, 16)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return scores (N, classes, H, W)."""
        patches = self.embed(pixels)
        tokens = patches.flatten(2).transpose(1, 2)
        for layer in self.layers:
            tokens = layer(tokens)
        scores: Tensor = self.head(tokens.transpose(1, 2).reshape(patches.shape))
        return scores


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the output tokens."""
        parts = self.into(self.first(tokens)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        tokens = tokens + self.out(mixed.transpose(1, 2).flatten(2))
        return tokens + self.narrow(nn.functional.gelu(self.wide(self.second(tokens))))


def write_catalogue(path: Path, folder: Path, *, small: bool) -> None:
    """Write the models' records and their weights."""
    torch.manual_seed(1)
    vit = export(Vit(width=64, depth=2, heads=4) if small else Vit(), folder, reduce="softmax")
    place = "auto" if torch.cuda.is_available() else "cpu"
    made = record("vit-bfloat16", runner="torch", source=vit, max_batch=4, cut=_VIT_CUT, classes=_CLASSES)
    records = [made.replace('device = "cpu"', f'device = "{place}"\ndtype = "bfloat16"'), _csmask(place)]
    for name, make in (("vit-base", _vit_base), ("resnet-50", _resnet_50)):
        records.append(IMAGE.format(name=name, source=_saved(make(small), folder / name)))
    records.append(TEXT.format(source=_saved(_llama(small), folder / "llama"), dtype=TEXT_DTYPE))
    path.write_text("".join(records))


def weights(model: Model) -> int:
    """Return the size of a directory's weights in bytes."""
    return sum(file.stat().st_size for file in Path(model.source).glob("*.safetensors"))


def _csmask(place: str) -> str:
    """Return the included record with another name and precision."""
    shipped = (Path(__file__).parents[1] / "src" / "penstock" / "catalogue" / "models.toml").read_text()
    begin = shipped.index("[models.csmask]")
    rest = shipped[begin + 1 :]
    end = rest.find("\n[models.", rest.index("[models.csmask.options]") + 1)
    made = "[" + (rest if end < 0 else rest[:end]) + "\n"
    made = made.replace("models.csmask", "models.csmask-bfloat16").replace(
        'runner = "torch"', f'runner = "torch"\ndtype = "bfloat16"\ndevice = "{place}"'
    )
    assert read_catalogue()["csmask"].runner == "torch"  # noqa: S101  (what was replaced was there)
    return "\n".join(line for line in made.splitlines() if not line.startswith("aliases")) + "\n"


def _saved(network: Any, folder: Path) -> Path:
    network.eval().save_pretrained(folder)
    recipe = '{"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224}}'
    (folder / "preprocessor_config.json").write_text(recipe)
    return folder


def _vit_base(small: bool) -> Any:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4} if small else {}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, num_labels=1000))


def _resnet_50(small: bool) -> Any:
    sizes: dict[str, Any] = {"depths": [1, 1, 1, 1]} if small else {}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes, num_labels=1000))


def _llama(small: bool) -> Any:
    """Return a model of about 1 GB in bfloat16, on a CPU one of 90 million parameters."""
    width, layers = (64, 2) if small else (1536, 16) if torch.cuda.is_available() else (768, 12)
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=8 * width // 3, num_hidden_layers=layers, num_attention_heads=width // 16,
        vocab_size=32_000 if torch.cuda.is_available() else 4_000, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(getattr(torch, TEXT_DTYPE))
