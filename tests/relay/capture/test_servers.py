"""Which server is connected to next, and what is known of the servers before."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.epoch_table import EpochTable
from databus.relay.capture.servers import Servers
from databus.relay.clock import Clock
from databus.relay.sources.epochs import Epoch, Executed, Lineage, ServerRefusedError
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from databus.schemas.scn import epoch_begin
from databus.schemas.windows import MARK, WindowBatch


class SettableTime:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.clock = Clock(lambda: self.now_s)

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


ONE, TWO = "mysql://databus@one", "mysql://databus@two"
GONE = SourceUnavailableError("gone")
REFUSED = ServerRefusedError("shop", 7, "it lacks 0-1-8")


def epoch(uri: str) -> Epoch:
    return Epoch(0, "1", uri, 5, -1, "bin.000001", 5, None, 0)


def servers(table: EpochTable, time: SettableTime, gtids_after: Any = lambda _scn: None) -> Servers:
    values = {"name": "shop", "uri": [ONE, TWO], "sources": ["shop.orders"], "switch_after_s": 10}
    return Servers(PhysicalSourceSettings.model_validate(values), table, gtids_after, time.clock)


def table_of(uri: str) -> EpochTable:
    table = EpochTable()
    table.begin(epoch(uri))
    return table


def test_a_restart_begins_at_the_server_that_was_read_last() -> None:
    assert servers(table_of(TWO), SettableTime()).settings.uri == TWO
    assert servers(table_of("mysql://databus@removed"), SettableTime()).settings.uri == ONE


def test_the_next_server_is_tried_when_one_is_gone_for_long() -> None:
    time = SettableTime()
    found = servers(table_of(ONE), time)
    assert found.failed(GONE) is GONE
    time.advance(9)
    found.failed(GONE)
    assert found.settings.uri == ONE
    time.advance(1)
    found.failed(GONE)
    assert found.settings.uri == TWO


def test_a_server_that_was_read_in_between_is_waited_for_again() -> None:
    time = SettableTime()
    found = servers(table_of(ONE), time)
    found.failed(GONE)
    time.advance(9)
    found.proved()
    time.advance(2)
    found.failed(GONE)
    assert found.settings.uri == ONE


def test_at_a_first_start_the_first_that_answers_is_taken() -> None:
    found = servers(EpochTable(), SettableTime())
    found.failed(GONE)
    assert found.settings.uri == TWO


def test_other_errors_choose_no_server() -> None:
    time = SettableTime()
    found = servers(table_of(ONE), time)
    stopped = SourceStoppedError("shop", 7, "a row that does not fit")
    found.failed(GONE)
    time.advance(20)
    assert found.failed(stopped) is stopped
    assert found.settings.uri == ONE


def test_a_server_that_lacks_transactions_is_asked_again_and_then_capture_stops() -> None:
    time = SettableTime()
    found = servers(table_of(ONE), time)
    found.failed(GONE)
    time.advance(10)
    found.failed(GONE)
    retried = found.failed(REFUSED)
    assert isinstance(retried, SourceUnavailableError)
    assert "it lacks 0-1-8" in str(retried)
    time.advance(10)
    assert found.failed(REFUSED) is REFUSED
    assert found.settings.uri == ONE  # where a resume begins


def test_what_was_delivered_is_completed_from_the_ring() -> None:
    table = table_of(ONE)
    table.note(Executed(100, "0-1-8"))
    found = servers(table, SettableTime(), {100: ["0-1-9", "0-1-10"]}.get)
    newest = table.newest
    known = Executed(100, "0-1-8")
    assert found.lineage(100) == Lineage(newest, known, has_others=True, epochs=table.epochs)
    assert found.lineage(120) == Lineage(
        newest, known, ["0-1-9", "0-1-10"], has_others=True, epochs=table.epochs
    )


def test_what_was_delivered_is_unknown_when_the_ring_has_less_or_lacks_windows() -> None:
    table = table_of(ONE)
    table.note(Executed(100, "0-1-8"))
    found = servers(table, SettableTime())
    assert found.lineage(90) == Lineage(table.newest, has_others=True, epochs=table.epochs)
    assert found.lineage(120) == Lineage(table.newest, has_others=True, epochs=table.epochs)


def test_what_an_error_keeps_from_being_handed_over_is_not_delivered() -> None:
    """A later part of what was received may ask a server that is gone by now."""
    found = servers(table_of(ONE), SettableTime())
    answers: Iterator[Any] = iter([[], GONE])

    def read() -> Any:
        answer: Any = next(answers)
        source.executed = f"0-1-{source.executed[4:]}1"  # it has read on, whatever follows
        if isinstance(answer, Exception):
            raise answer
        return answer

    source: Any = SimpleNamespace(relays=(), read=read, executed="0-1-", serving=None, epochs=None)
    with found.taking(source, found.read(source), 100):
        pass
    found.note(source, 100, 100)
    assert found.table.executed == Executed(100, "0-1-1")
    with pytest.raises(SourceUnavailableError):
        found.read(source)
    found.note(source, 100, 100)
    assert found.table.executed == Executed(100, "0-1-1")


def test_an_epoch_that_begins_inside_a_batch_is_known_before_the_batch_is_taken() -> None:
    """Another relay sends windows of two epochs in one answer."""
    found = servers(EpochTable(), SettableTime())
    begun = epoch_begin(1) + 7
    epochs = (epoch(ONE), Epoch(1, "2", TWO, begun, 9, "bin.000002", 7, None, 0))
    batch = WindowBatch(b"", MARK.pack(9, 0, 1, 1) + MARK.pack(begun, 0, 2, 1))
    source: Any = SimpleNamespace(executed=None, serving=None, epochs=epochs)
    with found.taking(source, [batch], 5):
        assert found.table.epochs == epochs
