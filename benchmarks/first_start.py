"""`python -m benchmarks.first_start`: a first start far behind, in a log with DDL statements.

One MariaDB writes the same log twice, with and without the names of columns. Behind the start
are statements on a captured table and on one that nobody captures. Measured are the first row of
a source, and the search that it may need, beside a reader that throws every byte away.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.capture.log import (
    NARROW,
    Metadata,
    Stretch,
    begin_stretch,
    end_stretch,
    server_with_log,
    session_of,
    write_bulk,
)
from benchmarks.capture.readers import read_raw, settings_of
from benchmarks.shared.report import Figure, at_least, at_most, command, median
from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.mysql.source import MysqlSource
from databus.relay.sources.source import Transaction

SHORT_ROWS, LONG_ROWS = 500_000, 20_000_000
_RING_BYTES = 64 << 20
_BEHIND = ("CREATE TABLE other (id INT)", "ALTER TABLE other ADD COLUMN a INT", "DROP TABLE other")


def figures(short: bool = False) -> list[Figure]:
    """Measure both kinds of logs; the short one has half a million rows."""
    rows, repeats = (SHORT_ROWS, 3) if short else (LONG_ROWS, 3)
    return [*_measure("FULL", rows, repeats), *_measure("NO_LOG", rows, repeats)]


def _measure(metadata: Metadata, rows: int, repeats: int) -> list[Figure]:
    with server_with_log(metadata) as server, tempfile.TemporaryDirectory() as folder:
        stretch = _write(server, rows)
        settings = settings_of(server, Path(folder), stretch, _RING_BYTES).physical_sources[0]
        first_s = median(repeats, lambda: _first_row_s(settings))
        raw_s = median(repeats, lambda: read_raw(settings, stretch).seconds)
    size = f"{stretch.size_bytes / 1e9:.1f} GB behind, {metadata}"
    limit = at_most(2) if metadata == "FULL" else None
    first = Figure(f"first start, {size}: first row", first_s, "s", limit)
    if metadata == "FULL":
        return [first]
    # The first row waits for the search of all that lies behind it.
    share = raw_s / first_s
    return [first, Figure(f"first start, {size}: search / raw", share, "x", at_least(0.8))]


def _write(server: PrivateMariaDB, rows: int) -> Stretch:
    with session_of(server) as cursor:
        begun = begin_stretch(cursor, NARROW)
        for statement in _BEHIND:
            cursor.execute(statement)
        count = write_bulk(cursor, NARROW, rows)
        cursor.execute(_BEHIND[0])
        return end_stretch(cursor, NARROW, begun, rows, count)


def _first_row_s(settings: PhysicalSourceSettings) -> float:
    """Return the seconds from the start of a new source to its first row."""
    began = time.perf_counter()
    with closing(MysqlSource(settings)) as source:
        source.open(None)
        while not any(isinstance(t, Transaction) and t.changes for t in source.read_transactions()):
            pass
    return time.perf_counter() - began


main = command("first start", figures)

if __name__ == "__main__":
    main()
