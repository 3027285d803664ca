"""Who keeps a copy of the rows does not serve it as if it were right after a statement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.bootstrap.store.store import SourceStatus
from tests.mariadb_server import Database
from tests.promises.bootstrapping import (
    Applying,
    MysqlPlace,
    RunningPair,
    insert_orders,
    rows_of,
    running_pair,
    serving,
)
from tests.promises.running import RunningRelay, consuming, wait_until
from tests.promises.statements.unlogged import STATEMENT, session

pytestmark = pytest.mark.mariadb

ORDERS = 200


class DeliveringPlace(MysqlPlace):
    """A database whose source delivers statements."""

    def settings(self, *tables: str) -> dict[str, Any]:
        """Return the settings of the physical source."""
        return super().settings(*tables) | {"on_statement": "deliver"}

    def run_unlogged(self, *statements: str) -> None:
        """Run statements whose rows are not logged."""
        with session(self.database.server, self.database.name) as writer:
            writer.run(STATEMENT, *statements)


@pytest.fixture
def place(database: Database, tmp_path: Path) -> DeliveringPlace:
    found = DeliveringPlace(database, tmp_path)
    insert_orders(found, range(ORDERS))
    return found


@pytest.fixture
def both(place: DeliveringPlace, tmp_path: Path) -> Iterator[tuple[RunningRelay, RunningPair]]:
    with running_pair(tmp_path, place) as (relay, pair):
        pair.seed()
        yield relay, pair


def state_of(pair: RunningPair, source: str) -> SourceStatus:
    return pair.states()[source].status


def test_a_store_stops_serving_the_table_says_why_and_is_right_when_it_was_seeded_again(
    both: tuple[RunningRelay, RunningPair], place: DeliveringPlace
) -> None:
    relay, pair = both
    with serving(pair.server()) as (server,):
        assert bootstrapped(place, relay, server, place.orders).rows(
            place.orders, "id", "note"
        ) == rows_of(place, "orders", "id", "note")
        place.run_unlogged("DELETE FROM orders WHERE id % 2 = 0", "UPDATE orders SET note = 'x'")
        # Nothing of the table is logged after them.
        pair.wait(lambda: state_of(pair, place.orders) is SourceStatus.NEW, "the table's end")
        assert state_of(pair, place.people) is SourceStatus.ACTIVE
        stale = pair.states()[place.orders]
        assert "the log has the statement instead of the rows" in stale.problem
        assert "its rows are read again" in pair.producer.log_tail()
        seen = Applying()
        with client(relay, server, seen, place.orders) as running:
            wait_until(
                lambda: "is new: altered" in (running.status()[0].problem or ""), "the refusal"
            )
            assert not seen.state
            pair.seed()
            wait_until(
                lambda: (
                    seen.rows(place.orders, "id", "note") == rows_of(place, "orders", "id", "note")
                ),
                "the rows as they are",
                lambda: (running.status(), seen.problems),
            )
    assert pair.is_active()


def test_a_store_whose_producer_was_away_is_not_right_either(
    both: tuple[RunningRelay, RunningPair], place: DeliveringPlace
) -> None:
    relay, pair = both
    pair.producer.kill()
    place.run_unlogged("DELETE FROM orders WHERE id % 2 = 0")
    place.run("INSERT INTO orders (id, note) VALUES (9000, 'logged')")
    pair.start()
    pair.wait(lambda: state_of(pair, place.orders) is SourceStatus.NEW, "the table's end")
    pair.seed()
    with serving(pair.server()) as (server,):
        found = bootstrapped(place, relay, server, place.orders)
    assert found.rows(place.orders, "id") == rows_of(place, "orders", "id")


def client(relay: RunningRelay, server: str, seen: Applying, *sources: str) -> Any:
    return consuming(
        [relay.url], list(sources), seen, bootstrap_servers=(server,), start="beginning"
    )


def bootstrapped(
    place: DeliveringPlace, relay: RunningRelay, server: str, *sources: str
) -> Applying:
    seen = Applying()
    with client(relay, server, seen, *sources) as running:
        wait_until(lambda: seen.calls[-1:] == ["stop"], "the bootstrap", running.status)
    assert not seen.problems
    return seen
