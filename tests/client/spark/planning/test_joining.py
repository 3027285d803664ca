"""Tables that a query takes in while it runs, or gives up: no row is left out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as st

from databus.client.spark.options import parse_options
from databus.client.spark.planning import measure_client
from databus.client.spark.planning.joining import JoiningPlanner, moves
from databus.client.spark.planning.offsets import (
    AtScn,
    InSnapshot,
    Proof,
    QueryOffset,
    from_offset,
    to_offset,
)
from databus.client.spark.planning.planner import Planner
from databus.client.spark.planning.ranges import (
    LogRange,
    SnapshotEnd,
    SnapshotRange,
    ranges_between,
)
from databus.client.spark.source.change_stream import ChangeStream
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    BootstrapTooOldError,
    CheckpointError,
    TableStoppedError,
    UnknownSourceError,
)
from tests.client.spark.planning.fake_servers import FakeBootstrap, FakeRelay, measuring_of

OLD, NEW = "shop.old", "shop.new"
START = QueryOffset(("shop.*",))


class Shop:
    """A relay and a store whose tables come and go, and a query of `sources`."""

    def __init__(self, sources: str = "shop.*", start: str = "beginning", **options: str) -> None:
        self.now_s = 0.0
        self.relay = FakeRelay(floor=10, physical={"shop": (OLD,)})
        self.store = FakeBootstrap(rows={OLD: 10})
        given = {"sources": sources, "start": start, **options}
        self.client = measuring_of(self.relay, self.store, **given)
        servers = {"relays": "http://fake", "bootstrapServers": "http://fake"}
        wanted = parse_options({**given, **servers})
        self.planning = JoiningPlanner(
            self.client, Planner(self.client, wanted.start), wanted, lambda: self.now_s
        )

    def add(self, source: str, rows: int = 10) -> None:
        self.relay.physical = {"shop": (*self.relay.physical["shop"], source)}
        self.store.rows = {**self.store.rows, source: rows}

    def step(self, offset: QueryOffset, rows: int = 10) -> QueryOffset:
        with patch.object(measure_client, "_LOOK_AGAIN_S", 0):
            return self.planning.next_offset(offset, rows)

    def walk(self, offset: QueryOffset, rows: int = 10) -> list[QueryOffset]:
        found = [offset]
        while (further := self.step(found[-1], rows)) != found[-1]:
            found.append(further)
            assert len(found) < 500
        return found

    def read(self, start: QueryOffset, end: QueryOffset) -> list[Any]:
        homes = {s: name for name, of in self.client.by_physical.items() for s in of}
        return [
            one
            for group, after, until in moves(start, end, homes)
            for one in ranges_between(group, after, until)
        ]


def test_a_window_of_a_source_that_is_left_out_proves_nothing_of_the_others() -> None:
    window = (90, 900, OLD)
    begun = QueryOffset((NEW, OLD), {"shop": AtScn(90, proof=Proof((90, 900), window))})

    def sent(shop: Shop, *sources: str) -> set[Proof]:
        """Return what is shown with the requests for these sources."""
        asked = [p for path, p in shop.relay.asked if path == "/measure"]
        asked = [one for one in asked if {*one["sources"].split(",")} == {*sources}]
        found = [Checkpoint.from_json(one["checkPoint"]) for one in asked]
        return {Proof(one.mark, one.log_window) for one in found if one.window_scn == 90}

    taken_out, stopped = Shop(sources=OLD), Shop()
    stopped.add(NEW)
    stopped.relay.stopped = {NEW: 80}
    for shop in (taken_out, stopped):
        end = shop.step(begun)
        assert sent(shop, OLD) == {Proof(None, window)}
        (one,) = shop.read(begun, end)
        assert one.proof == Proof(None, window)
    kept = Shop()
    kept.add(NEW)
    kept.step(begun)
    assert sent(kept, OLD, NEW) == {Proof((90, 900), window)}


def test_a_table_that_comes_later_is_read_whole_and_then_goes_along() -> None:
    shop = Shop()
    offset = shop.walk(START)[-1]
    assert offset == QueryOffset((OLD,), {"shop": AtScn(100, offset.places["shop"].time_ms)})  # type: ignore[union-attr]
    shop.add(NEW, rows=15)
    shop.relay.newest, shop.store.newest = 130, 120
    steps = shop.walk(offset)
    joins = [one for one in steps if one.joining]
    assert isinstance(joins[0].joining[NEW], InSnapshot)
    assert joins[0].sources == (NEW, OLD)
    assert {one.places["shop"].scn for one in joins} == {110, 115}, "the others go on"  # type: ignore[union-attr]
    assert steps[-1].joining == {}
    assert steps[-1].places["shop"].scn == 130  # type: ignore[union-attr]


@pytest.mark.parametrize("start", ["earliest", "latest", "90"])
def test_a_query_of_changes_alone_has_a_new_table_from_its_place_on(start: str) -> None:
    shop = Shop(start=start)
    offset = shop.walk(START)[-1]
    shop.add(NEW)
    shop.relay.newest = 104
    further = shop.step(offset)
    assert further.joining == {}
    assert shop.read(offset, further) == [LogRange("shop", (NEW, OLD), 100, 104)]


def changes_and_all_of_new_tables(start: str) -> Shop:
    """Return the shop of a query that begins with changes, and reads tables of later whole."""
    return Shop(start=start, newSources="beginning", bootstrapServers="http://fake")


@pytest.mark.parametrize("start", ["earliest", "latest", "90"])
def test_a_query_of_changes_that_is_to_read_new_tables_whole_does(start: str) -> None:
    shop = changes_and_all_of_new_tables(start)
    offset = shop.walk(START)[-1]
    shop.add(NEW, rows=15)
    shop.relay.newest = shop.store.newest = 130
    steps = shop.walk(offset)
    assert (steps[-1].joining, steps[-1].sources) == ({}, (NEW, OLD))
    read = [one for begun, end in pairwise(steps) for one in shop.read(begun, end)]
    rows = [one for one in read if isinstance(one, SnapshotRange)]
    assert [(one.from_row, one.to_row) for one in rows] == [(0, 10), (10, 15)]
    assert SnapshotEnd("shop", (NEW,), 130) in read


def test_tables_that_are_there_begin_with_the_changes_that_a_query_asks_for() -> None:
    shop = changes_and_all_of_new_tables("90")
    shop.relay.physical = {"shop": (OLD, NEW)}  # which the store has not: it was loaded elsewhere
    begun = shop.step(START)
    assert shop.read(START, begun) == [LogRange("shop", (NEW, OLD), 90, 100)]


def test_a_table_that_no_bootstrap_server_has_does_not_hold_others_that_begin_with_changes() -> (
    None
):
    shop = changes_and_all_of_new_tables("60")
    shop.relay.physical, shop.relay.floor = {"shop": (OLD, NEW)}, 80
    shop.store.log_floor = 70
    begun = shop.step(START)
    assert (begun.sources, [*shop.planning.waiting]) == ((OLD,), [NEW])
    shop.store.rows = {OLD: 10, NEW: 10}
    shop.now_s += 100
    steps = shop.walk(begun)
    assert (steps[-1].sources, steps[-1].joining) == ((NEW, OLD), {})


def test_a_table_that_the_bootstrap_server_lacks_is_waited_for_and_named() -> None:
    shop = Shop()
    offset = shop.walk(START)[-1]
    shop.relay.physical = {"shop": (OLD, NEW)}
    shop.relay.newest = 120
    with patch.object(shop.client, "begin_snapshot", side_effect=UnknownSourceError(NEW, [OLD])):
        steps = shop.walk(offset)
    assert {source for one in steps for source in one.sources} - {"shop.*"} == {OLD}
    assert "shop.new" in str(shop.planning.waiting[NEW])
    assert steps[-1].places["shop"].scn == 120, "the others go on"  # type: ignore[union-attr]


def test_a_table_that_is_not_wanted_any_more_is_left_out() -> None:
    offset = QueryOffset((NEW, OLD), {"shop": AtScn(95)}, {NEW: AtScn(90)})
    shop = Shop("shop.*,!shop.new")
    shop.add(NEW)
    further = shop.walk(offset)[-1]
    assert further.sources == (OLD,)
    assert further.joining == {}
    assert shop.read(offset, further) == [LogRange("shop", (OLD,), 95, 100)]


def test_a_table_that_no_relay_has_any_more_is_an_error_and_not_left_out() -> None:
    offset = QueryOffset((NEW, OLD), {"shop": AtScn(95)})
    with pytest.raises(UnknownSourceError, match=r"shop\.new"):
        Shop().step(offset)


def test_a_checkpoint_of_other_tables_is_refused() -> None:
    offset = QueryOffset(("shop.other",), {"shop": AtScn(95)})
    with pytest.raises(CheckpointError, match=r"is for sources shop\.other, but the query now"):
        Shop("shop.old").step(offset)


def test_a_batch_with_a_table_that_is_gone_since_is_not_read_without_it() -> None:
    begun = QueryOffset((OLD, NEW), {"shop": AtScn(5)})
    with pytest.raises(UnknownSourceError, match=r"shop\.new"):
        list(moves(begun, QueryOffset((OLD, NEW), {"shop": AtScn(9)}), {OLD: "shop"}))


@given(st.integers(0, 1 << 32))
@settings(deadline=None)
def test_every_row_of_every_table_is_read_whenever_it_comes(seed: int) -> None:
    """Each table: its snapshot whole, then its log from there on without a gap, each once."""
    chance = Random(seed)
    shop = Shop()
    offset, tables = START, [OLD]
    log: dict[str, list[tuple[int, int]]] = defaultdict(list)
    rows: dict[str, list[tuple[int, int]]] = defaultdict(list)
    as_of: dict[str, int] = {}
    for _ in range(60):
        if len(tables) < 4 and chance.random() < 0.1:
            tables.append(f"shop.t{len(tables)}")
            shop.add(tables[-1], chance.randint(0, 25))
        shop.relay.newest += chance.randint(0, 15)
        shop.store.newest = max(shop.store.newest, shop.relay.newest - chance.randint(0, 30))
        further = shop.step(offset, chance.randint(1, 40))
        further = from_offset(to_offset(further))
        for one in shop.read(offset, further):
            match one:
                case LogRange():
                    for source in one.sources:
                        log[source].append((one.from_scn, one.to_scn))
                case SnapshotRange():
                    rows[one.source].append((one.from_row, one.to_row))
                    as_of[one.source] = one.at_scn
                case SnapshotEnd():
                    as_of |= dict.fromkeys(one.sources, one.at_scn)
        offset = further
    shop.store.newest = shop.relay.newest
    for start, end in zip(steps := shop.walk(offset), steps[1:], strict=False):
        for one in shop.read(start, end):
            if isinstance(one, LogRange):
                for source in one.sources:
                    log[source].append((one.from_scn, one.to_scn))
            elif isinstance(one, SnapshotRange):
                rows[one.source].append((one.from_row, one.to_row))
                as_of[one.source] = one.at_scn
            else:
                as_of |= dict.fromkeys(one.sources, one.at_scn)
    for source in tables:
        read = sum(end - begin for begin, end in rows[source])
        assert read == shop.store.rows[source], source
        begins = [as_of[source], *(end for _, end in log[source])]
        assert begins == [*(begin for begin, _ in log[source]), shop.relay.newest], source


def log_of(shop: Shop, source: str, steps: list[QueryOffset]) -> list[tuple[int, int]]:
    """Return the ranges of a source's log in some batches; it may have no snapshot."""
    found = []
    for start, end in pairwise(steps):
        for one in shop.read(start, end):
            if isinstance(one, LogRange):
                found += [(one.from_scn, one.to_scn)] * (source in one.sources)
            else:
                assert not isinstance(one, SnapshotRange) or one.source != source
    return found


@pytest.mark.parametrize("made", [60, 100, 101, 103])
def test_a_table_that_was_made_while_it_was_captured_is_read_from_its_create_on(made: int) -> None:
    shop = Shop()
    offset = shop.walk(START)[-1]
    shop.relay.physical = {"shop": (OLD, NEW)}
    shop.relay.made = {NEW: made}
    steps = shop.walk(offset)
    shop.relay.newest = 130
    steps += shop.walk(steps[-1], rows=7)[1:]
    assert (steps[-1].joining, steps[-1].sources) == ({}, (NEW, OLD))
    log = log_of(shop, NEW, steps)
    assert [begin for begin, _ in log] == [made - 1, *(end for _, end in log[:-1])]
    assert log[-1][1] == 130
    assert log_of(shop, OLD, steps)[0][0] == 100


def test_a_table_without_a_schema_is_looked_at_again() -> None:
    shop = Shop()
    offset = shop.walk(START)[-1]
    shop.relay.physical = {"shop": (OLD, NEW)}
    shop.relay.made, shop.relay.unknown = {NEW: 103}, {NEW}
    shop.relay.newest = 110
    offset = shop.walk(offset)[-1]
    assert offset.sources == (OLD,)
    shop.relay.unknown, shop.now_s = set(), 1.0
    steps = shop.walk(offset)
    assert steps[-1].sources == (NEW, OLD)
    assert log_of(shop, NEW, steps) == [(102, 110)]


def test_a_table_that_is_waited_for_is_tried_again_but_not_at_every_look() -> None:
    shop = Shop()
    offset = shop.walk(START)[-1]
    shop.relay.physical = {"shop": (OLD, NEW)}
    refused = patch.object(shop.client, "begin_snapshot", side_effect=UnknownSourceError(NEW, []))
    with refused as asked:
        for _ in range(5):
            assert shop.step(offset) == offset
        assert asked.call_count == 1
        shop.now_s += 1
        shop.step(offset)
        assert asked.call_count == 2
    shop.store.rows = {OLD: 10, NEW: 10}
    shop.now_s += 1
    assert NEW in shop.step(offset).joining
    assert shop.planning.waiting == {}


@pytest.mark.parametrize("target", [None, 100], ids=["for ever", "available now"])
def test_a_table_that_cannot_be_seeded_does_not_hold_the_others(target: int | None) -> None:
    shop = Shop()
    shop.add(NEW)
    shop.store.refused = (NEW,)
    targets = None if target is None else {"shop": target}
    with patch.object(measure_client, "_LOOK_AGAIN_S", 0):
        offset = shop.planning.next_offset(START, 10, targets)
        assert (offset.sources, list(offset.places)) == ((OLD,), ["shop"])
        shop.now_s += 100
        offset = shop.planning.next_offset(offset, 10, targets)
    assert offset.sources == (OLD,)
    assert "not a valid date" in str(shop.planning.waiting[NEW])
    shop.store.refused, shop.now_s = (), shop.now_s + 100
    offset = shop.walk(offset)[-1]
    assert (offset.sources, offset.joining) == ((NEW, OLD), {})


def test_a_table_that_is_stopped_alone_is_left_out_and_joins_again_when_that_is_over() -> None:
    shop = Shop()
    shop.add(NEW)
    offset = shop.walk(START)[-1]
    shop.relay.stopped = {NEW: 100}
    shop.relay.newest = shop.store.newest = 130
    offset = shop.walk(offset)[-1]
    assert (offset.sources, offset.places["shop"].scn) == ((OLD,), 130)  # type: ignore[union-attr]
    assert "stopped alone" in str(shop.planning.waiting[NEW])
    shop.now_s += 100
    offset = shop.walk(offset)[-1]
    assert offset.sources == (OLD,)
    shop.relay.stopped, shop.now_s = {}, shop.now_s + 100
    last = shop.walk(offset)
    assert (last[-1].sources, last[-1].joining) == ((NEW, OLD), {})
    read = [one for start, end in pairwise(last) for one in shop.read(start, end)]
    assert [one for one in read if isinstance(one, SnapshotEnd)], "it was read whole"


def test_a_table_that_is_stopped_alone_does_not_hide_the_newest_scn_from_others() -> None:
    shop = Shop()
    shop.add(NEW)
    shop.relay.stopped, shop.relay.newest = {NEW: 100}, 130
    assert shop.client.newest_scns() == {"shop": 130}
    shop.relay.stopped = {NEW: 100, OLD: 100}
    with pytest.raises(TableStoppedError):
        shop.client.newest_scns()


def test_a_table_that_the_bootstrap_server_gives_up_within_a_snapshot_is_left_out() -> None:
    shop = Shop()
    shop.add(NEW)
    offset = shop.step(START, 5)
    assert isinstance(offset.places["shop"], InSnapshot)
    shop.store.rows = {OLD: 10}
    offset = shop.walk(offset, 5)[-1]
    assert (offset.sources, offset.places["shop"].scn) == ((OLD,), 100)  # type: ignore[union-attr]
    assert NEW in shop.planning.waiting


def test_the_only_table_of_a_query_that_is_stopped_is_an_error() -> None:
    shop = Shop()
    offset = shop.walk(START)[-1]
    shop.relay.stopped = {OLD: 100}
    with pytest.raises(TableStoppedError):
        shop.step(offset)


def test_a_query_begins_with_the_tables_that_the_bootstrap_server_has() -> None:
    shop = Shop()
    shop.relay.physical = {"shop": (OLD, NEW)}
    shop.store.newest = 40
    shop.relay.floor = 30
    begun = shop.step(START)
    assert begun.sources == (OLD,)
    shop.store.rows = {OLD: 10, NEW: 10}
    assert shop.walk(begun)[-1].sources == (NEW, OLD)


def with_new_in_its_snapshot() -> tuple[Shop, QueryOffset]:
    """Return a shop with a table that joins, and a query that has read some of its rows."""
    shop = Shop()
    offset = shop.walk(START)[-1]
    shop.add(NEW, rows=40)
    offset = shop.step(offset)
    assert isinstance(offset.joining[NEW], InSnapshot)
    return shop, offset


def test_a_table_whose_snapshot_cannot_be_read_on_is_waited_for_and_named() -> None:
    shop, begun = with_new_in_its_snapshot()
    shop.store.store, shop.store.newest = "store-2", 99
    shop.relay.newest = 110
    held = shop.walk(begun)[-1]
    assert held.joining == begun.joining
    assert held.places["shop"].scn == 110, "the others go on"  # type: ignore[union-attr]
    assert "or its source is another database" in str(shop.planning.waiting[NEW])
    shop.store.newest = 110
    assert shop.walk(held)[-1].joining == {}
    assert shop.planning.waiting == {}


def test_a_table_that_waits_for_the_log_after_its_snapshot_does_not_end_the_query() -> None:
    shop, begun = with_new_in_its_snapshot()
    read = replace(begun, joining={NEW: AtScn(100)}, places={"shop": AtScn(150)})
    shop.relay.newest, shop.relay.floor, shop.store.is_seeded = 160, 140, False
    held = shop.walk(read)[-1]
    assert (held.joining, held.places["shop"].scn) == (read.joining, 160)  # type: ignore[union-attr]
    assert NEW in shop.planning.waiting
    shop.store.newest, shop.store.is_seeded = 160, True
    assert shop.walk(held)[-1].joining == {}
    assert shop.planning.waiting == {}


@pytest.mark.parametrize("offset", [START, QueryOffset((OLD,), {"shop": AtScn(5)})])
def test_why_a_query_does_not_go_on_is_told_and_logged_once(
    offset: QueryOffset, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    for rows in range(3):
        seeding = BootstrapTooOldError.answered("http://fake", f"seeding, {rows} rows")
        with patch.object(shop.client, "begin_snapshot", side_effect=seeding):
            assert shop.step(offset) == offset
        assert shop.planning.waiting == {OLD: seeding}
    assert [one.getMessage() for one in caplog.records] == [
        "shop.old: not read: http://fake: seeding, 0 rows"
    ]
    assert shop.step(offset) != offset
    assert shop.planning.waiting == {}


def test_a_query_that_is_to_end_does_not_end_well_with_a_table_half_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop, begun = with_new_in_its_snapshot()
    shop.store.is_seeded = False
    made = "databus.client.spark.source.change_stream.make_measure_client"
    monkeypatch.setattr(made, lambda _: shop.client)
    servers = {"relays": "http://fake", "bootstrapServers": "http://fake"}
    stream = ChangeStream({"sources": "shop.*", **servers})
    stream.aim_at_newest()
    with pytest.raises(BootstrapTooOldError):
        stream.latest_offset(to_offset(begun), stream.default_limit())
