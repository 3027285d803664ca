"""The sink `mongodb` with `exactly_once`: rows and position are one transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pymongo.errors import PyMongoError

from databus.client.sinks.contract import Opening, Position
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.loading import says, sink_maker
from databus.client.sinks.ready.mongodb import positions
from databus.client.sinks.ready.mongodb.sink import MongoSink
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.ready.mongodb.conftest import OPENING, Target
from tests.client.sinks.ready.sql.targets import Source

pytestmark = pytest.mark.mongodb

ORDERS = Source({"id": "int", "v": "int"}, "shop.orders")
KNOWN = Opening("test", "shop", Position("shop", Checkpoint.at(1)))


def at(scn: int) -> Position:
    return Position("shop", Checkpoint.at(scn))


@pytest.fixture
def sink(target: Target) -> Iterator[MongoSink]:
    with target.opened(exactly_once=True) as sink:
        yield sink


@pytest.fixture
def other(target: Target, monkeypatch: pytest.MonkeyPatch) -> Iterator[MongoSink]:
    """A sink of another process, as far as it knows; not open."""
    sink = target.sink(exactly_once=True)
    opened = sink.open

    def open_as_another(opening: Opening) -> Position | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(positions, "_PROCESS", "another:1")
            return opened(opening)

    monkeypatch.setattr(sink, "open", open_as_another)
    yield sink
    sink.close()


def test_it_says_that_it_keeps_the_position_only_with_the_option() -> None:
    assert says(sink_maker("mongodb", {"exactly_once": True}), "keeps_position")
    assert not says(sink_maker("mongodb", {}), "keeps_position")


def test_the_position_is_that_of_the_rows(target: Target, sink: MongoSink) -> None:
    sink.write([ORDERS.insert(1, 1, scn=1), ORDERS.insert(2, 1, scn=2)])
    assert sink.flush() == at(2)
    sink.write([ORDERS.update(1, 2, scn=3)])
    with target.opened(exactly_once=True) as again:
        assert again.flush() == at(2)
    assert target.documents("orders")[1]["v"] == 1
    with target.opened(exactly_once=True, positions="databus.others") as elsewhere:
        assert elsewhere.flush() is None


def test_of_a_refused_row_nothing_is_written(target: Target, sink: MongoSink) -> None:
    target.client.shop.orders.create_index("v", unique=True)
    sink.write([ORDERS.insert(1, 1, scn=1)])
    sink.flush()
    sink.write([ORDERS.insert(2, 2, scn=2), ORDERS.insert(3, 1, scn=3)])
    with pytest.raises(SinkRefusedError, match=r"E11000.*index: v_1"):
        sink.flush()
    assert list(target.documents("orders")) == [1]
    with target.opened(exactly_once=True) as again:
        assert again.flush() == at(1)


def test_a_position_moves_also_without_rows(target: Target, sink: MongoSink) -> None:
    sink.write([ORDERS.made("ddl", scn=4)])
    assert sink.flush() == at(4)
    with target.opened(exactly_once=True) as again:
        assert again.flush() == at(4)


def test_a_truncate_is_between_two_transactions(target: Target, sink: MongoSink) -> None:
    sink.write([ORDERS.insert(1, 1, scn=1)])
    sink.write([ORDERS.made("truncate", scn=2), ORDERS.insert(2, 1, scn=3)])
    assert sink.flush() == at(3)
    assert list(target.documents("orders")) == [2]


def test_a_second_process_ends_the_first_and_a_person_takes_it_back(
    target: Target, sink: MongoSink, other: MongoSink
) -> None:
    sink.write([ORDERS.insert(1, 1, scn=1)])
    sink.flush()
    assert other.open(KNOWN) == at(1)
    sink.write([ORDERS.insert(2, 1, scn=2)])
    with pytest.raises(SinkError, match=r"another process writes it: another:1.*`databus sink "):
        sink.flush()
    other.write([ORDERS.insert(3, 1, scn=2)])
    other.flush()
    assert list(target.documents("orders")) == [1, 3]
    again = target.sink(exactly_once=True)
    with pytest.raises(SinkError, match="another process writes it"):
        again.open(KNOWN)
    assert again.open(Opening("test", "shop", at(1), takes_over=True)) == at(2)
    again.close()
    other.write([ORDERS.insert(4, 1, scn=3)])
    with pytest.raises(SinkError, match="another process writes it"):
        other.flush()


def test_two_processes_that_open_at_once_have_one_owner(
    target: Target, sink: MongoSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    with target.opened(exactly_once=True):
        held = target.client.databus.positions.find_one({"_id": "test/shop"})
    assert held is not None
    late = positions.StoredPosition(target.client.databus.positions, OPENING)
    monkeypatch.setattr(late, "_process", "late:1")
    for owner in (None, "someone who was the owner before"):
        with (
            target.client.start_session() as session,
            pytest.raises(SinkUnavailableError, match="another process opens it just now"),
        ):
            late._own(owner, session)
    assert target.client.databus.positions.find_one({"_id": "test/shop"}) == held


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_transaction_that_was_left_open_holds_nobody_up(
    target: Target, sink: MongoSink, other: MongoSink, takes_over: bool
) -> None:
    sink.write([ORDERS.insert(1, 1, scn=1)])
    sink.flush()
    assert sink._stored is not None
    assert sink._session is not None
    sink._session.start_transaction()
    sink._stored.move(at(2), sink._session)  # and the process is killed
    begun = time.monotonic()
    next_one = other if takes_over else target.sink(exactly_once=True)
    assert next_one.open(KNOWN) == at(1)
    next_one.write([ORDERS.insert(2, 1, scn=2)])
    assert next_one.flush() == at(2)
    assert time.monotonic() - begun < 20  # MongoDB itself ends it after 60 seconds
    next_one.close()
    with pytest.raises(PyMongoError):
        sink._session.commit_transaction()


def test_a_position_that_is_lost_stops_the_sink(
    target: Target, sink: MongoSink, other: MongoSink
) -> None:
    sink.write([ORDERS.insert(1, 1, scn=1)])
    sink.flush()
    target.client.databus.positions.update_one({}, {"$set": {"position": at(0).to_json()}})
    sink.write([ORDERS.insert(2, 1, scn=2)])
    with pytest.raises(SinkUnavailableError, match="has another position than before"):
        sink.flush()
    target.client.databus.positions.delete_many({})
    with pytest.raises(SinkError, match="has lost the position") as stopped:
        sink.flush()
    assert not isinstance(stopped.value, SinkUnavailableError)
    assert list(target.documents("orders")) == [1]
    with pytest.raises(SinkError, match="has lost the position"):
        other.open(KNOWN)
