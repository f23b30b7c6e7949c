"""The models that receive the corpus: their answers tell what reached the network."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from torch import Tensor, nn

from tests.acceptance.test_real_scenes import ONE_BAND
from tests.corpus.texts import SPECIAL
from tests.support.hub import a_whisper

#: Limits of one scene or image.
MAX_PIXELS = 20_000_000
#: Limits of one text.
MAX_TOKENS = 4096
_IDS = 256 + len(SPECIAL)

CATALOGUE = """
[models.listener]
title = "What a network of chance hears, two seconds at a time"
runner = "transformers"
processor = "speech-recognition"
source = "listener"
revision = "1"
limits = {{ max_bytes = 30_000_000, max_seconds = 60 }}

[models.one-band.limits]
max_pixels = {pixels}

[models.thumbnail]
title = "The mean colours of a picture's quarters, from 0 to 1: reds, greens, blues"
runner = "torch"
processor = "image-embedding"
source = "thumbnail"
revision = "1"
files = {{ "program.pt2" = "{thumbnail}" }}
limits = {{ max_pixels = {pixels}, max_bytes = 30_000_000 }}

[models.thumbnail.options.preprocessor]
size = {{ height = 8, width = 8 }}
do_normalize = false

[models.letters]
title = "How often each token occurs in a text"
runner = "torch"
processor = "text-embedding"
source = "letters"
revision = "1"
files = {{ "program.pt2" = "{letters}" }}
limits = {{ max_bytes = 2_000_000, max_items = 100 }}
"""


class Thumbnail(nn.Module):
    """(N, 3, 8, 8) to (N, 12)."""

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the mean of each quarter, colour by colour."""
        return torch.nn.functional.avg_pool2d(pixels, 4).flatten(1)


class Letters(nn.Module):
    """(N, tokens) to (N, ids)."""

    def forward(self, ids: Tensor) -> Tensor:
        """Count each id."""
        return torch.nn.functional.one_hot(ids, _IDS).sum(dim=1).float()


def write_models(folder: Path) -> Path:
    """Write the models' directories and the catalogue that names them; return the catalogue."""
    pixels = _program(folder / "thumbnail", Thumbnail(), torch.zeros(2, 3, 8, 8), "pixels", '["c=3", "h=8", "w=8"]')
    ids = torch.zeros(2, 5, dtype=torch.int64)
    letters = _program(folder / "letters", Letters(), ids, "input_ids", '["tokens"]', dtype="int64", free=(0, 1))
    (folder / "letters" / "config.json").write_text(json.dumps({"max_position_embeddings": MAX_TOKENS}))
    _tokenizer().save(str(folder / "letters" / "tokenizer.json"))
    a_whisper(folder / "listener")
    catalogue = folder / "models.toml"
    catalogue.write_text(ONE_BAND + CATALOGUE.format(pixels=MAX_PIXELS, thumbnail=pixels, letters=letters))
    return catalogue


def _program(
    folder: Path, module: nn.Module, example: Tensor, name: str, shape: str, *, dtype: str = "float32",
    free: tuple[int, ...] = (0,),
) -> str:  # fmt: skip
    """Export a module of one input; return the file's sha256."""
    folder.mkdir(parents=True)
    [parameter] = ("pixels",) if name == "pixels" else ("ids",)
    dynamic = {parameter: dict.fromkeys(free, torch.export.Dim.AUTO)}
    torch.export.save(torch.export.export(module.eval(), (example,), dynamic_shapes=dynamic), folder / "program.pt2")
    (folder / "penstock.toml").write_text(f'[inputs.{name}]\ndtype = "{dtype}"\nshape = {shape}\n[outputs.embedding]\n')
    return sha256((folder / "program.pt2").read_bytes()).hexdigest()


def _tokenizer() -> Tokenizer:
    """Return a tokenizer of bytes, with a special token at either end of a text and others in its vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    ends = [(name, tokenizer.token_to_id(name)) for name in SPECIAL[:2]]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=None, special_tokens=ends)
    return tokenizer
