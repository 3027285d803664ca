"""`python -m benchmarks.first_start`: a first start far behind, in a log with DDL statements.

MariaDB writes the same log twice, with and without the names of columns. Behind the start are
statements on tables of the captured database, some rows of the captured table, and many of one
that nobody captures. Measured are the first row of a source, and the search that it needs where
names are missing: wall clock and CPU time, beside a reader that throws every byte away.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.capture.log import (
    DATABASE,
    NARROW,
    Metadata,
    Stretch,
    begin_stretch,
    end_stretch,
    server_with_log,
    session_of,
    write_bulk,
)
from benchmarks.capture.readers import WrongCountError, read_raw, settings_of
from benchmarks.shared.report import Figure, at_least, at_most, command
from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.mysql.source import MysqlSource
from databus.relay.sources.source import Transaction

SHORT_BYTES, LONG_BYTES = 500_000_000, 10_000_000_000
_REPEATS = 3
_ROWS = 20_000
_RING_BYTES = 64 << 20
_CREATE = "CREATE TABLE other (id INT, note VARCHAR(1000) CHARACTER SET latin1) ENGINE=MyISAM"
_BEHIND = (_CREATE, "ALTER TABLE other ADD COLUMN a INT", "DROP TABLE other", _CREATE)
# The rows of a statement fill 10 MB of the log, in events of 8 kB.
_STATEMENT_BYTES = 10_000_000
_FILL = (
    "INSERT INTO other SELECT seq, REPEAT('x', 1000) FROM seq_1_to_10000",
    "TRUNCATE other",
)


class Cost(NamedTuple):
    """What something took: seconds of the clock, and CPU seconds of this process."""

    seconds: float
    cpu_s: float


def figures(short: bool = False) -> list[Figure]:
    """Measure both kinds of logs; the short ones have 0.5 GB."""
    size_bytes = SHORT_BYTES if short else LONG_BYTES
    return [*_measure("FULL", size_bytes), *_measure("NO_LOG", size_bytes)]


def _measure(metadata: Metadata, size_bytes: int) -> list[Figure]:
    with server_with_log(metadata) as server, tempfile.TemporaryDirectory() as folder:
        stretch = _write(server, size_bytes)
        settings = settings_of(server, Path(folder), stretch, _RING_BYTES).physical_sources[0]
        name = f"first start, {stretch.size_bytes / 1e9:.1f} GB behind, {metadata}"
        if metadata == "FULL":
            first_s = median(_cost(lambda: _first_row(settings)).seconds for _ in range(_REPEATS))
            return [Figure(f"{name}: first row", first_s, "s", at_most(2))]
        return _of_search(name, settings, stretch)


def _of_search(name: str, settings: PhysicalSourceSettings, stretch: Stretch) -> list[Figure]:
    """Measure a search of a whole stretch, for which the first row waits."""
    firsts, searches, raws = [], [], []
    for _ in range(_REPEATS):  # in turns, so that all meet the same machine
        firsts.append(_cost(lambda: _first_row(settings)).seconds)
        searches.append(_search(settings, stretch))
        raws.append(_cost(lambda: read_raw(settings, stretch)))
    share = median(raw.seconds / search.seconds for raw, search in zip(raws, searches, strict=True))
    per_gb = 1e9 / stretch.size_bytes
    return [
        Figure(f"{name}: first row", median(firsts), "s"),
        Figure(f"{name}: search / raw", share, "x", at_least(0.8)),
        Figure(f"{name}: CPU, search", median(s.cpu_s for s in searches) * per_gb, "s/GB"),
        Figure(f"{name}: CPU, raw", median(r.cpu_s for r in raws) * per_gb, "s/GB"),
    ]


def _write(server: PrivateMariaDB, size_bytes: int) -> Stretch:
    with session_of(server) as cursor:
        begun = begin_stretch(cursor, NARROW)
        for statement in _BEHIND:
            cursor.execute(statement)
        count = write_bulk(cursor, NARROW, _ROWS)
        for _ in range(size_bytes // _STATEMENT_BYTES):
            for statement in _FILL:
                cursor.execute(statement)
        return end_stretch(cursor, NARROW, begun, _ROWS, count)


def _cost(work: Callable[[], object]) -> Cost:
    began, cpu_began = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - began, time.process_time() - cpu_began)


def _first_row(settings: PhysicalSourceSettings) -> None:
    """Start a new source, and read up to its first row."""
    with closing(MysqlSource(settings)) as source:
        source.open(None)
        while not any(isinstance(t, Transaction) and t.changes for t in source.read_transactions()):
            pass


def _search(settings: PhysicalSourceSettings, stretch: Stretch) -> Cost:
    """Search a whole stretch as a first start does; raises WrongCountError if it misses one."""
    with closing(MysqlSource(settings)) as source:
        source.open(None)
        assert source._tables is not None
        search = source._tables._scan
        found: dict[tuple[str, str], int] = {}
        begin, end = stretch.begin.to_scn(), stretch.end.to_scn()
        cost = _cost(lambda: found.update(search(begin, end)))
    if (DATABASE, "other") not in found:
        raise WrongCountError(f"the search found {found}")
    return cost


main = command("first start", figures)

if __name__ == "__main__":
    main()
