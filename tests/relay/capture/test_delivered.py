"""Which transactions the windows of a ring are of."""

from __future__ import annotations

from databus.relay.capture.delivered import gtids_after
from databus.relay.sources.source import Origin, Transaction
from tests.relay.fakes import ServedRelay, insert


def committed(scn: int, gtid: str | None, rows: int) -> Transaction:
    changes = [insert(scn * 10 + number) for number in range(rows)]
    return Transaction(scn, scn, changes, Origin(gtid, 1, "bin.000001", scn))


def test_each_transaction_with_rows_is_named_once_in_order(relay: ServedRelay) -> None:
    relay.put(committed(10, "0-1-1", 1), committed(20, "0-1-2", 3), committed(30, "0-1-3", 2))
    reader = relay.relay.physical_sources["shop"].reader
    assert gtids_after(reader, 10) == ["0-1-2", "0-1-3"]
    assert gtids_after(reader, 30) == []


def test_nothing_is_known_of_what_the_ring_does_not_have(relay: ServedRelay) -> None:
    relay.put(committed(10, "0-1-1", 1), committed(20, "0-1-2", 1))
    reader = relay.relay.physical_sources["shop"].reader
    assert gtids_after(reader, 9) is None
    assert gtids_after(reader, 21) is None


def test_nothing_is_known_after_a_transaction_without_a_gtid(relay: ServedRelay) -> None:
    relay.put(committed(10, "0-1-1", 1), committed(20, None, 1), committed(30, "0-1-3", 1))
    reader = relay.relay.physical_sources["shop"].reader
    assert gtids_after(reader, 10) is None
    assert gtids_after(reader, 20) == ["0-1-3"]


def test_windows_without_rows_need_no_gtid(relay: ServedRelay) -> None:
    relay.put(committed(10, "0-1-1", 1), committed(20, None, 0), committed(30, "0-1-3", 1))
    reader = relay.relay.physical_sources["shop"].reader
    assert gtids_after(reader, 10) == ["0-1-3"]
