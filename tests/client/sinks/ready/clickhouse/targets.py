"""A sink `clickhouse` on the server of a test, and the rows that are there afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from databus.client.sinks.contract import Change, Opening
from databus.client.sinks.ready.clickhouse.sink import ClickHouseSink
from databus.conf.loading import build_settings
from tests.client.sinks.clickhouse_server import PrivateClickHouse

OPENING = Opening("copy", "shop")


def new_sink(server: PrivateClickHouse, **options: Any) -> ClickHouseSink:
    """Return a sink of its own process, as far as it knows; not open."""
    given = {"url": server.url, "database": "shop", **options}
    return ClickHouseSink(build_settings(given, ClickHouseSink.Options, "options", None))


@contextmanager
def opened(
    server: PrivateClickHouse, opening: Opening = OPENING, **options: Any
) -> Iterator[ClickHouseSink]:
    """Yield an open sink."""
    sink = new_sink(server, **options)
    try:
        assert sink.open(opening) is None
        yield sink
    finally:
        sink.close()


def write(server: PrivateClickHouse, changes: Sequence[Change], **options: Any) -> None:
    """Write changes in one flush of a sink of their own."""
    with opened(server, **options) as sink:
        put(sink, *changes)


def put(sink: ClickHouseSink, *changes: Change) -> None:
    """Write changes in one flush."""
    sink.write(changes)
    sink.flush()


def rows(server: PrivateClickHouse, table: str = "t", what: str = "*") -> list[tuple[Any, ...]]:
    """Return the rows of a table, without the columns of the sink, in the order of all values."""
    shown = what if what != "*" else "* EXCEPT (_databus_version, _databus_deleted)"
    found = server.rows(f"SELECT {shown} FROM shop.`{table}` FINAL")
    return sorted(found, key=repr)


def columns(server: PrivateClickHouse, table: str = "t") -> dict[str, str]:
    """Return the types of a table's columns, but those of the sink."""
    found = server.rows(
        "SELECT name, type FROM system.columns WHERE database = 'shop' "
        f"AND table = '{table}' AND NOT startsWith(name, '_databus') ORDER BY position"
    )
    return dict(found)
