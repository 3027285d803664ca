"""A bootstrap, through the whole stack: whatever happens, the rows of the source in the end."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from databus.bootstrap.store.store import SourceStatus
from databus.client import DatabusClient
from databus.schemas.filters import EventFilter, ModFilter, RangeFilter
from tests.mariadb_server import Database
from tests.promises.bootstrapping import (
    PAGE_BYTES,
    Applying,
    MysqlPlace,
    Place,
    RunningPair,
    RunningServer,
    SqlitePlace,
    WatchedCheckpoints,
    insert_orders,
    insert_people,
    rows_of,
    running_pair,
    serving,
    update_orders,
    write_past_the_ring,
)
from tests.promises.running import RunningRelay, Shop, consuming, wait_until

ORDERS, PEOPLE = 600, 200
WALK = ["ONLINE_CONSUMPTION", "BOOTSTRAP_SNAPSHOT", "BOOTSTRAP_CATCHUP", "ONLINE_CONSUMPTION"]
# What the seeder may say, and what it may not say within that.
ALLOWED = re.compile(r"\s*(SELECT|SHOW|SET|START TRANSACTION|COMMIT|ROLLBACK|USE)\b", re.IGNORECASE)
FORBIDDEN = re.compile(r"\b(LOCK|FLUSH|FOR UPDATE|GET_LOCK|SET GLOBAL|INTO)\b", re.IGNORECASE)


@pytest.fixture(scope="module", autouse=True)
def _server_before_tests(request: pytest.FixtureRequest) -> None:
    """Start MariaDB before the first test if any needs it: it is not left behind by that test."""
    if any(item.get_closest_marker("mariadb") for item in request.session.items):
        request.getfixturevalue("server")


@pytest.fixture(params=["sqlite", pytest.param("mysql", marks=pytest.mark.mariadb)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of database, with rows in both tables."""
    found: Place
    if request.param == "sqlite":
        found = SqlitePlace(request.getfixturevalue("shop"))
    else:
        found = MysqlPlace(request.getfixturevalue("database"), tmp_path)
    insert_orders(found, range(ORDERS))
    insert_people(found, PEOPLE)
    return found


@pytest.fixture
def both(place: Place, tmp_path: Path) -> Iterator[tuple[RunningRelay, RunningPair]]:
    """A relay that has evicted the past, and a pair that is seeded."""
    with running_pair(tmp_path, place) as (relay, pair):
        write_past_the_ring(place, relay)
        pair.seed()
        yield relay, pair


def options(servers: list[str], **more: Any) -> dict[str, Any]:
    """Return the options of a client that bootstraps in small pages and checkpoints each."""
    small = {"start": "beginning", "fetch_bytes": PAGE_BYTES, "checkpoint_every_s": 0}
    return {"bootstrap_servers": tuple(servers)} | small | more


def has_all(place: Place, seen: Applying) -> bool:
    """Say whether the consumer's rows are the source's, in both tables."""
    return seen.rows(place.orders, "id", "note") == rows_of(
        place, "orders", "id", "note"
    ) and seen.rows(place.people, "name", "land") == rows_of(place, "people", "name", "land")


def change_a_little(place: Place, number: int) -> None:
    """Change both tables: an insert, an update, a deletion, a changed key."""
    at = number % ORDERS
    place.run(
        f"INSERT INTO orders (id, note) VALUES ({10_000 + number}, 'new')",
        f"UPDATE orders SET note = 'again {number}' WHERE id % 50 = {at % 50}",
        f"DELETE FROM orders WHERE id = {at}",
        f"UPDATE orders SET id = {20_000 + number} WHERE id = {at + 1}",
        f"UPDATE people SET land = 'zz' WHERE name = 'p{number % PEOPLE}'",
        f"DELETE FROM people WHERE name = 'p{(number + 7) % PEOPLE}'",
    )


def wait_for_live(place: Place, relay: RunningRelay, seen: Applying, client: DatabusClient) -> None:
    """Wait until changes arrive that are made now, outside any bootstrap."""

    def is_live() -> bool:
        scn = relay.max_scn()
        update_orders(place)
        wait_until(lambda: relay.max_scn() > scn, "the change")
        return seen.calls[-1:] == ["stop"] and seen.scn > scn

    wait_until(is_live, "the live stream", lambda: (client.status(), seen.calls, seen.problems))


def wait_for_all(place: Place, seen: Applying, client: DatabusClient) -> None:
    """Wait until the consumer's rows are the source's, and live ones arrive, too."""
    place.run("UPDATE orders SET note = 'live' WHERE id % 100 = 99")

    def tell() -> object:
        return client.status(), seen.calls, seen.pages, seen.problems[:3]

    wait_until(lambda: seen.calls[-1:] == ["stop"], "the end of the bootstrap", tell)
    wait_until(lambda: has_all(place, seen), "the rows", tell)
    assert not seen.problems
    assert client.is_healthy


@pytest.mark.parametrize("order", ["linear", "classic"])
def test_a_new_client_has_the_rows_of_both_tables_and_then_goes_on_live(
    both: tuple[RunningRelay, RunningPair], place: Place, tmp_path: Path, order: str
) -> None:
    relay, pair = both
    # The source changes while the client reads: after each page of the first few.
    seen = Applying(lambda page: change_a_little(place, 3 * page) if page <= 20 else None)
    checkpoints = WatchedCheckpoints(tmp_path / "state")
    with serving(pair.server()) as servers:
        more = options(servers, bootstrap_order=order, checkpoints=checkpoints)
        with consuming([relay.url], [place.orders, place.people], seen, **more) as client:
            wait_for_all(place, seen, client)
    assert seen.calls == ["start", "stop"]
    assert seen.pages > 10
    wanted = WALK[1:] if order == "linear" else [*WALK[1:3], *WALK[1:3], WALK[3]]
    assert [mode for mode in checkpoints.modes if mode != "INIT"][-len(wanted) :] == wanted


@pytest.mark.parametrize("order", ["linear", "classic"])
def test_a_client_whose_scn_was_evicted_catches_up_and_its_checkpoint_walks_through_the_modes(
    both: tuple[RunningRelay, RunningPair], place: Place, tmp_path: Path, order: str
) -> None:
    relay, pair = both
    sources = [place.orders]
    seen = Applying()
    with serving(pair.server()) as servers:
        more = options(servers, bootstrap_order=order)
        kept = more | {"checkpoint_dir": tmp_path / "state"}
        with consuming([relay.url], sources, seen, **kept) as client:
            wait_for_live(place, relay, seen, client)
        place.run("DELETE FROM orders WHERE id BETWEEN 100 AND 120")
        write_past_the_ring(place, relay, seen.scn)
        pair.wait_for_producer()
        checkpoints = WatchedCheckpoints(tmp_path / "state")
        came = seen.bootstrapped
        more |= {"checkpoints": checkpoints}
        with consuming([relay.url], sources, seen, **more) as client:
            wait_for_live(place, relay, seen, client)
            rows = rows_of(place, "orders", "id", "note")
            wait_until(lambda: seen.rows(place.orders, "id", "note") == rows, "the rows")
    assert seen.calls == ["start", "stop"] * 2
    assert checkpoints.modes == WALK
    assert came < seen.bootstrapped
    assert not seen.problems


@pytest.mark.parametrize(
    ("wanted", "is_wanted"),
    [
        (ModFilter(3, 1, 2), lambda key: key % 3 == 1),
        (RangeFilter(50, 300), lambda key: 50 <= key < 300),
    ],
    ids=["mod", "range"],
)
def test_a_filtered_client_has_the_rows_that_it_wants_and_no_other(
    both: tuple[RunningRelay, RunningPair], place: Place, wanted: EventFilter, is_wanted: Any
) -> None:
    relay, pair = both
    seen = Applying(lambda page: change_a_little(place, 5 * page) if page <= 5 else None)
    with serving(pair.server()) as servers:
        more = options(servers, filters={place.orders: wanted})
        with consuming([relay.url], [place.orders], seen, **more) as client:
            wait_for_live(place, relay, seen, client)
            place.run("INSERT INTO orders (id, note) VALUES (40000, 'x'), (40001, 'y')")
            place.run("UPDATE orders SET note = 'live' WHERE id % 100 < 10")
            rows = {r for r in rows_of(place, "orders", "id", "note") if is_wanted(r[0])}
            wait_until(lambda: seen.rows(place.orders, "id", "note") == rows, "the rows")
    assert not seen.problems


def test_a_column_added_between_snapshot_and_catch_up_has_its_values_in_the_end(
    both: tuple[RunningRelay, RunningPair], place: Place
) -> None:
    relay, pair = both
    kind = "INTEGER" if isinstance(place, SqlitePlace) else "INT"

    def alter(page: int) -> None:
        if page == 1:
            before = pair.position()
            place.run(
                f"ALTER TABLE orders ADD COLUMN extra {kind}",
                "UPDATE orders SET extra = id WHERE id % 3 = 0",
                "INSERT INTO orders (id, note, extra) VALUES (50000, 'with', 7)",
            )
            pair.wait(lambda: pair.position() > before, "the new rows in the log")

    seen = Applying(alter)
    with serving(pair.server()) as servers:
        more = options(servers)
        with consuming([relay.url], [place.orders, place.people], seen, **more) as client:
            wait_for_all(place, seen, client)
    found = {row["id"]: row.get("extra") for row in seen.state[place.orders].values()}
    assert found == dict(place.run("SELECT id, extra FROM orders"))


@pytest.mark.parametrize("mode", ["BOOTSTRAP_SNAPSHOT", "BOOTSTRAP_CATCHUP"])
def test_another_server_takes_over_when_one_is_killed_in_mid_phase(
    both: tuple[RunningRelay, RunningPair], place: Place, tmp_path: Path, mode: str
) -> None:
    relay, pair = both
    checkpoints = WatchedCheckpoints(tmp_path / "state")
    servers = [pair.server("one"), pair.server("other")]
    killed: list[RunningServer] = []

    def kill_once(page: int) -> None:
        if page == 1:  # enough to catch up with for several pages
            for number in range(100):
                change_a_little(place, 9 * number)
            pair.wait_for_row(place.orders, 20_000 + 9 * number)
        elif not killed and checkpoints.modes[-1:] == [mode]:
            saved = checkpoints.load("default", [place.orders, place.people])
            assert saved is not None
            killed.extend(s for s in servers if saved.server_info.endswith(s.url[-5:]))
            for server in killed:
                server.child.kill()

    seen = Applying(kill_once)
    with serving(*servers) as urls:
        more = options(urls, checkpoints=checkpoints)
        with consuming([relay.url], [place.orders, place.people], seen, **more) as client:
            wait_for_all(place, seen, client)
            saved = checkpoints.load("default", [place.orders, place.people])
    assert len(killed) == 1
    assert saved is not None
    assert seen.calls[0] == "start"
    assert seen.calls[-1] == "stop"


def test_a_client_killed_off_in_mid_phase_goes_on_where_it_was(
    both: tuple[RunningRelay, RunningPair], place: Place, tmp_path: Path
) -> None:
    relay, pair = both
    sources = [place.orders, place.people]
    seen = Applying()
    with serving(pair.server()) as servers:
        for pages in (3, 8, 15):
            enough = threading.Event()
            seen._on_page = lambda page, p=pages, e=enough: e.set() if page >= p else None  # type: ignore[misc]
            more = options(servers, checkpoint_dir=tmp_path / "state")
            with consuming([relay.url], sources, seen, **more):
                wait_until(enough.is_set, "pages")
        change_a_little(place, 3)
        with consuming([relay.url], sources, seen, **more) as client:
            wait_for_all(place, seen, client)
    # Each stop wrote the checkpoint of its last page, so what was read was not read again.
    assert seen.bootstrapped < 2 * (ORDERS + PEOPLE)


def test_a_producer_that_fell_off_the_relay_is_seeded_anew_and_serves_no_hole(
    both: tuple[RunningRelay, RunningPair], place: Place, tmp_path: Path
) -> None:
    relay, pair = both
    old = Applying()
    with serving(pair.server()) as servers:
        kept = options(servers, checkpoint_dir=tmp_path / "state")
        sources = [place.orders, place.people]
        with consuming([relay.url], sources, old, **kept) as client:
            wait_for_all(place, old, client)
        pair.wait_for_producer()
        pair.producer.kill()
        hole = pair.position()
        place.run(
            "DELETE FROM orders WHERE id % 7 = 0",
            "INSERT INTO orders (id, note) VALUES (60000, 'in the hole')",
            "UPDATE people SET land = 'h' WHERE name = 'p3'",
        )
        write_past_the_ring(place, relay, hole)
        pair.producer.start()
        fallen = (SourceStatus.FELL_OFF_RELAY, SourceStatus.NEW)
        pair.wait(
            lambda: all(s.status in fallen for s in pair.states().values()), "that it fell off"
        )
        problems = [state.problem for state in pair.states().values()]
        assert all(str(hole) in problem for problem in problems), problems
        pair.seed()
        new = Applying()
        with consuming([relay.url], sources, new, **options(servers)) as client:
            wait_for_all(place, new, client)
        # One who was there before the hole is told what went in it.
        with consuming([relay.url], sources, old, **kept) as client:
            wait_for_all(place, old, client)
        assert not old.problems


def test_a_source_that_is_not_seeded_yet_is_waited_for(place: Place, tmp_path: Path) -> None:
    seen = Applying()
    with ExitStack() as stack:
        relay, pair = stack.enter_context(running_pair(tmp_path, place))
        write_past_the_ring(place, relay)
        servers = stack.enter_context(serving(pair.server()))
        more = options(servers)
        sources = [place.orders, place.people]
        client = stack.enter_context(consuming([relay.url], sources, seen, **more))
        wait_until(lambda: relay.get("/health").status == 200, "the relay")
        assert seen.pages == 0
        pair.seed()
        wait_for_all(place, seen, client)


@pytest.mark.mariadb
def test_seeding_takes_no_lock_and_writes_nothing(database: Database, tmp_path: Path) -> None:
    place = MysqlPlace(database, tmp_path)
    insert_orders(place, range(ORDERS))
    insert_people(place, PEOPLE)
    place.run("CREATE TABLE keyless AS SELECT * FROM orders")
    ((own,),) = place.run("SELECT CONNECTION_ID()")
    with running_pair(tmp_path, place, "keyless", chunk_rows=50) as (_, pair):
        place.run("SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON")
        try:
            pair.seed()
        finally:
            place.run("SET GLOBAL general_log = OFF", "SET GLOBAL log_output = 'FILE'")
    said = place.run(
        "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log"
        f" WHERE command_type IN ('Query', 'Execute', 'Prepare') AND thread_id <> {own}"
    )
    statements = [text for (text,) in said]
    assert len([text for text in statements if "`orders`" in text]) >= ORDERS // 50
    assert any("`keyless`" in text for text in statements)
    off = [text for text in statements if not ALLOWED.match(text) or FORBIDDEN.search(text)]
    assert off == []


def test_seeding_goes_on_while_an_application_holds_the_lock_of_an_sqlite_file(
    shop: Shop, tmp_path: Path
) -> None:
    place = SqlitePlace(shop)
    insert_orders(place, range(ORDERS))
    with running_pair(tmp_path, place, chunk_rows=50) as (_, pair), shop.transaction():
        place.run("UPDATE orders SET note = 'not yet' WHERE id = 5")
        pair.seed()
