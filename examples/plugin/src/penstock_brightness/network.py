"""Write the model's directory: `python -m penstock_brightness.network FOLDER`.

Export a network of your own the same way: `torch.export`, and a `penstock.toml` that names inputs and outputs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

DESCRIPTION = """\
[inputs.pixels]
shape = ["bands=3", "H", "W"]
[outputs.luminance]
"""
#: Weights of linear red, green and blue (ITU-R BT.709).
WEIGHTS = (0.2126, 0.7152, 0.0722)


class Luminance(nn.Module):
    """The weighted sum of the colours: (N, 3, H, W) to (N, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(WEIGHTS))

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the luminance."""
        return torch.einsum("nchw,c->nhw", pixels, self.weights)


def write(folder: Path) -> None:
    """Write `program.pt2` and `penstock.toml` into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    auto = torch.export.Dim.AUTO
    example = (torch.zeros(2, 3, 8, 8),)
    program = torch.export.export(Luminance().eval(), example, dynamic_shapes={"pixels": {0: auto, 2: auto, 3: auto}})
    torch.export.save(program, folder / "program.pt2")
    (folder / "penstock.toml").write_text(DESCRIPTION)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
