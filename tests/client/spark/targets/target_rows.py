"""The rows of a target, read without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from databus.client.spark.targets.target import Target


def rows_of_target(target: Target) -> list[dict[str, Any]]:
    """Return a target's rows; the source as `source`, without the other bookkeeping."""
    return [
        {
            "source": row.get("_databus_source"),
            **{name: value for name, value in row.items() if not name.startswith("_databus")},
        }
        for row in table_of(target).to_pylist()
    ]


def table_of(target: Target) -> pa.Table:
    """Return a target's rows with all columns."""
    form, _, path = target.uri.partition(":")
    if form.startswith("delta"):
        return DeltaTable(path).to_pyarrow_table()
    return target.read()  # type: ignore[attr-defined]
