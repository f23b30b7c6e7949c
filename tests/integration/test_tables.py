"""Tables in, the same rows with predictions out."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from onnx import TensorProto, helper

from penstock.errors import (
    ConfigError,
    InvalidInput,
    MediaTooLarge,
    MediaUnreadable,
    ModelUnavailable,
    PenstockError,
    ProcessorFailed,
)
from penstock.models import Limits, Model
from penstock.processors.base import Output
from penstock.processors.registry import Registry
from penstock.processors.tables.reading import open_table
from penstock.processors.tables.request import MAX_NAMED_COLUMNS, TabularRequest
from penstock.processors.tables.tabular import Tabular
from penstock.processors.testing import Finished, check_processor
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import sha256_of
from tests.support.onnx_files import a_model, linear, save, value

#: Two columns to one number: 2 a - b + 0.5.
WEIGHT, BIAS = np.array([[2.0], [-1.0]], np.float32), np.array([0.5], np.float32)
COLUMNS = [{"name": "a"}, {"name": "b"}]
PREDICTIONS = [{"output": "values", "columns": ["yield"]}]


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return linear(tmp_path / "net.onnx", WEIGHT, BIAS)


def a_table_model(source: Path, **options: Any) -> Model:
    fields = {"name": options.pop("name", "net"), "limits": options.pop("limits", Limits())}
    common = {"columns": COLUMNS, "predictions": PREDICTIONS, "batch_rows": 4, "onnx": {"rows": True}}
    return a_model(source, processor="tabular", options={**common, **options}, **fields)


def run(engine: BatchingEngine, model: Model, table: Path, **request: Any) -> Finished:
    return check_processor(
        Registry.imported().processor_for(model),
        {"table": "media://table", **request},
        {"media://table": table},
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        limits=model.limits,
        count_is_a_bound=True,
    )


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def rows(done: Finished) -> dict[str, Any]:
    table: Mapping[str, Any] = pyarrow.parquet.read_table(
        io.BytesIO(done.artifacts["predictions.parquet"][1])
    ).to_pydict()
    return dict(table)


def test_csv_in_parquet_and_csv_out(engine: BatchingEngine, net: Path, tmp_path: Path) -> None:
    text = "".join(f'{n},"field, {n}",{n / 2},00{n}\n' for n in range(10))
    table = write(tmp_path / "table.csv", "a,name,b,code\n" + text)
    done = run(engine, a_table_model(net), table, outputs=["parquet", "csv"])
    expected = [2 * n - n / 2 + 0.5 for n in range(10)]
    assert rows(done) == {
        "a": [float(n) for n in range(10)],
        "name": [f"field, {n}" for n in range(10)],
        "b": [n / 2 for n in range(10)],
        "code": [f"00{n}" for n in range(10)],
        "yield": expected,
    }
    lines = done.artifacts["predictions.csv"][1].decode().splitlines()
    assert lines[0].replace('"', "") == "a,name,b,code,yield"
    back = pyarrow.csv.read_csv(io.BytesIO(done.artifacts["predictions.csv"][1])).to_pydict()
    assert back["yield"] == expected
    assert "002" in lines[3], "what the network does not see stays as it is"
    head = [{"yield": value} for value in expected]
    assert done.result.data == {"rows": 10, "without_prediction": 0, "columns": ["yield"], "head": head}


@pytest.mark.parametrize(
    ("content", "said"), [(b"a,\xe9\n1,2\n", "column names is not UTF-8"), (b"a,b\n1,\xe9\n", "row 1")]
)
def test_what_is_not_utf8_is_refused_as_an_input(
    engine: BatchingEngine, net: Path, tmp_path: Path, content: bytes, said: str
) -> None:
    table = tmp_path / "table.csv"
    table.write_bytes(content)
    with pytest.raises(InvalidInput, match=said):
        run(engine, a_table_model(net), table)


def test_parquet_in_with_types_and_groups(engine: BatchingEngine, net: Path, tmp_path: Path) -> None:
    count = 23
    columns = {
        "b": pa.array(np.arange(count), pa.int16()),
        "tags": pa.array([["x"] * (n % 3) for n in range(count)]),
        "a": pa.array(np.arange(count) / 4, pa.float64()),
    }
    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=5)
    done = run(engine, a_table_model(net), path)
    made = rows(done)
    assert made["yield"] == [n / 2 - n + 0.5 for n in range(count)]
    assert made["tags"] == [["x"] * (n % 3) for n in range(count)]
    alone = run(engine, a_table_model(net), path, keep_columns=False)
    assert rows(alone) == {"yield": made["yield"]}
    with pytest.raises(InvalidInput, match=r"'tags' holds list.*request parquet"):
        run(engine, a_table_model(net), path, outputs=["csv"])


def test_a_torch_program_predicts_the_same(engine: BatchingEngine, net: Path, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    network = torch.nn.Linear(2, 1)
    network.load_state_dict({"weight": torch.from_numpy(WEIGHT.T.copy()), "bias": torch.from_numpy(BIAS)})
    shapes = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(network.eval(), (torch.zeros(3, 2),), dynamic_shapes=shapes)
    torch.export.save(program, folder / "program.pt2")
    write(
        folder / "penstock.toml",
        'rows = true\n[inputs.features]\nshape = ["rows", "columns=2"]\n[outputs.values]\n',
    )
    table = write(tmp_path / "table.csv", "a;b\n" + "".join(f"{n};{n * n}\n" for n in range(9)))
    pins = {"program.pt2": sha256_of(folder / "program.pt2")}
    torchs = a_table_model(folder).model_copy(update={"runner": "torch", "files": pins, "name": "torchs"})
    made = [rows(run(engine, model, table, delimiter=";")) for model in (torchs, a_table_model(net))]
    assert made[0] == made[1]
    assert made[0]["yield"] == [2 * n - n * n + 0.5 for n in range(9)], "the last batch has one row"


def test_trees_predict_as_lightgbm_does(engine: BatchingEngine, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = lightgbm.Dataset(rng.normal(size=(300, 2)), rng.normal(size=300))
    trees = lightgbm.train({"verbosity": -1, "num_threads": 1}, data, num_boost_round=3)
    trees.save_model(tmp_path / "trees.txt")
    model = a_table_model(tmp_path / "trees.txt", missing="nan").model_copy(update={"runner": "lightgbm"})
    made = rows(run(engine, model, write(tmp_path / "t.csv", "a,b\n0.5,1\n-2,\n1,0\n")))
    expected = trees.predict(np.array([[0.5, 1], [-2, np.nan], [1, 0]]))
    assert made["yield"] == pytest.approx(expected, abs=1e-6)
    other = a_table_model(tmp_path / "trees.txt", columns=[{"name": "a"}], name="other")
    with pytest.raises(ProcessorFailed, match="takes 2 columns, the prompt has 1"):
        run(engine, other.model_copy(update={"runner": "lightgbm"}), write(tmp_path / "u.csv", "a\n1\n"))


def test_a_column_each_with_words_and_whole_numbers(engine: BatchingEngine, tmp_path: Path) -> None:
    """As skl2onnx exports pipelines: inputs (rows, 1), and a class with its probabilities."""
    nodes = [
        helper.make_node("Cast", ["soil"], ["s"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wet"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["s", "w", "rain"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0),
    ]
    inputs = [
        value("soil", ["n", 1], TensorProto.INT64), value("wet", ["n", 1], TensorProto.BOOL), value("rain", ["n", 1]),
    ]  # fmt: skip
    outputs = [value("label", ["n"], TensorProto.INT64), value("probabilities", ["n", 3])]
    net = save(tmp_path / "net.onnx", nodes, inputs, outputs, {})
    model = a_table_model(
        net,
        inputs="columns",
        columns=[
            {"name": "rain"},
            {"name": "soil", "dtype": "int64", "categories": ["clay", "loam", "sand"]},
            {"name": "wet", "dtype": "bool"},
        ],
        predictions=[
            {"output": "label", "columns": ["class"], "labels": ["none", "some", "much"]},
            {"output": "probabilities", "columns": ["p_none", "p_some", "p_much"]},
        ],
    )
    table = write(tmp_path / "t.csv", "soil,rain,wet\nsand,0.5,true\nclay,3,false\nclay,0.1,true\n")
    made = rows(run(engine, model, table, keep_columns=False))
    assert made["class"] == ["none", "much", "some"]
    assert made["p_none"] == [2.0, 0.0, 0.0]
    with pytest.raises(InvalidInput, match="column 'soil' in row 2 is 'peat'; known categories: clay, loam, sand"):
        run(engine, model, write(tmp_path / "bad.csv", "soil,rain,wet\nsand,0,true\npeat,1,true\n"))


def test_rows_without_a_number(engine: BatchingEngine, net: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "a,b\n1,1\n,2\n3,nan\n4,4\n5,5\n")
    with pytest.raises(InvalidInput, match="column 'a' in row 2 is empty"):
        run(engine, a_table_model(net), table)
    skipped = run(engine, a_table_model(net, missing="skip"), table)
    assert rows(skipped)["yield"] == [1.5, None, None, 4.5, 5.5]
    head = [{"yield": value} for value in (1.5, None, None, 4.5, 5.5)]
    assert skipped.result.data == {"rows": 5, "without_prediction": 2, "columns": ["yield"], "head": head}
    fills = a_table_model(_filling(tmp_path), name="fills", missing="nan")
    assert rows(run(engine, fills, table))["yield"] == [1.0, -1.0, 3.0, 4.0, 5.0]


def _filling(folder: Path) -> Path:
    """Save a network that answers with its first column, or -1 where that is NaN."""
    nodes = [
        helper.make_node("Slice", ["features", "zero", "one", "axis"], ["a"]),
        helper.make_node("IsNaN", ["a"], ["absent"]),
        helper.make_node("Where", ["absent", "minus", "a"], ["values"]),
    ]
    weights = {"zero": np.array([0]), "one": np.array([1]), "axis": np.array([1]), "minus": np.array(-1, np.float32)}
    return save(folder / "fill.onnx", nodes, [value("features", ["n", 2])], [value("values", ["n", 1])], weights)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("a,c\n1,2\n", InvalidInput, r"lacks the column 'b'; it has: 'a', 'c' "),
        ("a;b\n1;2\n", InvalidInput, "lacks the columns 'a', 'b'.*Is its delimiter ','"),
        ("a,b,a\n1,2,3\n", InvalidInput, "'a' more than once"),
        ("a,b,yield\n1,2,3\n", InvalidInput, "already has a column 'yield'"),
        ("a,b\n1,2\n3,many\n", InvalidInput, "In column 'b': row 2: CSV conversion error to double: .*'many'"),
        (
            "a;b\n1,5;2\n",
            MediaUnreadable,
            "row 1: Expected 1 columns.* Is its delimiter ','. Its first line contains ';'",
        ),
        ("a,b\n1,2\n3,1e300\n", InvalidInput, "column 'b' in row 2 is too large for float32"),
        ("a,b\n1,2\n3,-inf\n", InvalidInput, "column 'b' in row 2 is infinite"),
        ("a,b\n1,2\n3\n", MediaUnreadable, "row 2: Expected 2 columns, got 1"),
        ("", MediaUnreadable, "Empty CSV file"),
        ("a,b\n1,\0\0\n", MediaUnreadable, "not a table in a supported format"),
        ("PAR1 and no more", MediaUnreadable, "cannot be read"),
        ('a,b\n1,"' + "1" * 9_000_000 + '"\n', MediaUnreadable, "a row has more than 4194304 bytes"),
    ],
)
def test_a_table_that_does_not_fit_is_said(
    engine: BatchingEngine, net: Path, tmp_path: Path, text: str, kind: type[PenstockError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        run(engine, a_table_model(net), write(tmp_path / "t.csv", text))


def test_parquet_of_other_types_or_cut_off_is_said(engine: BatchingEngine, net: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pa.table({"a": ["x", "y"], "b": [1.0, 2.0]}), path)
    with pytest.raises(InvalidInput, match="'a' holds string, not numbers"):
        run(engine, a_table_model(net), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(MediaUnreadable, match="cannot be read"):
        run(engine, a_table_model(net), path)


def test_an_empty_table_gives_an_empty_one(engine: BatchingEngine, net: Path, tmp_path: Path) -> None:
    done = run(engine, a_table_model(net), write(tmp_path / "t.csv", "a,x,b\n"), outputs=["parquet", "csv"])
    assert rows(done) == {"a": [], "x": [], "b": [], "yield": []}
    assert done.artifacts["predictions.csv"][1].decode().replace('"', "") == "a,x,b,yield\n"


def test_rows_are_limited(engine: BatchingEngine, net: Path, tmp_path: Path) -> None:
    model = a_table_model(net, limits=Limits(max_items=3))
    text = "a,b\n" + "1,2\n" * 5
    for name in ("t.csv", "t.parquet"):
        path = write(tmp_path / name, text)
        if name == "t.parquet":
            pyarrow.parquet.write_table(pyarrow.csv.read_csv(io.BytesIO(text.encode())), path)
        with pytest.raises(MediaTooLarge, match="at most 3"):
            run(engine, model, path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": []}, "columns: must have at least 1 item"),
        ({"columns": [*COLUMNS, {"name": "a"}]}, "the column 'a' is listed twice"),
        ({"columns": [{"name": "a"}, {"name": "b", "dtype": "int64"}]}, 'for several use inputs = "columns"'),
        ({"columns": [{"name": "a", "dtype": "int64"}], "missing": "nan"}, "needs columns of float32"),
        ({"speed": 1}, "speed: is not known"),
    ],
)
def test_wrong_options_are_said(net: Path, options: Any, said: str) -> None:
    with pytest.raises((ConfigError, ModelUnavailable), match=said):
        Registry.imported().processor_for(a_table_model(net, **options))


@pytest.mark.parametrize(
    ("predictions", "said"),
    [
        ([{"output": "other", "columns": ["y"]}], "no output 'other'; its outputs: 'values'"),
        ([{"output": "values", "columns": ["y", "z"]}], r"float32 \(2, 1\); expected \(2, 2\)"),
        ([{"output": "values", "columns": ["y"], "labels": ["no", "yes"]}], r"class 2\.5, but there are 2 labels"),
    ],
)
def test_another_networks_answers_are_said(
    engine: BatchingEngine, net: Path, tmp_path: Path, predictions: Any, said: str
) -> None:
    model = a_table_model(net, predictions=predictions)
    with pytest.raises(ProcessorFailed, match=said):
        run(engine, model, write(tmp_path / "t.csv", "a,b\n2,2\n1,0\n"))


def test_nan_from_the_network_is_no_prediction(net: Path, tmp_path: Path) -> None:
    from penstock.processors.testing import FolderSink, LocalFiles

    table = write(tmp_path / "t.csv", "a,b\n2,2\n1,0\n")
    processor = Registry.imported().processor_for(a_table_model(net))
    request = processor.request.model_validate({"table": "media://t"})
    prepared = processor.pre_process(request, LocalFiles({"media://t": table}))
    answers = (Output({"values": np.array([np.nan, 1.0], np.float32)}) for _ in prepared.prompts)
    result = processor.post_process(answers, prepared.context, FolderSink(tmp_path))
    head = [{"yield": None}, {"yield": 1.0}]
    assert result.data == {"rows": 2, "without_prediction": 1, "columns": ["yield"], "head": head}
    assert pyarrow.parquet.read_table(tmp_path / "predictions.parquet")["yield"].to_pylist() == [None, 1.0]


@pytest.mark.breadth
def test_a_cell_that_is_far_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(pa.table({"a": ["x" * (80 * 2**20)]}), path, compression="zstd")
    assert path.stat().st_size < 200_000
    with pytest.raises(MediaTooLarge, match="column 'a' takes"):
        open_table(path, ",")


def test_a_long_column_of_equal_texts_is_no_bomb(tmp_path: Path) -> None:
    path = tmp_path / "equal.parquet"
    pyarrow.parquet.write_table(pa.table({"a": ["the same text in each row"] * 3_000_000}), path)
    assert open_table(path, ",").rows == 3_000_000


def test_the_schema_of_a_model_names_its_columns(net: Path) -> None:
    columns = [{"name": "rain"}, {"name": "soil", "categories": ["sand", "clay"], "dtype": "int64"}]
    table = Tabular(a_table_model(net, columns=columns, inputs="columns")).request.model_json_schema()["properties"][
        "table"
    ]
    assert table["x-columns"] == [{"name": "rain"}, {"name": "soil", "words": ["sand", "clay"]}]
    assert table["description"].endswith("column names: rain, soil")
    assert table["x-suffixes"] == [".parquet", ".csv"]
    many = a_table_model(net, columns=[{"name": f"c{n}"} for n in range(MAX_NAMED_COLUMNS + 1)])
    assert Tabular(many).request is TabularRequest
