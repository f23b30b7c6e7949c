"""The `options` of a tabular model in `models.toml`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from penstock.errors import ConfigError
from penstock.json_body import wrong_fields
from penstock.models import Model, Record

Dtype = Literal["float32", "float64", "int32", "int64", "bool"]


class OptionsTable(Record):
    """A frozen part of the catalogue; unknown keys are an error."""


class Column(OptionsTable):
    """A column that is an input of the network."""

    name: str = Field(min_length=1)
    #: The dtype of the network's input.
    dtype: Dtype = "float32"
    #: The known words of a column of words. The network receives a word's index, from 0.
    categories: tuple[str, ...] = ()


class Prediction(OptionsTable):
    """An output of the network, and the names of its columns in the result."""

    output: str
    columns: tuple[str, ...] = Field(min_length=1)
    #: Labels of an output of class ids, from 0. The result has the labels instead of the ids.
    labels: tuple[str, ...] = ()


class TableOptions(OptionsTable):
    """The conversion between a table's columns and the network's inputs and outputs."""

    #: OptionsTable of the runner.
    onnx: Mapping[str, Any] = Field(default_factory=dict)
    compile: bool = False
    columns: tuple[Column, ...] = Field(min_length=1)
    predictions: tuple[Prediction, ...] = Field(min_length=1)
    #: One input `features` (rows, columns), or one (rows, 1) for each column under its own name.
    inputs: Literal["matrix", "columns"] = "matrix"
    #: Rows with a missing value: the job fails, the network receives NaN, or the row has no prediction.
    missing: Literal["refuse", "nan", "skip"] = "refuse"
    #: Number of rows per batch.
    batch_rows: int = Field(default=16_384, gt=0)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that a table must have."""
        return tuple(column.name for column in self.columns)

    @property
    def predicted(self) -> tuple[str, ...]:
        """Names of the columns of predictions."""
        return tuple(name for prediction in self.predictions for name in prediction.columns)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for names in (self.names, self.predicted):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"the column {twice[0]!r} is listed twice")
        if self.inputs == "matrix" and len({column.dtype for column in self.columns}) > 1:
            raise ValueError('the columns of a matrix must have one dtype; for several use inputs = "columns"')
        if self.missing == "nan" and not all(column.dtype.startswith("float") for column in self.columns):
            raise ValueError('missing = "nan" needs columns of float32 or float64')
        for column in self.columns:
            if column.categories and column.dtype == "bool":
                raise ValueError(f"the column {column.name!r} has categories, so its dtype must not be bool")
        return self


def read_options(model: Model) -> TableOptions:
    """Return the model's options; raise `ConfigError` with the model and all invalid fields."""
    try:
        return TableOptions.model_validate(dict(model.options))
    except ValidationError as error:
        wrong = wrong_fields(error, whole="options")
        raise ConfigError(f"model {model.name!r}: wrong options: {wrong}") from error
