"""The `input` of table jobs. The API publishes its JSON Schema, so neither numpy nor pyarrow is imported here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.media_types import TABLE_FILES
from penstock.models import MediaReference

TableOutput = Literal["parquet", "csv"]
Delimiter = Literal[",", ";", "\t", "|"]


class TabularRequest(BaseModel):
    """A table to predict from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: MediaReference = Field(
        description="The table: Parquet, or CSV in UTF-8 with a line of column names", json_schema_extra=TABLE_FILES
    )
    delimiter: Delimiter = Field(default=",", description="The delimiter between the columns of a CSV file.")
    keep_columns: bool = Field(
        default=True, description="true: the result has the table's own columns before the predictions."
    )
    outputs: tuple[TableOutput, ...] = Field(
        default=("parquet",),
        min_length=1,
        description="parquet: predictions.parquet; csv: predictions.csv, with the same delimiter.",
    )
