"""Sinks that keep their position: another process takes over, and a person takes it back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from databus.client.dispatcher.data_window import DataWindow
from databus.client.sinks.contract import Opening, Position, Sink
from databus.client.sinks.errors import SinkError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.ready.redis import sink as redis_module
from databus.client.sinks.rules.changes import TableRule, changes_of
from databus.client.sinks.running.feed import Feed, SinkState
from databus.client.sinks.running.plan import SinkPlan
from databus.schemas.checkpoint import Checkpoint
from databus.testing.recorder import Recorder
from tests.client.shop import wait_until
from tests.client.sinks.changes import ListedStream, plan_of, window
from tests.client.sinks.redis_server import PrivateRedis

pytest_plugins = ["tests.client.sinks.redis_fixtures"]


class Kind(NamedTuple):
    """What makes a sink of one process and of another one, and the keys that the target has."""

    make: Callable[[], Sink]
    make_other: Callable[[], Sink]
    keys: Callable[[], Sequence[int]]


@pytest.fixture(scope="module", autouse=True)
def _server_before_tests(request: pytest.FixtureRequest) -> None:
    """Start Redis before the first test if any needs it: it is not left behind by that test."""
    if any(item.get_closest_marker("redis") for item in request.session.items):
        request.getfixturevalue("redis_server")


@pytest.fixture(params=["sql", pytest.param("redis", marks=pytest.mark.redis)])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "redis":
        server: PrivateRedis = request.getfixturevalue("redis_server")
        client = request.getfixturevalue("redis")
        make = sink_maker("redis", {"url": server.url, "key": "row:{id}"})

        def found() -> Sequence[int]:
            return sorted(int(name[4:]) for name in client.scan_iter("row:*"))

        return Kind(make, lambda: OtherProcess(make()), found)
    url = f"sqlite:///{tmp_path / 'copy.db'}"

    def rows() -> Sequence[int]:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            return [row[0] for row in connection.exec_driver_sql("SELECT id FROM t ORDER BY id")]

    options = {"url": url}
    return Kind(sink_maker("sql", options), sink_maker("sql", options), rows)


class OtherProcess:
    """A sink of redis as another process has it: its name is that of the process."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            mine, redis_module._PROCESS = redis_module._PROCESS, "another:1"
            try:
                return getattr(self._sink, name)(*arguments)
            finally:
                redis_module._PROCESS = mine

        return call


@contextmanager
def running(plan: SinkPlan, stream: ListedStream) -> Iterator[Feed]:
    feed = Feed(plan, stream)
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()


def put(sink: Sink, one: DataWindow) -> None:
    """Write a window and its position."""
    changes = list(changes_of(one, lambda _: TableRule(), with_statements=False))
    position = Position("shop", Checkpoint.at(one.scn))
    sink.write([*changes[:-1], replace(changes[-1], position=position)])
    sink.flush()


def test_a_sink_that_another_process_has_replaced_goes_on_after_a_retry_of_a_person(
    kind: Kind,
) -> None:
    stream = ListedStream(window(1, ("t", 1)), sources=["shop.t"])
    plan = replace(plan_of(Recorder(), failures={"other": {"retries": 1}}), make=kind.make)
    with running(plan, stream) as feed:
        wait_until(lambda: stream.stored == [1])
        other = kind.make_other()
        try:
            opening = Opening("test", "shop", Position("shop", Checkpoint.at(1)))
            own = other.open(opening)
            assert own is not None
            put(other, window(2, ("t", 2)))
            put(other, window(3, ("t", 3)))
            stream.put(*(window(scn, ("t", scn)) for scn in (2, 3, 4)))
            wait_until(lambda: feed.state is SinkState.STOPPED)
            trouble = feed.status.trouble
            assert trouble is not None
            assert "another process writes" in trouble.problem
            assert "`databus sink retry`" in trouble.problem
            feed.retry()
            wait_until(lambda: stream.stored[-1:] == [4] and kind.keys() == [1, 2, 3, 4])
            wait_until(lambda: feed.state is SinkState.RUNNING)
            with pytest.raises(SinkError, match="another process writes"):
                put(other, window(4, ("t", 4)))
        finally:
            other.close()
        stream.put(window(5, ("t", 5)))
        wait_until(lambda: kind.keys() == [1, 2, 3, 4, 5])


def test_a_sink_that_tries_again_by_itself_leaves_the_other_process_alone(kind: Kind) -> None:
    stream = ListedStream(window(1, ("t", 1)), sources=["shop.t"])
    plan = replace(plan_of(Recorder(), failures={"other": {"retries": 20}}), make=kind.make)
    with running(plan, stream) as feed:
        wait_until(lambda: stream.stored == [1])
        other = kind.make_other()
        try:
            other.open(Opening("test", "shop", Position("shop", Checkpoint.at(1))))
            put(other, window(2, ("t", 2)))
            stream.put(window(2, ("t", 2)))
            wait_until(lambda: feed.state is SinkState.STOPPED)
            put(other, window(3, ("t", 3)))
        finally:
            other.close()
    assert kind.keys() == [1, 2, 3]
