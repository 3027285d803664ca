"""Sessions without row format on a real server, and the relay that delivers their statements."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from databus.demo.private_mariadb import PrivateMariaDB
from tests.mariadb_server import Database, connect
from tests.promises.running import RunningRelay, mysql_source, running

STATEMENT = "SET SESSION binlog_format = STATEMENT"
MIXED = "SET SESSION binlog_format = MIXED"  # what is not the same on a replica is logged as rows
ROW = "SET SESSION binlog_format = ROW"
LONG_BYTES = 1 << 20  # of a statement


def delivering(shop: Database, folder: Path, **more: Any) -> RunningRelay:
    """Return a relay of `orders` and `people` with `on_statement = "deliver"`, not started yet."""
    options = more.pop("options", {})
    settings = mysql_source(shop, folder, on_statement="deliver", **more)
    return RunningRelay(folder, settings, **options)


@contextlib.contextmanager
def delivering_relay(shop: Database, folder: Path, **more: Any) -> Iterator[RunningRelay]:
    """Run such a relay."""
    with running(delivering(shop, folder, **more)) as relay:
        yield relay.start()


@contextlib.contextmanager
def session(server: PrivateMariaDB, database: str, **options: Any) -> Iterator[Database]:
    """Open a session of its own, whose settings end with it."""
    with contextlib.closing(connect(server, database=database or None, **options)) as connection:
        yield Database(server, database, connection)
