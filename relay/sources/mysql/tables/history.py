"""The definitions of tables at any SCN, stored in a file.

The history begins with all tables of the watched tables' databases at one SCN. Each DDL
statement of the log adds its changes at its own SCN. Tables that are not watched are
included, because one of them may be renamed to a watched one.

The file has one line of JSON for each record, with a checksum first. A line is synced
before anything after its SCN is delivered, so after a crash at most the last line is
incomplete, and its statement is read from the log again. Records from before the oldest
readable position are removed at a start.
"""

from __future__ import annotations

import json
import logging
import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from zlib import crc32

from databus.daemon.files import make_private, replace_file
from databus.relay.sources.mysql.rows.layout import (
    ROW_ID,
    DefinedColumn,
    Definition,
    current_key,
)
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.ddl_tokens import TableName

log = logging.getLogger(__name__)

_MOST_TEXT = 200

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """The definitions changed at an SCN; a beginning has all definitions."""

    scn: int
    versions: Mapping[TableName, TableVersion | None] = field(default_factory=dict)
    charsets: Mapping[str, str | None] = field(default_factory=dict)
    is_beginning: bool = False
    text: str = ""  # the statement, for people who read the file


class History:
    """All known definitions, in memory and in a file; without a path in memory only.

    Used by one thread. Raises ValueError when the file is damaged or cannot be
    read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._tables: dict[TableName, list[tuple[int, TableVersion | None]]] = {}
        self._charsets: dict[str, list[tuple[int, str | None]]] = {}
        self._scns: list[int] = []
        self.begin_scn: int | None = None
        if path is not None and path.exists():
            with _file_errors(path):
                for record in _read(path):
                    self._take(record)

    @property
    def place(self) -> str:
        """The path of the file or "memory", for messages."""
        return str(self._path) if self._path is not None else "memory"

    def begin(self, record: Record, known: Record | None = None) -> None:
        """Clear the history and begin again with these tables; `known` are some from before."""
        self._replace([record, *([] if known is None else [known])])

    def add(self, record: Record) -> None:
        """Add the changes of a statement; they are durable when this returns."""
        self._append(record)  # first: memory must not be ahead of the file after an error
        self._take(record)

    def knows(self, name: TableName) -> bool:
        """Whether a table with this name exists or has existed."""
        return name in self._tables

    def follows(self, database: str) -> bool:
        """Whether the history includes the tables of a database."""
        return database in self._charsets

    def has_record(self, scn: int) -> bool:
        """Whether there is a record at an SCN."""
        at = bisect_left(self._scns, scn)
        return at < len(self._scns) and self._scns[at] == scn

    def record(self, scn: int) -> Record | None:
        """Return the record at an SCN; None without one."""
        return next((record for record in self._records() if record.scn == scn), None)

    def unchanged_since(self, scn: int, at: int) -> Record | None:
        """Return, as a record at another SCN, what is known at an SCN and did not change after it.

        None if the history begins later.
        """
        if self.begin_scn is None or not self.reaches(scn):
            return None
        versions, charsets = self._state_at(scn)
        return Record(
            at,
            {n: version for n, version in versions.items() if self._tables[n][-1][0] <= scn},
            {n: charset for n, charset in charsets.items() if self._charsets[n][-1][0] <= scn},
        )

    def reach_back(self, scn: int, last_changes: Mapping[TableName, int]) -> None:
        """Extend the history back to an earlier SCN, given the last changes of tables since then.

        A changed table is known only from its last change on, and where statements before the
        beginning said what it was. An empty table name stands for the database's character set.
        """
        assert self.begin_scn is not None
        # A table without a change in between had the definition of the beginning already.
        versions, charsets = self._state_at(self.begin_scn)
        records = []
        for name, changed_at in sorted(last_changes.items(), key=lambda item: item[1]):
            if not name[1]:
                database, now = name[0], charsets.pop(name[0], None)
                records.append(Record(changed_at, {}, {database: now}))
                before = self.charset(database, scn)
                charsets |= {} if before is None else {database: before}
                continue
            known = self.table(name, self.begin_scn)
            problem = f"it was altered later, at scn {changed_at}, before it was first read"
            versions[name] = TableVersion(None, problem=problem)
            if self.is_known(name, scn):
                versions[name] = self.table(name, scn)
            records.append(Record(changed_at, {name: known}))
        first = Record(scn, versions, charsets, is_beginning=True)
        others = [record for record in self._records() if record.scn != self.begin_scn]
        said = [record for record in others if scn < record.scn < self.begin_scn]
        later = [record for record in others if record.scn > self.begin_scn]
        self._replace([first, *said, *records, *later])

    def forget_before(self, scn: int) -> None:
        """Remove the records that no row at this SCN or later needs."""
        # Rewriting the file is worthwhile only if records go.
        if self.begin_scn is None or not any(self.begin_scn < known <= scn for known in self._scns):
            return
        later = [record for record in self._records() if record.scn > scn]
        self._replace([Record(scn, *self._state_at(scn), is_beginning=True), *later])

    def reaches(self, scn: int) -> bool:
        """Whether all tables of an SCN are known; before the beginning, only some are."""
        return self.begin_scn is None or scn >= self.begin_scn

    def is_known(self, name: TableName, scn: int) -> bool:
        """Whether it is known what a table was at an SCN, or that it did not exist."""
        return self.reaches(scn) or _is_before(self._tables.get(name, []), scn)

    def lacks(self, name: TableName, scn: int) -> bool:
        """Whether it is known that a table did not exist at an SCN."""
        return self.is_known(name, scn) and self.table(name, scn) is None

    def is_charset_known(self, database: str, scn: int) -> bool:
        """Whether a database's default character set at an SCN is known."""
        return self.reaches(scn) or _is_before(self._charsets.get(database, []), scn)

    def table(self, name: TableName, scn: int) -> TableVersion | None:
        """Return a table's version at an SCN; None when it did not exist, or is not known."""
        return self._at(self._tables.get(name, []), scn)

    def has_been(self, name: TableName, scn: int) -> bool:
        """Return whether a table has been there at an SCN or before, as far as is known."""
        return any(at <= scn and one is not None for at, one in self._tables.get(name, ()))

    def next_change(self, name: TableName, scn: int) -> int | None:
        """Return the SCN of a table's next change after an SCN; None when none is known."""
        return next((at for at, _ in self._tables.get(name, []) if at > scn), None)

    def last_definition(self, name: TableName) -> Definition | None:
        """Return the newest known definition of a table."""
        for _, version in reversed(self._tables.get(name, [])):
            if version is not None and version.definition is not None:
                return version.definition
        return None

    def charset(self, database: str, scn: int) -> str | None:
        """Return a database's default character set at an SCN; None when not included."""
        return self._at(self._charsets.get(database, []), scn)

    def tables_of(self, database: str, scn: int) -> list[TableName]:
        """Return the tables of a database at an SCN."""
        return [
            name
            for name, versions in self._tables.items()
            if name[0] == database and self._at(versions, scn) is not None
        ]

    def stretch(self, scn: int) -> tuple[int, int]:
        """Return the range of SCNs (from, before) around one in which nothing changes."""
        at = bisect_right(self._scns, scn)
        begin = self._scns[at - 1] if at else 0
        return begin, self._scns[at] if at < len(self._scns) else 1 << 63

    def _clear(self) -> None:
        self._tables.clear()
        self._charsets.clear()
        self._scns.clear()
        self.begin_scn = None

    def _replace(self, records: list[Record]) -> None:
        self._write(records)
        self._clear()
        for record in records:
            self._take(record)

    def _take(self, record: Record) -> None:
        if record.is_beginning:
            self._clear()
            self.begin_scn = record.scn
        for name, version in record.versions.items():
            _put(self._tables.setdefault(name, []), record.scn, version)
        for database, charset in record.charsets.items():
            _put(self._charsets.setdefault(database, []), record.scn, charset)
        if not self.has_record(record.scn):
            insort(self._scns, record.scn)

    def _state_at(
        self, scn: int
    ) -> tuple[dict[TableName, TableVersion | None], dict[str, str | None]]:
        tables = {name: self._at(versions, scn) for name, versions in self._tables.items()}
        charsets = {name: self._at(versions, scn) for name, versions in self._charsets.items()}
        return (
            {name: version for name, version in tables.items() if version is not None},
            {name: charset for name, charset in charsets.items() if charset is not None},
        )

    def _at(self, versions: list[tuple[int, T | None]], scn: int) -> T | None:
        at = bisect_right(versions, scn, key=lambda version: version[0])
        found = versions[at - 1] if at else (0, None)
        # The beginning has everything: what was known before it, and is not there, is gone.
        begin = self.begin_scn or 0
        return None if found[0] < begin <= scn else found[1]

    def _records(self) -> Iterator[Record]:
        """Yield the history as one record for each SCN."""
        for scn in self._scns:
            yield Record(
                scn,
                {n: dict(v)[scn] for n, v in self._tables.items() if scn in dict(v)},
                {n: dict(v)[scn] for n, v in self._charsets.items() if scn in dict(v)},
                scn == self.begin_scn,
            )

    def _append(self, record: Record) -> None:
        if self._path is None:
            return
        with _file_errors(self._path), _appending(self._path) as file:
            file.write(_line(record))
            file.flush()
            # Before anything after this SCN is delivered: after a crash the statement must be
            # known, because capture may resume after it.
            os.fsync(file.fileno())

    def _write(self, records: Iterable[Record]) -> None:
        if self._path is None:
            return
        with _file_errors(self._path):
            replace_file(self._path, b"".join(_line(record) for record in records))


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"the history of table definitions in {path}: {error}") from error


def _is_before(versions: list[tuple[int, T | None]], scn: int) -> bool:
    return bool(versions) and versions[0][0] <= scn


def _put(versions: list[tuple[int, T | None]], scn: int, value: T | None) -> None:
    at = bisect_left(versions, scn, key=lambda version: version[0])
    if at < len(versions) and versions[at][0] == scn:
        versions[at] = (scn, value)
    else:
        versions.insert(at, (scn, value))


def _line(record: Record) -> bytes:
    content = {
        "scn": record.scn,
        "begin": record.is_beginning,
        "charsets": record.charsets,
        "tables": [[*name, _plain(version)] for name, version in record.versions.items()],
        "statement": record.text[:_MOST_TEXT],
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32(text), text)


def _plain(version: TableVersion | None) -> Any:
    if version is None:
        return None
    plain: dict[str, Any] = {"charset": version.charset}
    if version.definition is None:
        return plain | {"problem": version.problem}
    columns = [[c.name, c.sql_type, c.nullable, c.charset] for c in version.definition.columns]
    plain |= {"columns": columns, "key": list(version.definition.key)}
    if ROW_ID in {column[0] for column in columns}:
        plain["hides_row_id"] = version.definition.hides_row_id
    period = version.definition.period
    return plain | {"period": list(period)} if period is not None else plain


def _version(plain: Any) -> TableVersion | None:
    if plain is None:
        return None
    if "columns" not in plain:
        return TableVersion(None, plain["charset"], plain["problem"])
    columns = tuple(DefinedColumn(*column) for column in plain["columns"])
    begin, end = plain.get("period") or ("", "")
    period = (begin, end) if end else None
    # Missing in files of earlier versions: then the column is as MySQL creates it.
    is_hidden = plain.get("hides_row_id", ROW_ID in {column.name for column in columns})
    key = current_key(plain["key"], period)
    return TableVersion(Definition(columns, key, period, is_hidden), plain["charset"])


def _read(path: Path) -> Iterator[Record]:
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if _is_line(data[whole:-1]):
        # Complete but for its last byte: it was damaged later, not cut off by a crash.
        data = data[:-1] + b"\n"
        whole = len(data)
        replace_file(path, data)
        log.warning("the end of the last line of %s was damaged: it is mended", path)
    elif whole < len(data):
        # The process ended while writing this line: nothing after its SCN was delivered.
        with path.open("r+b") as file:
            file.truncate(whole)
    for number, line in enumerate(data[:whole].splitlines(), 1):
        yield _parse(path, number, line)


def _is_line(line: bytes) -> bool:
    try:
        return int(line[:8], 16) == crc32(line[9:])
    except ValueError:
        return False


def _parse(path: Path, number: int, line: bytes) -> Record:
    try:
        if int(line[:8], 16) != crc32(line[9:]):
            raise ValueError("the checksum is wrong")
        content = json.loads(line[9:])
        versions = {(row[0], row[1]): _version(row[2]) for row in content["tables"]}
        return Record(
            content["scn"], versions, content["charsets"], content["begin"], content["statement"]
        )
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"the history of table definitions in {path} is damaged in line {number} ({error}); "
            "put a copy of it back, or remove it: definitions are then read from the database "
            "as they are now"
        ) from error


def _appending(path: Path) -> BinaryIO:
    make_private(path)
    return path.open("ab")
