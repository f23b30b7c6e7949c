"""The `input` of table jobs. The API publishes its JSON Schema, so neither numpy nor pyarrow is imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, create_model

from penstock.media_types import COLUMNS, TABLE_FILES
from penstock.models import MediaReference, Record

TableOutput = Literal["parquet", "csv"]
Delimiter = Literal[",", ";", "\t", "|"]


#: Columns that a request names, at most: a catalogue entry stays small.
MAX_NAMED_COLUMNS = 100
_TABLE = "The table: Parquet, or CSV in UTF-8 with a line of column names"


class TabularRequest(Record):
    """A table to predict from."""

    table: MediaReference = Field(description=_TABLE, json_schema_extra=TABLE_FILES)
    delimiter: Delimiter = Field(default=",", description="The delimiter between the columns of a CSV file.")
    keep_columns: bool = Field(
        default=True, description="true: the result has the table's own columns before the predictions."
    )
    outputs: tuple[TableOutput, ...] = Field(
        default=("parquet",),
        min_length=1,
        description="parquet: predictions.parquet; csv: predictions.csv, with the same delimiter.",
    )


def request_for(columns: Mapping[str, Sequence[str]]) -> type[TabularRequest]:
    """Return the request of a model with these columns, name -> known words: its schema names them."""
    if len(columns) > MAX_NAMED_COLUMNS:
        return TabularRequest
    marks: list[Any] = [{"name": name, **({"words": list(words)} if words else {})} for name, words in columns.items()]
    about = f"{_TABLE}: {', '.join(columns)}"
    table = Field(description=about, json_schema_extra={**TABLE_FILES, COLUMNS: marks})
    return create_model(
        "TabularRequest", __base__=TabularRequest, __doc__=TabularRequest.__doc__, table=(MediaReference, table)
    )
