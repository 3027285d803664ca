"""The sink `mongodb` goes on only in the MongoDB that it left, also without `exactly_once`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from databus.client.sinks.contract import Opening, Position
from databus.client.sinks.errors import SinkError, SinkUnavailableError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.running.feed import Feed, SinkState
from databus.demo.processes import wait_until
from databus.schemas.checkpoint import Checkpoint
from databus.testing.recorder import Recorder
from tests import PATIENCE_S
from tests.client.sinks.changes import ListedStream, plan_of, window
from tests.client.sinks.ready.mongodb.conftest import OPENING, Target
from tests.client.sinks.ready.mongodb.mongo_server import PrivateMongo
from tests.client.sinks.ready.sql.targets import Source

pytestmark = pytest.mark.mongodb

T = Source({"id": "int", "v": "int"})
KNOWN = Opening("test", "shop", Position("shop", Checkpoint.at(1)))
OWN = "test/shop/at-least-once"


def emptied(server: PrivateMongo) -> None:
    """Replace a server by an empty one at the same address."""
    server.kill()
    shutil.rmtree(server.folder / "data")
    server.start()


def go_on(target: Target, opening: Opening = KNOWN, **options: str) -> None:
    with closing(target.sink(**options)) as sink:
        sink.open(opening)


def test_a_document_of_its_own_is_there_before_anything_is_written(target: Target) -> None:
    with target.opened() as sink:
        held = target.client.databus.positions.find_one({"_id": OWN})
        assert held == {"_id": OWN, "collections": []}
        sink.write([T.insert(1, 1), Source({"id": "int"}, "other.gone").delete(1)])
        sink.flush()
    held = target.client.databus.positions.find_one({"_id": OWN})
    assert held == {"_id": OWN, "collections": ["shop.t"]}  # a delete makes no collection
    go_on(target)
    go_on(target, positions="databus.others", opening=OPENING)
    assert target.client.databus.others.find_one({"_id": OWN}) is not None


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_server_that_was_replaced_stops_the_sink_also_after_a_restart(
    new_mongo: Callable[[], PrivateMongo], lanes: int
) -> None:
    with new_mongo() as server:
        stream = ListedStream(*(window(scn, ("t", scn), v=1) for scn in range(1, 21)))
        make = sink_maker("mongodb", {"url": server.url})
        plan = replace(plan_of(Recorder(), order="row", lanes=lanes), make=make)
        feed = Feed(plan, stream)
        feed.start()
        try:
            wait_until(lambda: stream.stored[-1:] == [20], PATIENCE_S, "the rows")
            emptied(server)
            stream.put(window(21, ("t", 5), op="update", v=2))
            wait_until(lambda: feed.state is SinkState.STOPPED, PATIENCE_S, "the stop")
            assert stream.stored[-1] == 20
        finally:
            feed.stop()
        again = Feed(plan, stream)
        again.start()
        try:
            wait_until(lambda: again.state is SinkState.STOPPED, PATIENCE_S, "the stop")
            assert f"databus.positions, '{OWN}' is not there" in str(again.error)
        finally:
            again.stop()
        assert stream.stored[-1] == 20


def test_a_database_that_is_dropped_is_noticed_in_the_flush_or_the_next_opening(
    target: Target,
) -> None:
    with target.opened() as sink:
        sink.write([T.insert(1, 1)])
        sink.flush()
        target.client.drop_database("databus")
        for change in (T.delete(1, 1, scn=2), T.insert(2, 1, scn=2)):
            sink.write([change])
            with pytest.raises(SinkError, match="is not there: MongoDB is another one") as stopped:
                sink.flush()
            assert not isinstance(stopped.value, SinkUnavailableError)
        sink.write([T.made("truncate", scn=3)])
        with pytest.raises(SinkError, match="Under another name it begins anew"):
            sink.flush()
    with pytest.raises(SinkError, match="is not there"):
        go_on(target)
    go_on(target, OPENING)  # nothing was written yet: from here on everything comes
    target.put(T.insert(1, 1))
    target.client.drop_database("shop")
    with pytest.raises(SinkError, match=r"MongoDB has lost shop\.t, which the sink has filled"):
        go_on(target)


def test_a_collection_that_is_dropped_is_noticed_and_the_error_says_how_to_go_on(
    target: Target,
) -> None:
    other = Source({"id": "int"}, "other.u")
    target.put(T.insert(1, 1), other.insert(1))
    go_on(target)
    target.client.shop.t.drop()
    with pytest.raises(SinkError, match=r"lost shop\.t, which.*`databus sink reload`") as stopped:
        go_on(target)
    said = re.search(r'_id: "(.*)"}, {\$pullAll: {collections: (.*)}}\)', str(stopped.value))
    assert said is not None
    without = {"$pullAll": {"collections": json.loads(said[2])}}
    target.client.databus.positions.update_one({"_id": said[1]}, without)
    go_on(target)


def test_with_and_without_exactly_once_it_needs_another_name(target: Target) -> None:
    target.put(T.insert(1, 1))
    with (
        closing(target.sink(exactly_once=True)) as sink,
        pytest.raises(SinkError, match="or the sink ran without exactly_once before"),
    ):
        sink.open(KNOWN)
    target.put(T.insert(1, 1), exactly_once=True)
    target.client.databus.positions.delete_one({"_id": OWN})
    with pytest.raises(SinkError, match="or the sink ran with exactly_once before"):
        go_on(target)
