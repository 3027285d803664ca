"""The relay that captures is cut off from the database: one that is not goes on, exactly there."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.adversity.proxy import WireProxy
from tests.mariadb_server import Database
from tests.promises.running import Remembering, consuming, mysql_source, sources_of, wait_until
from tests.promises.standby.pair import Pair, is_active, paired, role


def orders(consumer: Remembering) -> list[int]:
    return [event.row["id"] for event in consumer.events]


@pytest.mark.mariadb
def test_capture_goes_to_a_relay_that_reaches_the_database(
    database: Database, tmp_path: Path
) -> None:
    consumer, port = Remembering(), database.server.port
    with ExitStack() as stack:
        proxies = [stack.enter_context(WireProxy(port)) for _ in range(2)]
        uris = [database.server.uri.replace(f":{port}", f":{proxy.port}") for proxy in proxies]
        pair = Pair(
            tmp_path,
            mysql_source(database, tmp_path, switch_after_s=1.0),
            f"file:{tmp_path / 'leases'}",
            own=[{"uri": uri} for uri in uris],
        )
        stack.enter_context(paired(pair))

        def insert(first: int, proxy: WireProxy) -> None:
            """Cut a relay off, and write what it cannot see."""
            proxy.is_refusing = True
            proxy.cut()
            for number in range(first, first + 5):
                database.run(f"INSERT INTO orders (id, note) VALUES ({number}, 'x')")

        first = pair.wait_for_active(pair.relays[0])
        second = pair.other(first)
        sources = sources_of(database)[:1]
        with consuming([first.url, second.url], sources, consumer):
            insert(1, proxies[0])
            pair.wait_for_active(second)
            wait_until(
                lambda: orders(consumer) == [1, 2, 3, 4, 5], "the rows", second.child.log_tail
            )
            wait_until(lambda: role(first).get("owner") == second.url, "to stand by")
            wait_until(lambda: first.get("/health").status == 200, "a green light")
            # Nobody reaches it now: they take turns, and both say so.
            insert(6, proxies[1])
            wait_until(lambda: is_active(first), "the first one's turn", first.child.log_tail)
            wait_until(lambda: first.get("/health").status == 503, "a red light")
            wait_until(lambda: is_active(second), "the other one's turn", second.child.log_tail)
            wait_until(lambda: second.get("/health").status == 503, "a red light")
            proxies[0].is_refusing = False
            pair.wait_for_active(first)
            wait_until(
                lambda: orders(consumer) == list(range(1, 11)), "all rows", first.child.log_tail
            )
            wait_until(lambda: first.get("/health").status == 200, "a green light")
