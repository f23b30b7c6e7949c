"""The `options` table of a model of tables in `models.toml`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from penstock.documents import wrong_fields
from penstock.errors import ConfigError
from penstock.models import Model

Dtype = Literal["float32", "float64", "int32", "int64", "bool"]


class Options(BaseModel):
    """A frozen record of the catalogue; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(Options):
    """A column that the network sees."""

    name: str = Field(min_length=1)
    #: What the network takes.
    dtype: Dtype = "float32"
    #: Of a column of words: the network sees the number of each, counted from 0.
    categories: tuple[str, ...] = ()


class Prediction(Options):
    """An output of the network, and what its columns are called in the result."""

    output: str
    columns: tuple[str, ...] = Field(min_length=1)
    #: Of class ids: the word for each, counted from 0.
    labels: tuple[str, ...] = ()


class TableOptions(Options):
    """How a table becomes what the network takes, and its answers columns."""

    #: Read by the runner.
    onnx: Mapping[str, Any] = Field(default_factory=dict)
    compile: bool = False
    columns: tuple[Column, ...] = Field(min_length=1)
    predictions: tuple[Prediction, ...] = Field(min_length=1)
    #: One input `features` (rows, columns), or one (rows, 1) for each column under its own name.
    inputs: Literal["matrix", "columns"] = "matrix"
    #: What happens to a row without a number: the job fails, the network sees NaN, or there is no prediction for it.
    missing: Literal["refuse", "nan", "skip"] = "refuse"
    #: How many rows the network sees at once.
    batch_rows: int = Field(default=16_384, gt=0)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        return tuple(column.name for column in self.columns)

    @property
    def predicted(self) -> tuple[str, ...]:
        """The columns that a result has beside them."""
        return tuple(name for prediction in self.predictions for name in prediction.columns)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for names in (self.names, self.predicted):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"the column {twice[0]!r} stands there twice")
        if self.inputs == "matrix" and len({column.dtype for column in self.columns}) > 1:
            raise ValueError('the columns of a matrix have one dtype; inputs = "columns" takes several')
        if self.missing == "nan" and not all(column.dtype.startswith("float") for column in self.columns):
            raise ValueError('missing = "nan" needs columns of float32 or float64')
        for column in self.columns:
            if column.categories and column.dtype == "bool":
                raise ValueError(f"the categories of {column.name!r} are numbers to the network, not bool")
        return self


def read_options(model: Model) -> TableOptions:
    """Return the model's options; raise `ConfigError` naming the model and each wrong field."""
    try:
        return TableOptions.model_validate(dict(model.options))
    except ValidationError as error:
        wrong = wrong_fields(error, whole="options")
        raise ConfigError(f"model {model.name!r}: wrong options: {wrong}") from error
