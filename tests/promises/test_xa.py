"""XA transactions and a relay that is killed between XA PREPARE and XA COMMIT."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mariadb_server import Database, prepare_xa
from tests.promises.running import (
    Remembering,
    RunningRelay,
    consuming,
    mysql_source,
    running,
    sources_of,
    wait_until,
)

pytestmark = pytest.mark.mariadb


def end_scn(database: Database) -> int:
    """Return the SCN of the log's end."""
    file, offset, *_ = database.run("SHOW MASTER STATUS")[0]
    return int(file.split(".")[1]) << 32 | int(offset)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_rows_prepared_before_a_relay_ends_are_delivered_once_at_their_commit(
    database: Database, tmp_path: Path, is_killed: bool
) -> None:
    orders = sources_of(database)[0]
    seen = Remembering()
    with (
        running(RunningRelay(tmp_path, mysql_source(database, tmp_path))) as relay,
        consuming([relay.url], sources_of(database), seen),
    ):
        relay.start()
        for number in range(6):
            prepare_xa(
                database,
                f"'x{number}'",
                f"INSERT INTO orders (id, note) VALUES ({number}, 'x{number}')",
            )
        database.run("INSERT INTO orders (id, note) VALUES (100, 'plain')", "XA COMMIT 'x0'")
        wait_until(lambda: len(seen.events) >= 2, "the plain row", relay.tell)
        relay.wait_for_scn(end_scn(database))
        relay.child.kill() if is_killed else relay.child.stop()
        database.run("XA COMMIT 'x1'", "XA ROLLBACK 'x2'", "FLUSH BINARY LOGS")
        relay.start()
        database.run("XA ROLLBACK 'x3'", "XA COMMIT 'x5'", "XA COMMIT 'x4'")
        wait_until(lambda: len(seen.events) >= 5, "every committed row", relay.tell)
        database.run("INSERT INTO orders (id, note) VALUES (101, 'last')")
        wait_until(lambda: len(seen.events) >= 6, "the last row", relay.tell)
    assert [e.row["id"] for e in seen.events] == [100, 0, 1, 5, 4, 101]
    there = {row[0] for row in database.run("SELECT id FROM orders")}
    assert set(seen.rows(orders)) == there
    assert sorted(seen.scns) == seen.scns
