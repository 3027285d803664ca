"""The other modes of the sink `sql`: what is left of a row that was inserted, updated, deleted."""

from __future__ import annotations

import pytest

from databus.client.sinks.errors import SinkError
from tests.client.sinks.ready.sql.targets import Source, Target, write

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]

T = Source({"id": "int", "v": "varchar(9)", "w": "int"})
LIFE = [T.insert(1, "a", 1, scn=1), T.update(1, "b", 2, scn=2), T.delete(1, "b", 2, scn=3)]


@pytest.mark.parametrize("size", [1, 2, 3], ids="flushes of {} changes".format)
def test_a_deleted_row_stays_and_is_marked(target: Target, size: int) -> None:
    with target.opened(mode="soft_delete") as sink:
        for start in range(0, 3, size):
            sink.write(LIFE[start : start + size])
            sink.flush()
        assert target.table("t", "id", "v", "w", "_databus_deleted") == [(1, "b", 2, True)]
        sink.write([T.insert(1, "c", 3, scn=4), T.insert(2, "d", 4, scn=5)])
        sink.flush()
        held = target.table("t", "id", "v", "w", "_databus_deleted")
        assert held == [(1, "c", 3, False), (2, "d", 4, False)]
        sink.write([T.update(2, "e", scn=6), T.made("truncate", scn=7)])
        sink.flush()
    held = target.table("t", "id", "v", "w", "_databus_deleted")
    assert held == [(1, "c", 3, True), (2, "e", 4, True)]


@pytest.mark.parametrize("size", [1, 2, 3], ids="flushes of {} changes".format)
def test_one_row_has_the_last_change(target: Target, size: int) -> None:
    with target.opened(mode="log_update") as sink:
        for start in range(0, 3, size):
            sink.write(LIFE[start : start + size])
            sink.flush()
    held = target.table("t", "id", "v", "w", "_databus_op", "_databus_scn")
    assert held == [(1, "b", 2, "delete", 3)]


def test_every_change_is_a_row_of_the_history(target: Target) -> None:
    history = [*LIFE, T.update(2, "x", scn=4), T.made("truncate", scn=5)]
    write(target, history, mode="append_history")
    held = target.table("t", "_databus_scn", "_databus_op", "id", "v", "w", "_databus_source")
    assert held == [
        (1, "insert", 1, "a", 1, "shop.t"),
        (2, "update", 1, "b", 2, "shop.t"),
        (3, "delete", 1, "b", 2, "shop.t"),
        (4, "update", 2, "x", None, "shop.t"),
        (5, "truncate", None, None, None, "shop.t"),
    ]


def test_a_history_has_a_change_once_that_comes_again(target: Target) -> None:
    for changes in (LIFE[:2], LIFE):
        write(target, changes, mode="append_history", exactly_once=False)
    assert [row[0] for row in target.table("t", "_databus_scn")] == [1, 2, 3]


def test_a_table_without_a_key_has_a_history(target: Target) -> None:
    keyless = Source({"a": "int"}, keys=0)
    rows = [keyless.insert(1, index=0), keyless.insert(1, index=1), keyless.delete(1, index=2)]
    write(target, rows, mode="append_history")
    held = target.table("t", "a", "_databus_op")
    assert held == [(1, "delete"), (1, "insert"), (1, "insert")]


def test_a_deleted_row_is_no_row_to_replace(target: Target) -> None:
    target.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9) UNIQUE, w INT, _databus_deleted BOOLEAN)"
    )
    with pytest.raises(SinkError, match="soft_delete"):
        write(target, LIFE, mode="soft_delete")
