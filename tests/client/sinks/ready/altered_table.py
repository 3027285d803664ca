"""A table, its first rows, and what it is after an ALTER of each kind."""

from __future__ import annotations

from tests.client.sinks.ready.sql.targets import Source

T1 = Source({"id": "int", "a": "int", "b": "varchar(9)"})
ADDED = T1.altered(T1.columns | {"c": "int"}, added={"c": 7})
WIDER = T1.altered(T1.columns | {"a": "bigint"})
RENAMED = T1.altered({"id": "int", "a": "int", "z": "varchar(9)"}, renamed={"z": "b"})
DROPPED = T1.altered({"id": "int", "b": "varchar(9)"})
NARROWER = T1.altered(T1.columns | {"a": "date"}, reload={"a": "int → date"})
FIRST = [T1.insert(1, 10, "x", scn=1), T1.insert(2, 20, "y", scn=2)]
