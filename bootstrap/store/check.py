"""Checks whether a store's file still holds what was written to it.

SQLite's own check finds damaged pages and indexes that contradict their tables. A row's
key and SCN are in its event as well, which has CRCs; a schema has its digest; the
position and a source's state have checksums (`source_table`), and so have packs. So every value is
verified against a second one.

The check runs in slices, each a short transaction: a long one would keep the WAL from
being written back. A small store is checked in one go.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from databus.bootstrap.store.filter_sql import EVERY_KEY, number_of
from databus.bootstrap.store.packs.checking import check_packs
from databus.bootstrap.store.source_table import damaged
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceState
from databus.schemas.avro_rows import schema_id
from databus.schemas.errors import ProtocolError
from databus.schemas.event.v2 import decode

SMALL_BYTES = 64 << 20
_AT_A_TIME = 500
_TABLES = "select name from sqlite_master where type = 'table'"
_ROWS = """
select id, scn, key, number, is_hashed, event from {table} not indexed
where id > ? order by id limit ?
"""
_LOG = "select count(*), max(id) - min(id) + 1, sum(length(event)) from log_{src_id} not indexed"
_LOG_BYTES = "select log_bytes from sources where src_id = ?"
_SCHEMAS = "select src_id, version, digest, text from schema_versions"


def check_store(path: Path) -> Iterator[int]:
    """Check a store slice by slice; yield the bytes of rows in each slice.

    Raises StoreDamagedError when a value is not what was written, and BootstrapError
    when the check cannot be done now.
    """
    store = Store.open(path, is_read_only=True)
    try:
        with store.file.explained("checking"):
            is_small = path.stat().st_size <= SMALL_BYTES
        yield from _check_pages(store, is_small)
        yield _check_schemas(store)
        store.position()
        for state in store.sources():
            for table in (f"snapshot_{state.src_id}", f"log_{state.src_id}"):
                yield from _check_rows(store, table)
            if is_small:
                _check_log_size(store, state)
        yield from check_packs(store)
    finally:
        store.close()


def _check_pages(store: Store, is_small: bool) -> Iterator[int]:
    connection = store.file.connection
    with store.file.explained("checking"):
        tables = [str(row[0]) for row in connection.execute(_TABLES)]
    # A large file is checked table by table, so that no transaction is long.
    checks = ["(3)"] if is_small else [f"({table})" for table in tables]
    for check in checks:
        with store.file.explained("checking"):
            found = [str(row[0]) for row in connection.execute(f"pragma integrity_check{check}")]
        if found != ["ok"]:
            raise damaged(store.path, f"SQLite says {'; '.join(found[:3])}")
        yield 0


def _check_schemas(store: Store) -> int:
    size_bytes = 0
    with store.file.reading("checking the schemas"):
        for src_id, version, digest, text in store.file.connection.execute(_SCHEMAS):
            if schema_id(text) != digest:
                raise damaged(store.path, f"schema {version} of source {src_id} has another digest")
            size_bytes += len(text)
    return size_bytes


def _check_rows(store: Store, table: str) -> Iterator[int]:
    last_id = -1
    sql = _ROWS.format(table=table)
    while True:
        with store.file.reading("checking rows", table):
            rows = store.file.connection.execute(sql, (last_id, _AT_A_TIME)).fetchall()
        if not rows:
            return
        for row_id, *row in rows:
            if problem := _problem_of(*row):
                raise damaged(store.path, f"row {row_id} of {table}: {problem}")
        last_id = rows[-1][0]
        yield sum(len(row[-1]) for row in rows)


def _problem_of(scn: int, key: int | bytes | str, number: int, is_hashed: int, event: bytes) -> str:
    """Return how a row contradicts its event; "" when they agree."""
    try:
        decoded, end = decode(event)
    except (ProtocolError, TypeError) as error:
        return str(error)
    if end != len(event) or decoded.scn != scn:
        return f"its event is of scn {decoded.scn}, not {scn}"
    if decoded.is_truncate:
        return "" if is_hashed == EVERY_KEY else "it is about every row"
    if isinstance(key, str) or (number, is_hashed) != number_of(key):
        return f"{number} is not the number of its key"
    return "" if key == decoded.key else f"its event is of key {decoded.key!r}"


def _check_log_size(store: Store, state: SourceState) -> None:
    with store.file.reading("checking the log of", state.name):
        rows, ids, size = store.file.connection.execute(_LOG.format(src_id=state.src_id)).fetchone()
        (log_bytes,) = store.file.connection.execute(_LOG_BYTES, (state.src_id,)).fetchone()
    if (rows, size or 0) != (ids or 0, log_bytes):
        raise damaged(store.path, f"the log of {state.name} is not all there")
