"""Where batches end: ring, then log, then snapshot; and never a step that could lose a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from databus.client.spark.options import parse_options
from databus.client.spark.planning.offsets import (
    AtScn,
    Group,
    InSnapshot,
    Place,
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
from databus.conf.named_places import ScnPlace, Word
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    BootstrapTooOldError,
    CheckpointError,
    SettingsError,
    UnknownSourceError,
)
from tests.client.spark.planning.fake_servers import SOURCES, FakeBootstrap, FakeRelay, measuring_of


def planner(relay: FakeRelay, bootstrap: FakeBootstrap | None = None, **options: str) -> Planner:
    start = parse_options({"sources": ",".join(SOURCES), "relays": "http://fake", **options}).start
    return Planner(measuring_of(relay, bootstrap, **options), start)


def step(planning: Planner, place: Place | None, rows: int | None = 10, **targets: int) -> Any:
    places = {} if place is None else {"shop": place}
    return planning.next_places(places, rows, targets or None).get("shop")


def walk(planning: Planner, rows: int, place: Place | None = None) -> list[Any]:
    """Return every place until nothing is new."""
    found: list[Any] = []
    while (further := step(planning, place, rows)) != place:
        found.append(further)
        place = further
        assert len(found) < 1000
    return found


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", AtScn(50, 50_000, from_scn=40)),
        ("latest", AtScn(100, 100_000, from_scn=100)),
        ("70", AtScn(80, 80_000, from_scn=70)),
        ("1970-01-01T00:01:00Z", AtScn(69, 69_000, from_scn=59)),
    ],
)
def test_the_first_offset_keeps_what_the_start_turned_out_to_be(start: str, first: AtScn) -> None:
    assert step(planner(FakeRelay(floor=40), start=start), None) == first


def test_a_query_that_waits_for_its_start_plans_nothing() -> None:
    assert step(planner(FakeRelay(newest=60), start="70"), None) is None


def test_a_ring_that_has_evicted_nothing_is_read_from_its_oldest_window() -> None:
    relay = FakeRelay(floor=-1, newest=9, oldest=4)
    assert step(planner(relay, start="earliest"), None) == AtScn(9, 9_000, from_scn=3)


def test_latest_on_a_ring_without_a_window_is_everything_that_comes() -> None:
    relay = FakeRelay(floor=-1, newest=-1)
    planning = planner(relay, start="latest")
    place = step(planning, None)
    assert place == AtScn(-1, place.time_ms, from_scn=-1)
    relay.newest, relay.oldest = 8, 5
    further = step(planning, place, None)
    assert (further.scn, further.from_scn) == (8, 4)


def test_a_ring_that_begins_where_capture_began_has_lost_nothing_there() -> None:
    relay = FakeRelay(floor=-1, newest=-1)
    planning = planner(relay, start="latest")
    place = step(planning, None)
    relay.floor, relay.newest, relay.oldest = 5, 8, 5
    further = step(planning, place, None)
    assert (further.scn, further.from_scn) == (8, 5)


def test_first_windows_that_a_ring_evicted_unseen_are_not_skipped() -> None:
    place = AtScn(-1, from_scn=-1)
    with pytest.raises(SettingsError, match="bootstrapServers"):
        step(planner(FakeRelay(floor=30, oldest=31)), place)
    found = step(planner(FakeRelay(floor=30, oldest=31), FakeBootstrap()), place)
    assert isinstance(found, InSnapshot)
    assert found.since_scn == 0, "all of it"


def test_a_start_that_no_relay_holds_is_named_with_a_way_on() -> None:
    planning = planner(FakeRelay(floor=70), start="1970-01-01T00:01:00Z")
    with pytest.raises(SettingsError, match=r"start = time:1970.*no relay holds.*shop.*earliest"):
        step(planning, None)


def test_a_time_that_is_still_to_come_is_waited_for() -> None:
    relay = FakeRelay(newest=50)
    planning = planner(relay, start="1970-01-01T00:01:00Z")
    assert step(planning, None) is None
    relay.newest = 60
    assert step(planning, None) == AtScn(60, 60_000, from_scn=59)


def test_a_batch_has_at_most_so_many_rows_and_all_without_a_limit() -> None:
    planning = planner(FakeRelay())
    assert step(planning, AtScn(20), 7) == AtScn(27, 27_000)
    assert step(planning, AtScn(20), None) == AtScn(100, 100_000)


def test_nothing_new_is_the_same_place_again() -> None:
    place = AtScn(100, 99)
    assert step(planner(FakeRelay()), place) is place


def test_nothing_is_read_beyond_the_target() -> None:
    planning = planner(FakeRelay())
    assert step(planning, AtScn(20), 50, shop=33) == AtScn(33, 33_000)
    assert step(planning, AtScn(33), 50, shop=33) == AtScn(33)


def test_a_start_that_is_yet_to_come_is_not_read_to_a_target_before_it() -> None:
    assert step(planner(FakeRelay(newest=60), start="70"), None, 10, shop=60) is None


def test_a_relay_without_a_window_has_nothing_to_read_up_to() -> None:
    planning = planner(FakeRelay(floor=-1, newest=-1), start="earliest")
    assert step(planning, None, 10, shop=-1) is None


def test_the_windows_that_the_ring_lacks_come_from_the_log() -> None:
    planning = planner(FakeRelay(floor=80), FakeBootstrap(log_floor=50))
    assert step(planning, AtScn(60)) == AtScn(70, 70_000)


def test_a_log_that_is_behind_the_consumer_is_waited_for() -> None:
    planning = planner(FakeRelay(floor=80), FakeBootstrap(newest=60, log_floor=50))
    assert step(planning, AtScn(60)) == AtScn(60)


def test_without_a_bootstrap_server_a_query_that_fell_behind_is_told_what_to_do() -> None:
    with pytest.raises(SettingsError, match="bootstrapServers"):
        step(planner(FakeRelay(floor=80)), AtScn(60))


def test_what_the_log_lacks_comes_as_what_changed_since() -> None:
    place = step(planner(FakeRelay(floor=80), FakeBootstrap(log_floor=70)), AtScn(60))
    assert place == InSnapshot(
        at_scn=100,
        since_scn=60,
        source="shop.orders",
        row=10,
        server="http://fake",
        store="store-1",
        left=("shop.people",),
    )


def test_a_query_that_slept_too_long_for_deleted_rows_reads_everything_again() -> None:
    bootstrap = FakeBootstrap(log_floor=70, knows_deleted_since=65)
    place = step(planner(FakeRelay(floor=80), bootstrap), AtScn(60))
    assert isinstance(place, InSnapshot)
    assert place.is_whole


def test_from_nothing_every_source_is_read_then_marked_then_the_log_goes_on() -> None:
    planning = planner(FakeRelay(floor=80, newest=110), FakeBootstrap(), start="beginning")
    found = walk(planning, 6)
    assert [(p.source, p.row) for p in found if isinstance(p, InSnapshot)] == [
        ("shop.orders", 6),
        ("shop.orders", 10),
        ("shop.people", 6),
        ("shop.people", 10),
    ]
    assert [p.scn for p in found if isinstance(p, AtScn)] == [100, 106, 110]


def test_a_ring_that_has_everything_needs_no_snapshot() -> None:
    bootstrap = FakeBootstrap()
    first = step(planner(FakeRelay(floor=0), bootstrap), None)
    assert first == AtScn(10, 10_000, from_scn=0)
    assert bootstrap.asked == []


def test_empty_tables_have_a_snapshot_that_begins_and_ends() -> None:
    bootstrap = FakeBootstrap(rows=dict.fromkeys(SOURCES, 0))
    begun, ended = walk(planner(FakeRelay(floor=80), bootstrap), 6)
    assert isinstance(begun, InSnapshot)
    assert begun.is_read
    assert ended == AtScn(100)


def test_a_snapshot_that_is_no_more_is_begun_anew_before_it_counts_as_complete() -> None:
    bootstrap = FakeBootstrap()
    planning = planner(FakeRelay(floor=80), bootstrap)
    *_, last = (p for p in walk(planning, 100) if isinstance(p, InSnapshot))
    assert last.is_read
    bootstrap.store = "store-2"
    anew = step(planning, last, 6)
    assert (anew.store, anew.row) == ("store-2", 6)


def test_rows_of_a_snapshot_are_not_joined_with_those_of_a_store_that_is_behind_it() -> None:
    bootstrap = FakeBootstrap()
    planning = planner(FakeRelay(floor=80), bootstrap)
    begun = step(planning, None, 6)
    bootstrap.store, bootstrap.newest = "another", begun.at_scn - 1
    with pytest.raises(BootstrapTooOldError, match=r"as of scn 99 only, .* as of scn 100"):
        step(planning, begun, 6)
    bootstrap.newest = begun.at_scn
    anew = step(planning, begun, 6)
    assert (anew.store, anew.row) == ("another", 6)


def test_a_snapshot_that_is_begun_anew_is_asked_for_with_the_windows_that_prove_its_log() -> None:
    relay, bootstrap = FakeRelay(newest=200, floor=150), FakeBootstrap(newest=200, log_floor=150)
    planning = planner(relay, bootstrap)
    proof = Proof((100, 111), (100, 111, "shop.orders"))

    def asked() -> list[Proof]:
        sent = [p["checkPoint"] for path, p in bootstrap.asked if path == "/startSCN"]
        bootstrap.asked.clear()
        return [Proof(one.mark, one.log_window) for one in map(Checkpoint.from_json, sent)]

    begun = step(planning, AtScn(100, proof=proof), 5)
    assert asked() == [proof]
    kept = from_offset(to_offset(QueryOffset(SOURCES, {"shop": begun}))).places["shop"]
    bootstrap.store = "another"
    anew = step(planning, kept, 5)
    assert anew.store == "another"
    assert asked() == [proof]
    *_, ended = walk(planning, 100, anew)
    assert ended.proof == proof, "a relay that tells none does not take it away"


def test_a_ring_that_has_evicted_up_to_scn_0_is_read_from_there() -> None:
    assert step(planner(FakeRelay(newest=9, oldest=4), start="earliest"), None).from_scn == 0


def test_a_query_in_a_snapshot_that_lost_its_bootstrap_servers_is_told_which_one_it_needs() -> None:
    begun = step(planner(FakeRelay(floor=80), FakeBootstrap()), None, 6)
    with pytest.raises(SettingsError, match=f"bootstrapServers, including {begun.server}"):
        step(planner(FakeRelay(floor=80), start="earliest"), begun, 6)


def test_the_server_that_began_a_snapshot_is_asked_first_for_the_rest() -> None:
    bootstrap = FakeBootstrap()
    planning = planner(FakeRelay(floor=80), bootstrap)
    begun = step(planning, None, 6)
    bootstrap.preferred.clear()
    step(planning, replace(begun, server="http://the-one"), 6)
    assert bootstrap.preferred == ["http://the-one"]


@pytest.mark.parametrize("targets", [{}, {"shop": 100}], ids=["for ever", "available now"])
@pytest.mark.parametrize("place", [None, AtScn(20)], ids=["at the beginning", "out of the ring"])
def test_a_server_that_still_seeds_is_named(place: Place | None, targets: dict[str, int]) -> None:
    bootstrap = FakeBootstrap(is_seeded=False)
    with pytest.raises(BootstrapTooOldError):
        step(planner(FakeRelay(floor=80), bootstrap), place, 10, **targets)


def test_a_source_that_no_relay_has_is_named_with_those_that_it_has() -> None:
    relay = FakeRelay(physical={"shop": ("shop.orders_2",)})
    with pytest.raises(UnknownSourceError, match=r"shop\.orders.*shop\.orders_2"):
        step(planner(relay), None)


def test_a_physical_source_that_was_renamed_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"warehouse.*was it renamed"):
        planner(FakeRelay()).next_places({"warehouse": AtScn(5)}, 10)


def test_each_physical_source_gets_its_share_of_the_rows() -> None:
    relay = FakeRelay(physical={"a": ("shop.orders",), "b": ("shop.people",)})
    found = planner(relay, start="earliest").next_places({}, 10)
    assert {name: place.scn for name, place in found.items()} == {"a": 5, "b": 5}  # type: ignore[union-attr]


def test_the_newest_windows_are_told_for_the_lag() -> None:
    measure_client = measuring_of(FakeRelay(newest=77))
    Planner(measure_client, ScnPlace(20)).next_places({}, 10)
    assert measure_client.newest == {"shop": AtScn(77, 77_000)}


def test_the_newest_window_is_told_anew_where_a_ring_lacks_the_place_of_a_query() -> None:
    relay, bootstrap = FakeRelay(newest=100), FakeBootstrap(newest=100, log_floor=0)
    measure_client = measuring_of(relay, bootstrap)
    planning = Planner(measure_client, ScnPlace(20))
    place = step(planning, AtScn(80))
    for newest in (1000, 1100):
        relay.newest, relay.floor, bootstrap.newest = newest, newest - 10, newest - 5
        place = step(planning, place)
        assert planning.rungs == {"shop": "log"}
        assert measure_client.newest["shop"].scn == newest
    # While the relay does not tell it, it is not known.
    relay.stopped = dict.fromkeys(SOURCES, 900)
    assert step(planning, place).scn > place.scn
    assert measure_client.newest == {}


def test_the_newest_window_is_told_anew_at_the_end_of_a_snapshot() -> None:
    relay = FakeRelay(newest=100, floor=80)
    measure_client = measuring_of(relay, FakeBootstrap())
    planning = Planner(measure_client, Word.BEGINNING)
    place = step(planning, None, 100)
    while not place.is_read:
        place = step(planning, place, 100)
    relay.newest, relay.floor = 1000, 900
    assert step(planning, place) == AtScn(100)
    assert measure_client.newest["shop"].scn == 1000


class _World:
    """A relay and a store that move between steps."""

    def __init__(self) -> None:
        self.relay = FakeRelay(newest=10, floor=0)
        self.bootstrap = FakeBootstrap(newest=8, log_floor=0)
        self.planning = planner(self.relay, self.bootstrap, start="beginning")

    def move(self, how: tuple[int, int, int, int, bool]) -> None:
        written, evicted, behind, cut, is_replaced = how
        relay, store = self.relay, self.bootstrap
        relay.newest += written
        relay.floor = min(relay.newest, relay.floor + evicted)
        store.newest = max(store.newest, relay.newest - behind)
        store.log_floor = min(store.newest, store.log_floor + cut)
        store.rows = {name: count + written for name, count in store.rows.items()}
        if is_replaced:
            store.store += "'"


moves = st.tuples(*(st.integers(0, 9),) * 4, st.integers(0, 7).map(lambda n: n == 0))


@settings(deadline=None)
@given(st.lists(moves, max_size=25), st.integers(1, 12))
def test_whatever_happens_batches_join_without_a_gap(steps: list[Any], rows: int) -> None:
    """Every SCN is covered by a log range or by a whole snapshot whose rows were all read."""
    world = _World()
    place: Place | None = None
    known_scn = 0  # everything up to it has been given, or comes in the snapshot in hand
    rows_read: dict[str, int] = {}
    for how in [*steps, *[(0, 0, 0, 0, False)] * 60]:
        world.move(how)
        end = step(world.planning, place, rows)
        if end is None or end == place:
            continue
        for one in ranges_between(Group("shop", SOURCES), place, end):
            if isinstance(one, LogRange):
                assert one.from_scn == known_scn
                known_scn = one.to_scn
            elif isinstance(one, SnapshotRange):
                if not (isinstance(place, InSnapshot) and replace(end, **_row(place)) == place):
                    rows_read = rows_read if end.is_same_session(place) else {}
                assert rows_read.get(one.source, 0) == one.from_row
                rows_read[one.source] = one.to_row
            else:
                assert isinstance(one, SnapshotEnd)
        if isinstance(place, InSnapshot) and isinstance(end, AtScn):
            assert all(rows_read.get(name, 0) >= 10 for name in SOURCES)
            assert end.scn == place.at_scn >= known_scn
            known_scn = end.scn
        place = end
    assert isinstance(place, AtScn | InSnapshot)
    if isinstance(place, AtScn):
        assert place.scn == known_scn


def _row(place: InSnapshot) -> dict[str, Any]:
    return {"source": place.source, "row": place.row, "is_read": place.is_read}
