"""The sink `clickhouse`, mode `append_history`: a row for each change, once with FINAL."""

from __future__ import annotations

import pytest

from databus.client.sinks.errors import SinkError
from tests.client.sinks.clickhouse_server import PrivateClickHouse
from tests.client.sinks.ready.clickhouse.targets import columns, rows, write
from tests.client.sinks.ready.sql.targets import Source

pytest_plugins = ["tests.client.sinks.clickhouse_fixtures"]

T = Source({"id": "int", "v": "varchar(9)"})
SHOWN = "_databus_scn, _databus_index, _databus_op, id, v, toString(_databus_time)"
CHANGES = [
    T.insert(1, "a", scn=10, index=0),
    T.update(1, "b", scn=11, index=0),
    T.update(1, "c", scn=11, index=1),
    T.delete(1, "c", scn=12),
    T.made("truncate", scn=13),
]


def test_each_change_is_there_once_however_often_it_comes(clickhouse: PrivateClickHouse) -> None:
    write(clickhouse, CHANGES, mode="append_history")
    write(clickhouse, CHANGES[1:4], mode="append_history")
    held = clickhouse.rows(
        f"SELECT {SHOWN} FROM shop.t FINAL ORDER BY _databus_scn, _databus_index"
    )
    at = "1970-01-01 00:00:00.0000"
    assert [(int(row[0]), *row[1:]) for row in held] == [
        (10, 0, "insert", 1, "a", f"{at}10"),
        (11, 0, "update", 1, "b", f"{at}11"),
        (11, 1, "update", 1, "c", f"{at}11"),
        (12, 0, "delete", 1, "c", f"{at}12"),
        (13, 0, "truncate", None, None, f"{at}13"),
    ]
    ids = clickhouse.rows("SELECT _databus_id FROM shop.t FINAL ORDER BY _databus_id")
    assert ids == [("10:0",), ("11:0",), ("11:1",), ("12:0",), ("13:0",)]


def test_a_table_without_a_key_has_a_history_and_columns_that_are_not_logged_are_null(
    clickhouse: PrivateClickHouse,
) -> None:
    keyless = Source({"a": "int", "b": "int"}, keys=0)
    write(clickhouse, [keyless.insert(1, 2), keyless.update(3, scn=2)], mode="append_history")
    assert rows(clickhouse, what="a, b") == [(1, 2), (3, None)]
    assert columns(clickhouse) == {"a": "Nullable(Int32)", "b": "Nullable(Int32)"}


def test_the_history_follows_another_type_and_name_of_the_key(
    clickhouse: PrivateClickHouse,
) -> None:
    write(clickhouse, CHANGES[:1], mode="append_history")
    after = T.altered({"n": "bigint", "v": "varchar(9)"}, renamed={"n": "id"})
    write(clickhouse, [after.insert(1 << 40, "x", scn=20)], mode="append_history")
    assert rows(clickhouse, what="toString(n), v") == [("1", "a"), (str(1 << 40), "x")]


def test_a_column_that_is_named_as_the_historys_own_is_refused(
    clickhouse: PrivateClickHouse,
) -> None:
    source = Source({"id": "int", "_databus_op": "int"})
    with pytest.raises(SinkError, match="a column _databus_op, as the sink's own is named"):
        write(clickhouse, [source.insert(1, 1)], mode="append_history")
    write(clickhouse, [source.insert(1, 1)])
    assert rows(clickhouse) == [(1, 1)]
