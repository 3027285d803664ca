"""The sink `mongodb` with a unique index of the user's own: what comes again meets what is ahead.

Also random: transactions that swap unique values, over four lanes that are cut off and begin again
at any place before what they have all written.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect

from databus.client.sinks.contract import Change, Opening, Position
from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from databus.client.sinks.rules.orders import Scheduler, Step
from databus.client.sinks.running.feed import Feed, SinkState
from databus.demo.processes import wait_until
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from databus.testing.recorder import Recorder
from tests import PATIENCE_S
from tests.client.sinks.changes import ListedStream, plan_of, window
from tests.client.sinks.ready.mongodb.conftest import OPENING, Target
from tests.client.sinks.ready.sql.targets import Source

pytestmark = pytest.mark.mongodb

T = Source({"id": "int", "v": "varchar(9)", "n": "int"})
ONLY_TEXTS: dict[str, Any] = {"partialFilterExpression": {"v": {"$type": "string"}}}


def opening_at(scn: int | None) -> Opening:
    position = None if scn is None else Position("shop", Checkpoint.at(scn))
    return replace(OPENING, position=position)


def put(target: Target, *changes: Change, passed: int | None = None, **options: Any) -> None:
    """Write changes in one flush of a sink that goes on behind an SCN."""
    with closing(target.sink(**options)) as sink:
        sink.open(opening_at(passed))
        sink.write(changes)
        sink.flush()


def held(target: Target, collection: str = "t") -> dict[int, Any]:
    return {key: one["v"] for key, one in target.documents(collection).items()}


@pytest.fixture
def unique(target: Target) -> Target:
    target.client.shop.t.create_index("v", unique=True)
    return target


def test_an_older_change_waits_for_its_next_one_where_a_newer_document_has_its_value(
    unique: Target,
) -> None:
    put(unique, T.insert(1, "w", 1), T.insert(2, "u", 1, scn=9))
    older = T.update(1, "u", 1, scn=5)
    put(unique, older)
    # Its older values are gone, too: another row may have them by now.
    assert held(unique) == {2: "u"}
    put(unique, T.insert(3, "w", 1, scn=6), T.update(1, "x", 1, scn=7))
    assert held(unique) == {1: "x", 2: "u", 3: "w"}
    put(unique, older, T.insert(4, "y", 1, scn=8))
    assert held(unique) == {1: "x", 2: "u", 3: "w", 4: "y"}


def test_a_change_in_the_middle_of_a_transaction_waits_for_its_end(unique: Target) -> None:
    put(unique, T.insert(2, "u", 1, scn=9))
    put(unique, T.update(1, "u", 1, scn=9))
    assert held(unique) == {2: "u"}
    put(unique, T.update(1, "x", 1, scn=9, index=2))
    assert held(unique) == {1: "x", 2: "u"}


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ((T.insert(1, "u", 1, scn=10),), 1),  # newer: the source does not have it twice
        ((T.insert(1, "u", 1, scn=5),), 5),  # a dead letter, after which nothing of the row comes
        ((T.made("snapshot", 1, "u", 1, scn=5),), None),  # rows at rest are in no order
        ((T.insert(1, "z", 1, scn=9), T.insert(3, "z", 1, scn=9)), 1),  # both of one flush
    ],
)
def test_a_value_that_is_there_twice_in_the_source_is_a_refusal(
    unique: Target, changes: Sequence[Change], passed: int | None
) -> None:
    put(unique, T.insert(2, "u", 1, scn=9))
    info = replace(changes[0].transaction, phase="snapshot")
    given = [replace(one, transaction=info) if one.op == "snapshot" else one for one in changes]
    with pytest.raises(SinkRefusedError, match=r"E11000.*index: v_1") as refused:
        put(unique, *given, passed=passed)
    assert refused.value.change in given
    assert held(unique)[2] == "u"


def test_two_nulls_and_a_collection_of_several_tables_are_a_refusal(unique: Target) -> None:
    put(unique, T.insert(2, None, 1, scn=9), T.insert(3, "u", 1, scn=9))
    with pytest.raises(SinkRefusedError, match="E11000"):
        put(unique, T.insert(1, None, 1, scn=5))
    with pytest.raises(SinkRefusedError, match="E11000"):
        put(unique, T.insert(1, "u", 1, scn=5), collection="t")
    assert sorted(held(unique)) == [2, 3]


@pytest.mark.parametrize("index", [ONLY_TEXTS, {"collation": {"locale": "en", "strength": 1}}])
def test_an_index_may_be_partial_or_compare_texts_in_its_own_way(
    target: Target, index: dict[str, Any]
) -> None:
    target.client.shop.t.create_index("v", unique=True, **index)
    put(target, T.insert(2, "u", 1, scn=9))
    put(target, T.insert(1, "U" if "collation" in index else "u", 1, scn=5))
    assert held(target) == {2: "u"}


def test_order_row_wants_lanes_by_the_values_of_a_unique_index(unique: Target) -> None:
    with unique.opened() as sink:
        assert sink.unique_keys("shop.t") == (("v",),)
        assert sink.unique_keys("shop.elsewhere") == ()
    with unique.opened(collection="{table}-{n}") as sink:
        assert sink.unique_keys("shop.t") == ()
    stream = ListedStream(window(1, ("t", 1), v="a"))
    plan = plan_of(Recorder(), order="row", lanes=2)
    feed = Feed(replace(plan, make=unique.sink), stream)
    feed.start()
    try:
        wait_until(lambda: feed.state is SinkState.STOPPED, PATIENCE_S, "the stop")
        assert isinstance(feed.error, SettingsError)
        assert "shop.t has another unique key (v)" in str(feed.error)
    finally:
        feed.stop()
    assert held(unique) == {}


class Model:
    """Rows whose `v` is unique, at the end of each statement; some have none."""

    VALUES = "abcdefgh"

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows: dict[int, str | None] = {}

    def transaction(self, scn: int) -> list[Change]:
        made: list[Change] = []
        for _ in range(self.rng.randint(1, 4)):
            made += self._some(scn, len(made))
        return made

    def _some(self, scn: int, index: int) -> Iterator[Change]:
        key, chance = self.rng.randrange(6), self.rng.random()
        if chance < 0.02:
            self.rows.clear()
            yield T.made("truncate", scn=scn, index=index)
        elif key not in self.rows:
            self.rows[key] = self._free()
            yield T.insert(key, self.rows[key], scn, scn=scn, index=index)
        elif chance < 0.15:
            yield T.delete(key, self.rows.pop(key), scn, scn=scn, index=index)
        elif chance < 0.25 and (new := self.rng.randrange(6)) not in self.rows:
            given: dict[str, Any] = {"scn": scn, "index": index, "is_move": True}
            yield T.delete(key, self.rows[key], scn, **given)
            self.rows[new] = self.rows.pop(key)
            yield T.insert(new, self.rows[new], scn, **given)
        elif chance < 0.75 and (other := self.rng.choice(list(self.rows))) != key:
            mine, theirs = self.rows[key], self.rows[other]
            for at, (one, value) in enumerate(((key, self._free()), (other, mine), (key, theirs))):
                yield self._update(one, value, scn, index + at)
        else:
            yield self._update(key, self._free(), scn, index)

    def _update(self, key: int, value: str | None, scn: int, index: int) -> Change:
        before = {"id": key, "v": self.rows[key], "n": 0}
        self.rows[key] = value
        return replace(T.update(key, value, scn, scn=scn, index=index), before=before)

    def _free(self) -> str | None:
        """Return a value that no row has, often one that another row has just given up."""
        free = [one for one in self.VALUES if one not in self.rows.values()]
        return self.rng.choice([*free, None])


class CutOff:
    """A collection that does a part of a request, and then answers nothing any more."""

    def __init__(self, collection: Collection[dict[str, Any]], rng: random.Random) -> None:
        self._collection, self._rng = collection, rng

    def bulk_write(self, operations: list[Any], **options: Any) -> None:
        some = [one for one in operations if self._rng.random() < 0.5]
        if some:
            self._collection.bulk_write(some, **options)
        if self._rng.random() < 0.7:
            raise AutoReconnect("killed")
        self._collection.bulk_write(operations, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collection, name)


class Run:
    """Four lanes of one process, from a place in the log to its end, or to a kill."""

    LANES = 4

    def __init__(self, target: Target, log: Sequence[Sequence[Change]], begin: int) -> None:
        self._log, self._begin = log, begin
        self._scheduler = Scheduler("row", self.LANES, "writeset", lambda _source: (("v",),))
        self._sinks = [target.sink() for _ in range(self.LANES)]
        self._given: list[deque[tuple[int, Sequence[Change]]]] = [deque() for _ in self._sinks]
        self._passed = begin if begin else None

    def __enter__(self) -> Run:
        self._stack = ExitStack()
        for sink in self._sinks:
            self._stack.callback(sink.close)
            sink.open(opening_at(self._passed))
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def until_killed(self, rng: random.Random, end: int) -> int:
        """Write, in any order that lanes may have; return up to where all of it is durable."""
        at = self._begin
        for at in range(self._begin, end):
            for step in self._scheduler.lanes_of(self._log[at]):
                self._give(step, at, rng)
        self._flush_some(rng)
        self._cut_off(rng)
        return min((queue[0][0] for queue in self._given if queue), default=at)

    def to_the_end(self, rng: random.Random) -> None:
        for at in range(self._begin, len(self._log)):
            for step in self._scheduler.lanes_of(self._log[at]):
                self._give(step, at, rng)
        self._flush_all(rng)

    def _give(self, step: Step, at: int, rng: random.Random) -> None:
        if step.is_barrier:
            self._flush_all(rng)
        for part in step.parts:
            self._given[part.lane].append((at, part.changes))
        if rng.random() < 0.3:
            self._flush_some(rng)

    def _flush_some(self, rng: random.Random) -> None:
        lane = rng.randrange(self.LANES)
        self._flush(lane, rng.randint(1, 4))

    def _flush_all(self, rng: random.Random) -> None:
        while left := [lane for lane, queue in enumerate(self._given) if queue]:
            self._flush(rng.choice(left), rng.randint(1, 4))

    def _flush(self, lane: int, count: int) -> None:
        queue, sink = self._given[lane], self._sinks[lane]
        some = [queue[at] for at in range(min(count, len(queue)))]
        sink.write([change for _, changes in some for change in changes])
        sink.flush()
        for _ in some:
            queue.popleft()

    def _cut_off(self, rng: random.Random) -> None:
        """Kill one lane within a flush."""
        lane = rng.randrange(self.LANES)
        collection = self._sinks[lane]._collection
        self._sinks[lane]._collection = (  # type: ignore[method-assign]
            lambda namespace: CutOff(collection(namespace), rng)  # type: ignore[assignment,return-value]
        )
        # The part that was done may be refused where all of it is not: it is cut off either way.
        with suppress(SinkUnavailableError, SinkRefusedError):
            self._flush(lane, 4)


@pytest.mark.parametrize("round", range(12))
def test_lanes_that_are_killed_and_begin_again_anywhere_end_as_the_rows(
    target: Target, round: int
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    target.client.shop.t.create_index("v", unique=True, **ONLY_TEXTS)
    model = Model(rng)
    log = [model.transaction(scn) for scn in range(1, 61)]
    begin = 0
    for end in (20, 40, 60, 60):
        with Run(target, log, begin) as run:
            durable = run.until_killed(rng, end)
        begin = rng.randint(max(0, durable - 15), durable)
    with Run(target, log, begin) as run:
        run.to_the_end(rng)
    assert held(target) == model.rows
