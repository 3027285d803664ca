"""Another server behind a source: what was not delivered follows what was, or capture stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.mysql_server import PrivateMySQL
from tests.promises.running import Remembering, RunningRelay, consuming, running, wait_until
from tests.promises.switching.server_pair import Load, ServerPair, rows

pytest_plugins = ["tests.mysql"]


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
)
def pair(request: pytest.FixtureRequest) -> Iterator[ServerPair]:
    """Two servers of one kind, of which the second replicates the first."""
    is_mariadb = request.param == "mariadb"

    def make(options: dict[str, str | int]) -> PrivateMariaDB:
        if is_mariadb:
            return PrivateMariaDB(options=options)
        new_mysql: Callable[..., PrivateMySQL] = request.getfixturevalue("new_mysql")
        return new_mysql(options=options)

    with ServerPair(make, is_mariadb=is_mariadb) as pair:
        pair.catch_up()
        yield pair


def relay_of(pair: ServerPair, folder: Path, **more: Any) -> RunningRelay:
    password = folder / "password"
    password.write_text(pair.primary.password)
    settings = {
        "name": "shop",
        "uri": [pair.primary.uri, pair.replica.uri],
        "sources": ["shop.orders"],
        "start": "earliest",
        "password_file": str(password),
        "reconnect_min_s": 0.05,
        "reconnect_max_s": 0.2,
        "switch_after_s": 0.3,
    }
    return RunningRelay(folder, settings | more)


def ids(consumer: Remembering) -> list[int]:
    return [event.row["id"] for event in consumer.events if "id" in event.row]


def test_the_next_server_goes_on_with_exactly_what_was_not_delivered(
    pair: ServerPair, tmp_path: Path
) -> None:
    load, consumer = Load(pair), Remembering()
    with running(relay_of(pair, tmp_path)) as relay:
        relay.start()
        with consuming([relay.url], ["shop.orders"], consumer):
            first = load.write(20)
            wait_until(lambda: ids(consumer) == first, "the first rows")
            pair.catch_up()
            pair.primary.kill()
            pair.promote()
            second = load.write(20)
            wait_until(lambda: len(ids(consumer)) >= 40, "the rest", relay.tell)
            assert ids(consumer) == first + second
    epochs = [scn >> 55 for scn in consumer.scns]
    assert epochs == sorted(epochs)
    assert {*epochs} == {0, 1}


def test_it_stops_at_a_server_that_lacks_what_was_delivered_and_names_it(
    pair: ServerPair, tmp_path: Path
) -> None:
    load, consumer = Load(pair), Remembering()
    with running(relay_of(pair, tmp_path)) as relay:
        relay.start()
        with consuming([relay.url], ["shop.orders"], consumer):
            load.write(20)
            pair.catch_up()
            pair.hold_replica()
            load.write(3)
            wait_until(lambda: len(ids(consumer)) == 23, "all of the first server")
            pair.primary.kill()
            pair.promote()
            load.write(5)
            problem = relay.wait_for_problem("it lacks transactions that were delivered: ")
            assert len(rows(pair.primary)) == 25
            assert relay.get("/health").status == 503
            print(problem)
            assert len(ids(consumer)) == 23
