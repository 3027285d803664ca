"""What the tests of the MySQL source share: settings, and reading until something is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from databus.conf.patterns import escaped
from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.source import Row, RowChange, Transaction
from databus.schemas.event.metadata import Notes, Op
from tests.mariadb_server import Database
from tests.relay.sources.read_back import ReadSource

IDLE_READS = 120  # that return nothing, of at most a second each
READS = 10_000  # in all: a log may go on for ever


def settings_for(
    server: PrivateMariaDB, folder: Path, tables: Sequence[str], **more: Any
) -> PhysicalSourceSettings:
    """Return settings that capture tables (`database.table`) of a private server."""
    password = folder / "password"
    password.write_text(server.password)
    values = {"name": "shop", "uri": server.uri, "password_file": password, **more}
    return PhysicalSourceSettings(sources=tuple(tables), **values)


@contextmanager
def opened(settings: PhysicalSourceSettings, after_scn: int | None = None) -> Iterator[ReadSource]:
    """Open a source for the length of a `with`."""
    source = ReadSource(settings)
    try:
        source.open(after_scn)
        yield source
    finally:
        source.close()


def watching(database: Database, folder: Path, *tables: str, **more: Any) -> PhysicalSourceSettings:
    """Return settings that capture tables of a test's database."""
    names = [f"{database.name}.{escaped(table)}" for table in tables]
    return settings_for(database.server, folder, names, **more)


def read_until(
    source: ReadSource, is_enough: Callable[[list[Transaction]], bool]
) -> list[Transaction]:
    """Read until what was read is enough; fails when it never is."""
    found: list[Transaction] = []
    idle = 0
    for _ in range(READS):
        if is_enough(found):
            return found
        read = source.read_transactions()
        found += read
        # A server's log has the transactions of all tests before this one.
        idle += not read
        if idle == IDLE_READS:
            break
    raise AssertionError(f"still not enough: {len(found)} transactions, {found[-3:]}")


def row_changes_of(transaction: Transaction) -> list[RowChange]:
    """Return a transaction's row changes, without its statements."""
    return [change for change in transaction.changes if isinstance(change, RowChange)]


def read_full(source: ReadSource, count: int) -> list[Transaction]:
    """Read until there are `count` transactions with row changes; return those."""

    def full(found: list[Transaction]) -> list[Transaction]:
        return [t for t in found if row_changes_of(t)]

    return full(read_until(source, lambda found: len(full(found)) >= count))


def read_changes(source: ReadSource, count: int) -> list[RowChange]:
    """Read until there are `count` row changes; return all."""

    def changes(found: list[Transaction]) -> list[RowChange]:
        return [change for t in found for change in row_changes_of(t)]

    return changes(read_until(source, lambda found: len(changes(found)) >= count))


class Seen(NamedTuple):
    """One change, however it was read: columns that are not in the log have no key."""

    op: Op
    row: Row
    before: Row | None
    notes: Notes


def read_seen(source: ReadSource, count: int) -> list[Seen]:
    """Read until there are `count` row changes; return what they say."""
    return [
        Seen(change.op, change.row, change.before, change.notes or Notes())
        for change in read_changes(source, count)
    ]


def read_to_scn(source: ReadSource, scn: int) -> list[Transaction]:
    """Read up to an SCN; return the transactions with row changes."""
    found = read_until(source, lambda found: bool(found) and found[-1].scn >= scn)
    return [t for t in found if row_changes_of(t)]
