"""The target of a sink in memory, for tests of applications."""

from __future__ import annotations

import pytest

from databus.client.sinks.contract import Opening
from databus.client.sinks.errors import SinkRefusedError
from databus.testing import Recorder
from tests.client.sinks.changes import made, moved


def test_it_has_the_rows_that_the_changes_make() -> None:
    recorder = Recorder()
    sink = recorder.sink()
    assert sink.open(Opening("test", "shop")) is None
    sink.write([made("insert", 1, v=1), made("insert", 2, v=2), made("update", 1, w=3)])
    assert recorder.rows("shop.orders") == []  # nothing is there before the flush
    sink.flush()
    sink.write([made("delete", 2), *moved(1, 5, v=1)])
    sink.flush()
    sink.write([made("delete", 5)])
    sink.close()
    assert recorder.rows("shop.orders") == [{"id": 5, "v": 1}]
    assert [len(one.changes) for one in recorder.writes] == [3, 3]
    sink.write([made("truncate", None)])
    sink.flush()
    assert recorder.rows("shop.orders") == []


def test_it_refuses_a_row_that_violates_a_unique_key_and_takes_nothing_of_that_flush() -> None:
    recorder = Recorder(unique={"shop.orders": [["no"]]})
    sink = recorder.sink()
    assert sink.unique_keys("shop.orders") == [["no"]]
    sink.write([made("insert", 1, no="a")])
    sink.flush()
    twice = made("insert", 3, no="A")  # equal, as most collations compare
    sink.write([made("insert", 2, no="b"), twice])
    with pytest.raises(SinkRefusedError, match="duplicate entry") as raised:
        sink.flush()
    assert raised.value.change is twice
    assert recorder.rows("shop.orders") == [{"id": 1, "no": "a"}]
