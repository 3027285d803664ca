"""DDL, and DML that was logged as a statement."""

from __future__ import annotations

import pytest

from databus.client.dispatcher.data_window import DataWindow, read_of
from databus.client.sinks.running.feed import Feed
from databus.schemas.event.control import LoggedStatement
from databus.testing.recorder import Recorder
from tests import PATIENCE_S
from tests.client.sinks.changes import ListedStream, plan_of, window

ALTER = LoggedStatement(("shop.a",), "shop", "ALTER TABLE a ADD COLUMN x INT")
UPDATE = LoggedStatement(("shop.a",), "shop", "UPDATE a SET x = RAND()", is_dml=True)


def with_statement(scn: int, told: LoggedStatement) -> DataWindow:
    """Return a window with a row, the statement, and another row."""
    read = read_of(window(scn, ("a", scn), ("b", scn)))
    return DataWindow(read._replace(window=read.window._replace(statements=((1, told),))))


def run(recorder: Recorder, *windows: DataWindow, **settings: object) -> None:
    stream = ListedStream(*windows)
    feed = Feed(plan_of(recorder, until=windows[-1].scn, **settings), stream)
    feed.start()
    try:
        assert feed.wait(PATIENCE_S), feed.status
    finally:
        feed.stop()


def test_statements_are_for_sinks_that_want_them_and_come_at_their_place() -> None:
    for wants, expected in ((False, ["insert", "insert"]), (True, ["insert", "ddl", "insert"])):
        recorder = Recorder()
        run(recorder, with_statement(1, ALTER), ddl=wants)
        assert [one.op.value for one in recorder.changes] == expected
    (told,) = [one for one in recorder.changes if one.op == "ddl"]
    assert (told.source, told.statement, told.scn) == ("shop.a", ALTER.statement, 1)


@pytest.mark.parametrize("order", ["single-table", "table", "row"])
def test_a_statement_is_alone_in_every_order(order: str) -> None:
    recorder = Recorder(sleep_s=0.02)
    before = [window(scn, ("c", scn), ("d", scn)) for scn in (1, 2)]
    after = [window(scn, ("c", scn), ("d", scn)) for scn in (4, 5)]
    run(recorder, *before, with_statement(3, ALTER), *after, order=order, lanes=4, ddl=True)
    (alone,) = [one for one in recorder.writes if any(c.op == "ddl" for c in one.changes)]
    others = [one for one in recorder.writes if one is not alone]
    assert not any(alone.overlaps(one) for one in others)
    assert all(one.ended_s <= alone.began_s for one in others if one.changes[0].scn < 3)
    assert all(one.began_s >= alone.ended_s for one in others if one.changes[0].scn > 3)


def test_rows_that_were_not_logged_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    run(recorder, with_statement(1, UPDATE))
    assert len(recorder.changes) == 2
    assert "the target lacks the change: UPDATE a SET x = RAND()" in caplog.text
