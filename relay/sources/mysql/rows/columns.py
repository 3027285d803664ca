"""Parses column types: logged ones in TABLE_MAP events, and declared ones. Pure.

A TABLE_MAP event has the packing of each column (type code, lengths). Depending on
`binlog_row_metadata` it also has names, signs, character sets, members and the key. The declared
type (`tinyint(1)`, `uuid`) comes from information_schema, and is used only if it describes the
same packing.

    TABLE_MAP   table id (6), flags (2), database and table name (length (1), text, 00 each),
                number of columns, one type byte per column, the types' lengths (their size
                first), one bit per column for "nullable", then optional fields
    field       tag (1), length, value

Numbers without a size here are length-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pymysqlreplication.constants import FIELD_TYPE as T

from databus.schemas.table import UNKNOWN_CHARACTER

Members = tuple[bytes, ...] | None

COMPRESSED_BLOB, COMPRESSED_VARCHAR, VECTOR = 140, 141, 242

_LENGTH_1 = frozenset(
    {T.FLOAT, T.DOUBLE, T.BLOB, T.TINY_BLOB, T.MEDIUM_BLOB, T.LONG_BLOB, T.JSON, T.GEOMETRY}
    | {T.TIME2, T.DATETIME2, T.TIMESTAMP2, VECTOR, COMPRESSED_BLOB}
)
# For these types, `length` is the size of the length prefix of a value.
_LENGTHS_OF_VALUES = frozenset({T.BLOB, T.JSON, T.GEOMETRY, VECTOR, COMPRESSED_BLOB})
_LENGTH_2 = frozenset({T.VARCHAR, COMPRESSED_VARCHAR, T.BIT, T.NEWDECIMAL, T.STRING, T.VAR_STRING})
_LENGTH_0 = frozenset(
    {T.TINY, T.SHORT, T.INT24, T.LONG, T.LONGLONG, T.YEAR, T.DATE, T.NEWDATE}
    | {T.TIME, T.DATETIME, T.TIMESTAMP}
)
_NUMERIC = frozenset(
    {T.TINY, T.SHORT, T.INT24, T.LONG, T.LONGLONG, T.NEWDECIMAL, T.FLOAT, T.DOUBLE, T.YEAR}
)
_CHARACTER = frozenset({T.STRING, T.VAR_STRING, T.VARCHAR, T.BLOB})
# In the lists of collations, MariaDB counts these types too.
_CHARACTER_MARIADB = _CHARACTER | {T.GEOMETRY, COMPRESSED_BLOB, COMPRESSED_VARCHAR}
_MEMBERS = frozenset({T.ENUM, T.SET})
_MOST_DIGITS = 65  # of a decimal
_REAL_STRINGS = frozenset({T.STRING, T.VAR_STRING, T.ENUM, T.SET})


@dataclass(frozen=True, slots=True)
class LoggedColumn:
    """One column of a TABLE_MAP event.

    `length` depends on the type: bytes, fraction digits, bits, or for a decimal
    `precision << 8 | scale`. Facts that are not in the event are None.
    """

    type_code: int
    length: int
    nullable: bool
    name: str | None = None
    is_unsigned: bool | None = None
    collation_id: int | None = None
    members: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """A TABLE_MAP event; `key` has column indexes in key order, if the event has them."""

    database: str
    name: str
    columns: tuple[LoggedColumn, ...]
    key: tuple[int, ...] = ()

    @property
    def has_names(self) -> bool:
        """Whether the event carries full metadata (`binlog_row_metadata=FULL`)."""
        return bool(self.columns) and all(c.name is not None for c in self.columns)


@dataclass(frozen=True, slots=True)
class SqlType:
    """The parts of a declared type such as `decimal(10,2) unsigned`."""

    name: str
    arguments: tuple[int, ...] = ()
    is_unsigned: bool = False
    members: tuple[str, ...] = ()


_DECLARED = re.compile(r"([a-z][a-z0-9_]*)(?: varying)?\s*(?:\((.*)\))?(.*)", re.DOTALL)
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
_COMMENT = re.compile(r"\s*/\*.*?\*/")


def clean_sql_type(column_type: str) -> str:
    """Return information_schema's COLUMN_TYPE without the server's own comments."""
    if column_type.startswith(("enum(", "set(")):
        return column_type
    return _COMMENT.sub("", column_type).strip().lower()


@lru_cache(maxsize=4096)
def parse_sql_type(text: str) -> SqlType:
    """Parse a declared type; raises ValueError."""
    match = _DECLARED.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot read the type {text!r}")
    name, inside, rest = match[1], match[2] or "", match[3]
    if name in ("enum", "set"):
        members = tuple(_unescape(m[1]) for m in _MEMBER.finditer(inside))
        if _MEMBER.sub("", inside).strip(", "):
            raise ValueError(f"cannot read the members of {text!r}")
        return SqlType(name, members=members)
    arguments = tuple(int(part) for part in inside.split(",") if part.strip().isdigit())
    return SqlType(name, arguments, is_unsigned="unsigned" in rest or "zerofill" in rest)


def has_unknown_members(sql: SqlType) -> bool:
    """Return whether a member has a `?` in the catalogue that may stand for another character.

    See `server/enum_members.py`.
    """
    return any(UNKNOWN_CHARACTER in member for member in sql.members)


def check_members(sql: SqlType) -> None:
    """Raise ValueError when the definition has a member that is not certain."""
    doubtful = [member for member in sql.members if UNKNOWN_CHARACTER in member]
    if doubtful:
        shown = doubtful[0].replace(UNKNOWN_CHARACTER, "?")
        raise ValueError(
            f"information_schema shows member {shown!r} with a ?, which may stand for another "
            "character, and the log does not have the members: "
            "SET GLOBAL binlog_row_metadata = FULL, so that it has them from then on"
        )


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda m: _ESCAPES.get(m[1], m[1]) if m[1] else "'", text)


class ByteReader:
    """Reads numbers and texts from an event's body, one after another."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def take(self, size: int) -> bytes:
        """Return the next bytes; raises ValueError past the end."""
        end = self.position + size
        if end > len(self.data):
            raise ValueError("the event ends too early")
        part = self.data[self.position : end]
        self.position = end
        return part

    def number(self, size: int) -> int:
        """Return the next little-endian number."""
        return int.from_bytes(self.take(size), "little")

    def byte(self) -> int:
        """Return the next byte as a number."""
        if self.position >= len(self.data):
            raise ValueError("the event ends too early")
        self.position += 1
        return self.data[self.position - 1]

    def packed(self) -> int:
        """Return the next length-encoded number."""
        first = self.byte()
        if first < 251:
            return first
        return self.number({252: 2, 253: 3, 254: 8}[first])

    def text(self) -> str:
        """Return the next text with a one-byte length."""
        return self.take(self.byte()).decode("utf-8")


def parse_table_name(body: bytes) -> tuple[str, str]:
    """Return database and table of a TABLE_MAP event; raises ValueError."""
    return _table_name(ByteReader(body, 8))


def parse_table_map(body: bytes, *, is_mariadb: bool) -> LoggedTable:
    """Read a TABLE_MAP event (without header and checksum); raises ValueError."""
    reader = ByteReader(body, 8)
    database, name = _table_name(reader)
    count = reader.packed()
    codes = reader.take(count)
    lengths = ByteReader(reader.take(reader.packed()))
    types = [_type_and_length(code, lengths) for code in codes]
    nulls = int.from_bytes(reader.take((count + 7) // 8), "little")
    fields = dict(_optional_fields(reader))
    real_codes = [code for code, _ in types]
    names, signs, collations, members = _descriptions(real_codes, fields, is_mariadb)
    described = zip(types, names, signs, collations, members, strict=True)
    columns = tuple(
        LoggedColumn(*kind, bool(nulls >> index & 1), named, sign, collation, texts)
        for index, (kind, named, sign, collation, texts) in enumerate(described)
    )
    return LoggedTable(database, name, columns, _key_of(fields))


def _table_name(reader: ByteReader) -> tuple[str, str]:
    database = reader.text()
    reader.take(1)
    name = reader.text()
    reader.take(1)
    return database, name


def _type_and_length(code: int, lengths: ByteReader) -> tuple[int, int]:
    if code in _LENGTH_0:
        return code, 0
    if code in _LENGTH_1:
        length = lengths.number(1)
        if code in _LENGTHS_OF_VALUES and not 1 <= length <= 4:
            raise ValueError(f"a column of type {code} with lengths of {length} bytes")
        return code, length
    if code not in _LENGTH_2:
        raise ValueError(f"column type {code} is not known")
    first, second = lengths.take(2)
    if code in (T.STRING, T.VAR_STRING):
        return _string_type(first, second)
    if code == T.NEWDECIMAL:
        if not second <= first <= _MOST_DIGITS:
            raise ValueError(f"a decimal column of {first} digits, {second} behind the point")
        return code, first << 8 | second
    if code == T.BIT:
        return code, second * 8 + first
    return code, first | second << 8


def _string_type(first: int, second: int) -> tuple[int, int]:
    # Bits 8 and 9 of the length are in bits 4 and 5 of the type byte, inverted.
    code = first | 0x30
    if code not in _REAL_STRINGS:
        raise ValueError(f"a string column of type {code}")
    return code, second | ((first & 0x30) ^ 0x30) << 4


def _optional_fields(reader: ByteReader) -> Iterator[tuple[int, bytes]]:
    while reader.position < len(reader.data):
        tag = reader.byte()
        yield tag, reader.take(reader.packed())


def _descriptions(
    codes: Sequence[int], fields: Mapping[int, bytes], is_mariadb: bool
) -> tuple[Sequence[str | None], Sequence[bool | None], Sequence[int | None], Sequence[Members]]:
    """Return the columns' names, signs, collations and members; None for what is not there."""
    unknown = [None] * len(codes)
    # Tags: 1 signs, 2 and 3 collations of text columns (a default with exceptions, or one each),
    # 4 names, 5 members of SETs, 6 members of ENUMs, 8 and 9 the key, 10 and 11 collations of
    # ENUMs and SETs.
    names: Sequence[str | None] = unknown
    if 4 in fields:
        reader = ByteReader(fields[4])
        names = [reader.text() for _ in codes]
    signs = _signs(codes, fields[1]) if 1 in fields else unknown
    collations: list[int | None] = [*unknown]
    character = _CHARACTER_MARIADB if is_mariadb else _CHARACTER
    _put_collations(collations, codes, character, fields.get(2), fields.get(3))
    _put_collations(collations, codes, _MEMBERS, fields.get(10), fields.get(11))
    members: list[Members] = [*unknown]
    _put_members(members, codes, T.SET, fields.get(5))
    _put_members(members, codes, T.ENUM, fields.get(6))
    return names, signs, collations, members


def _signs(codes: Sequence[int], bits: bytes) -> Sequence[bool | None]:
    numeric = iter(
        bool(byte & 0x80 >> shift) for byte in bits for shift in range(8)
    )  # highest bit first, numeric columns only
    # YEAR counts as numeric here, too.
    return [next(numeric, False) if code in _NUMERIC else None for code in codes]


def _put_collations(
    found: list[int | None],
    codes: Sequence[int],
    kinds: frozenset[int],
    default: bytes | None,
    each: bytes | None,
) -> None:
    if default is None and each is None:
        return
    reader = ByteReader(each if each is not None else default or b"")
    numbers = []
    while reader.position < len(reader.data):
        numbers.append(reader.packed())
    places = [place for place, code in enumerate(codes) if code in kinds]
    if each is not None:
        for place, number in zip(places, numbers, strict=False):
            found[place] = number
        return
    # The default, then pairs of a column's place among these types and its own collation.
    others = dict(zip(numbers[1::2], numbers[2::2], strict=True))
    for number, place in enumerate(places):
        found[place] = others.get(number, numbers[0])


def _put_members(
    found: list[Members], codes: Sequence[int], kind: int, field: bytes | None
) -> None:
    if field is None:
        return
    reader = ByteReader(field)
    for place, code in enumerate(codes):
        if code == kind:
            found[place] = tuple(reader.take(reader.packed()) for _ in range(reader.packed()))


def _key_of(fields: Mapping[int, bytes]) -> tuple[int, ...]:
    tag = 8 if 8 in fields else 9
    if tag not in fields:
        return ()
    reader = ByteReader(fields[tag])
    numbers = []
    while reader.position < len(reader.data):
        numbers.append(reader.packed())
    # A key over prefixes has (column, prefix length) pairs.
    return tuple(numbers if tag == 8 else numbers[::2])
