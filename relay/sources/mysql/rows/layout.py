"""Makes a table's row layout from its TABLE_MAP event and its definition. Pure.

The TABLE_MAP defines how a row is packed. The definition adds the declared types
(`tinyint(1)`, `uuid`), and names, signs and character sets where the log has none. The
definition may be of another moment than the row, so it is used only for columns that it
describes exactly as they were logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pymysqlreplication.constants import FIELD_TYPE as T

from databus.relay.sources.mysql.rows.changes import PackedColumn, RowLayout
from databus.relay.sources.mysql.rows.charsets import BINARY, Decoder, decoder_of, exact_decoder
from databus.relay.sources.mysql.rows.columns import (
    COMPRESSED_BLOB,
    COMPRESSED_VARCHAR,
    VECTOR,
    LoggedColumn,
    LoggedTable,
    SqlType,
    check_members,
    parse_sql_type,
)
from databus.relay.sources.mysql.rows.values import reader_for
from databus.schemas.table import Column, Table


@dataclass(frozen=True, slots=True)
class DefinedColumn:
    """A column as in information_schema; `charset` is None for a column without text."""

    name: str
    sql_type: str
    nullable: bool
    charset: str | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """A table as in information_schema; `key` has column names in key order.

    `period` are the row-start and row-end columns of a system-versioned table; those that
    the server adds itself are not in `columns`. `hides_row_id`: the table has an invisible
    column `my_row_id`.
    """

    columns: tuple[DefinedColumn, ...]
    key: tuple[str, ...] = ()
    period: tuple[str, str] | None = None
    hides_row_id: bool = False

    @property
    def keeps_row_id_first(self) -> bool:
        """Whether its first column is a key that MySQL generated; no ALTER puts one before it."""
        return (
            self.hides_row_id
            and self.key == (ROW_ID,)
            and (self.columns[0].name, self.columns[0].sql_type) == (ROW_ID, "bigint unsigned")
        )

    @property
    def hidden(self) -> tuple[DefinedColumn, ...]:
        """Columns that are logged after the others but are not visible in the table."""
        names = {column.name for column in self.columns}
        if self.period is None or self.period[1] in names:
            return ()
        return tuple(DefinedColumn(name, "timestamp(6)", False) for name in self.period)

    def table(self, source: str) -> Table:
        """Return the table in the form that all kinds of sources share."""
        columns = [(c.name, c.sql_type, c.nullable) for c in self.columns]
        return _table(source, columns, self.key)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The properties of a server on which the reading of texts and types depends."""

    is_mariadb: bool = True
    collations: Mapping[int, str] = field(default_factory=dict)  # id → character set
    char_bytes: Mapping[str, int] = field(default_factory=dict)  # character set → most bytes
    zero_dates_are_null: bool = False
    delivers_partial_rows: bool = False

    def charset(self, collation_id: int) -> str:
        """Return a collation's character set; raises ValueError."""
        name = self.collations.get(collation_id)
        if name is None:
            raise ValueError(f"collation {collation_id} is not known to the server any more")
        return name


_CODES: dict[str, tuple[int, ...]] = {
    "tinyint": (T.TINY,),
    "smallint": (T.SHORT,),
    "mediumint": (T.INT24,),
    "int": (T.LONG,),
    "bigint": (T.LONGLONG,),
    "float": (T.FLOAT,),
    "double": (T.DOUBLE,),
    "decimal": (T.NEWDECIMAL,),
    "bit": (T.BIT,),
    "year": (T.YEAR,),
    "date": (T.DATE, T.NEWDATE),
    "time": (T.TIME2, T.TIME),
    "datetime": (T.DATETIME2, T.DATETIME),
    "timestamp": (T.TIMESTAMP2, T.TIMESTAMP),
    "char": (T.STRING,),
    "binary": (T.STRING,),
    "uuid": (T.STRING,),
    "inet4": (T.STRING,),
    "inet6": (T.STRING,),
    "varchar": (T.VARCHAR, COMPRESSED_VARCHAR),
    "varbinary": (T.VARCHAR, COMPRESSED_VARCHAR),
    "enum": (T.ENUM,),
    "set": (T.SET,),
    "json": (T.JSON,),
    "vector": (VECTOR, T.VARCHAR),
    "geometry": (T.GEOMETRY,),
    "point": (T.GEOMETRY,),
    "linestring": (T.GEOMETRY,),
    "polygon": (T.GEOMETRY,),
    "multipoint": (T.GEOMETRY,),
    "multilinestring": (T.GEOMETRY,),
    "multipolygon": (T.GEOMETRY,),
    "geometrycollection": (T.GEOMETRY,),
    "geomcollection": (T.GEOMETRY,),
}
_BLOB_SIZES = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_CODES |= {f"{prefix}text": (T.BLOB, COMPRESSED_BLOB) for prefix in _BLOB_SIZES}
_CODES |= {f"{prefix}blob": (T.BLOB, COMPRESSED_BLOB) for prefix in _BLOB_SIZES}

_SIGNED = frozenset({T.TINY, T.SHORT, T.INT24, T.LONG, T.LONGLONG, T.NEWDECIMAL, T.FLOAT, T.DOUBLE})
_TEXTUAL = frozenset({T.STRING, T.VAR_STRING, T.VARCHAR, T.BLOB, COMPRESSED_BLOB})
_OLD_TEMPORAL = frozenset({T.TIME, T.DATETIME, T.TIMESTAMP})
_FIXED_SIZES = {"uuid": 16, "inet4": 4, "inet6": 16}


# The server's names for the columns of an implicit period.
OWN_PERIOD = ("row_start", "row_end")
# MySQL's name for the key that it generates for a table created without one.
ROW_ID = "my_row_id"


def current_key(key: Sequence[str], period: tuple[str, str] | None) -> tuple[str, ...]:
    """Return the key of a table's current rows.

    Servers add the end of the period to the key of a system-versioned table, for
    the rows of its history.
    """
    return tuple(name for name in key if period is None or name not in period)


def layout_of(
    source: str, logged: LoggedTable, definition: Definition | None, dialect: Dialect
) -> RowLayout:
    """Return the layout of the rows after a TABLE_MAP; raises ValueError naming a difference."""
    if logged.has_names:
        return _layout_by_name(source, logged, definition, dialect)
    if definition is None:
        raise ValueError("the table is not in the database, and the log does not name its columns")
    columns = (*definition.columns, *definition.hidden)
    if len(logged.columns) != len(columns):
        raise ValueError(
            f"the log has {len(logged.columns)} columns and the database {len(columns)}"
        )
    packed = []
    for column, defined in zip(logged.columns, columns, strict=True):
        problem = difference(column, defined, dialect)
        if problem:
            raise ValueError(f"column {defined.name!r}: {problem}")
        packed.append(_packed(column, defined.name, defined, dialect))
    return _row_layout(definition.table(source), packed, dialect, definition.period)


def _layout_by_name(
    source: str, logged: LoggedTable, definition: Definition | None, dialect: Dialect
) -> RowLayout:
    logged_names = [column.name for column in logged.columns]
    if not all(logged_names) or len(set(logged_names)) < len(logged_names):
        raise ValueError(f"the log names its columns {logged_names}")
    known = {c.name: c for c in definition.columns} if definition else {}
    period = _period(logged, definition)
    hidden = period if period is not None and period[1] not in known else ()
    columns, packed = [], []
    for column in logged.columns:
        name = column.name or ""
        defined = known.get(name)
        # The definition is of another moment: derive the type from the log's own metadata.
        if defined is None or difference(column, defined, dialect):
            defined = derive(column, dialect)
        if name not in hidden:
            columns.append((name, defined.sql_type, column.nullable))
        packed.append(_packed(column, name, defined, dialect))
    key = current_key([logged.columns[index].name or "" for index in logged.key], period)
    return _row_layout(_table(source, columns, key), packed, dialect, period)


def _period(logged: LoggedTable, definition: Definition | None) -> tuple[str, str] | None:
    """Return the period's columns of a logged table, when it is a system-versioned one."""
    names = [column.name for column in logged.columns]
    period = definition.period if definition is not None else None
    if period is not None and period[1] in names:
        return period
    # Not in the definition, but the table may have been versioned when this was logged.
    if tuple(names[-2:]) != OWN_PERIOD or names.index(OWN_PERIOD[1]) not in logged.key:
        return None
    return OWN_PERIOD


def _row_layout(
    table: Table,
    packed: Sequence[PackedColumn],
    dialect: Dialect,
    period: tuple[str, str] | None,
) -> RowLayout:
    names = {column.name for column in table.columns}
    return RowLayout.of(
        table,
        packed,
        zero_dates_are_null=dialect.zero_dates_are_null,
        delivers_partial=dialect.delivers_partial_rows,
        row_end=None if period is None else period[1],
        hidden=tuple(name for name in period or () if name not in names),
    )


def _table(source: str, columns: Sequence[tuple[str, str, bool]], key: tuple[str, ...]) -> Table:
    places = {name: place for place, name in enumerate(key)}
    return Table(
        source,
        tuple(
            Column(name, sql_type, position, nullable, places.get(name))
            for position, (name, sql_type, nullable) in enumerate(columns)
        ),
    )


def _packed(
    column: LoggedColumn, name: str, defined: DefinedColumn, dialect: Dialect
) -> PackedColumn:
    try:
        sql = parse_sql_type(defined.sql_type)
        if column.members is None:
            check_members(sql)
        decode = _decoder(column, defined.charset)
        read = reader_for(column, sql, decode, zero_dates_are_null=dialect.zero_dates_are_null)
    except ValueError as error:
        raise ValueError(f"column {name!r} ({defined.sql_type}): {error}") from error
    return PackedColumn(column, sql, defined.charset, read)


def _decoder(column: LoggedColumn, charset: str | None) -> Decoder | None:
    return None if column.type_code in (T.ENUM, T.SET) else exact_decoder(charset)


def difference(column: LoggedColumn, defined: DefinedColumn, dialect: Dialect) -> str:
    """Describe how a logged column differs from a defined one; "" when it does not."""
    sql = parse_sql_type(defined.sql_type)
    codes = _CODES.get(sql.name)
    if codes is None:
        return f"type {defined.sql_type} is not known"
    if column.type_code not in codes:
        return f"logged as type {column.type_code}, and defined as {defined.sql_type}"
    # MariaDB had fractions in a format of its own before it took that of MySQL 5.6.
    if column.type_code in _OLD_TEMPORAL and sql.arguments and not dialect.is_mariadb:
        return f"{defined.sql_type} in the format before 5.6, which had no fractions"
    length = _length(sql, column.type_code, dialect.char_bytes.get(defined.charset or BINARY, 1))
    if length is not None and length != column.length:
        return f"logged with length {column.length}, and {defined.sql_type} has {length}"
    if column.nullable != defined.nullable:
        return f"logged as {'' if column.nullable else 'not '}nullable, and defined otherwise"
    return _metadata_difference(column, sql, defined, dialect)


def _metadata_difference(
    column: LoggedColumn, sql: SqlType, defined: DefinedColumn, dialect: Dialect
) -> str:
    unsigned = column.is_unsigned
    if unsigned is not None and column.type_code in _SIGNED and unsigned != sql.is_unsigned:
        return f"logged as {'un' if unsigned else ''}signed, and defined as {defined.sql_type}"
    if column.collation_id is not None and defined.sql_type not in _FIXED_SIZES:
        charset = dialect.charset(column.collation_id)
        if charset != (defined.charset or BINARY):
            return f"logged in {charset}, and defined in {defined.charset or BINARY}"
    if column.members is not None and _members(column, dialect) != sql.members:
        return f"logged with other members than {defined.sql_type}"
    return ""


def _length(sql: SqlType, code: int, char_bytes: int) -> int | None:
    """Return the length that TABLE_MAP has for a type; None where it is not compared."""
    first = sql.arguments[0] if sql.arguments else 0
    if sql.name == "decimal":
        return first << 8 | (sql.arguments[1] if len(sql.arguments) > 1 else 0)
    if sql.name == "bit":
        return first
    if code in (T.TIME2, T.DATETIME2, T.TIMESTAMP2):
        return first
    if sql.name in _FIXED_SIZES:
        return _FIXED_SIZES[sql.name]
    if sql.name in ("char", "varchar", "binary", "varbinary"):
        # A compressed value has one byte in front.
        return first * char_bytes + (code == COMPRESSED_VARCHAR)
    if sql.name.endswith(("text", "blob")):
        return _BLOB_SIZES[sql.name[:-4]]
    if sql.name == "enum":
        return 1 if len(sql.members) < 256 else 2
    if sql.name == "set":
        # One bit per member, in 1, 2, 3, 4 or 8 bytes.
        size = (len(sql.members) + 7) // 8
        return 8 if size > 4 else size
    return None


def _members(column: LoggedColumn, dialect: Dialect) -> tuple[str, ...]:
    collation_id = column.collation_id
    charset = dialect.charset(collation_id) if collation_id is not None else "utf8mb4"
    # Binary members are delivered as text too, as in the server's catalogue.
    decode = decoder_of("utf8mb4" if charset == BINARY else charset)
    if decode is None:
        raise ValueError(f"character set {charset} cannot be decoded exactly")
    try:
        return tuple(decode(member) for member in column.members or ())
    except UnicodeDecodeError as error:
        raise ValueError(f"column {column.name!r}: members that are no text: {error}") from error


# Each server's spelling of integers declared without a width.
_INTS: dict[int, tuple[str, int, int]] = {
    T.TINY: ("tinyint", 4, 3),
    T.SHORT: ("smallint", 6, 5),
    T.INT24: ("mediumint", 9, 8),
    T.LONG: ("int", 11, 10),
    T.LONGLONG: ("bigint", 20, 20),
}
_TEMPORAL = {
    T.TIME: "time",
    T.TIME2: "time",
    T.DATETIME: "datetime",
    T.DATETIME2: "datetime",
    T.TIMESTAMP: "timestamp",
    T.TIMESTAMP2: "timestamp",
}
_BARE = {T.DATE: "date", T.NEWDATE: "date", T.JSON: "json", T.GEOMETRY: "geometry"}


def derive(column: LoggedColumn, dialect: Dialect) -> DefinedColumn:
    """Derive a definition from full metadata alone, for a column that no longer exists."""
    code, length = column.type_code, column.length
    charset = None
    if code in _OLD_TEMPORAL and dialect.is_mariadb:
        raise ValueError(
            f"column {column.name!r}: a time in the format before 5.6, and neither the log nor "
            "the database says how many digits of a second it has"
        )
    if code in _TEXTUAL or code == COMPRESSED_VARCHAR:
        if column.collation_id is None:
            raise ValueError(f"column {column.name!r}: the log does not say its character set")
        charset = dialect.charset(column.collation_id)
    sql_type = _derived_type(column, charset, dialect)
    if not sql_type:
        raise ValueError(f"column {column.name!r}: type {code} (length {length}) is not supported")
    return DefinedColumn(column.name or "", sql_type, column.nullable, charset)


def _derived_type(column: LoggedColumn, charset: str | None, dialect: Dialect) -> str:
    code, length = column.type_code, column.length
    sign = " unsigned" if column.is_unsigned else ""
    if code in _INTS:
        name, signed_width, unsigned_width = _INTS[code]
        width = f"({unsigned_width if sign else signed_width})" if dialect.is_mariadb else ""
        return f"{name}{width}{sign}"
    if code in (T.FLOAT, T.DOUBLE):
        return f"{'float' if length == 4 else 'double'}{sign}"
    if code == T.NEWDECIMAL:
        return f"decimal({length >> 8},{length & 0xFF}){sign}"
    if code == T.YEAR:
        return "year(4)" if dialect.is_mariadb else "year"
    if code == T.BIT:
        return f"bit({length})"
    if code in _TEMPORAL:
        return f"{_TEMPORAL[code]}({length})" if length else _TEMPORAL[code]
    if code in (T.ENUM, T.SET) and column.members is not None:
        members = ",".join(quoted_member(member) for member in _members(column, dialect))
        return f"{'enum' if code == T.ENUM else 'set'}({members})"
    return _BARE.get(code, "") or _derived_string(code, length, charset, dialect)


def _derived_string(code: int, length: int, charset: str | None, dialect: Dialect) -> str:
    if charset is None:
        return ""
    is_text = charset != BINARY
    if code in (T.BLOB, COMPRESSED_BLOB):
        prefix = next((p for p, size in _BLOB_SIZES.items() if size == length), None)
        return "" if prefix is None else prefix + ("text" if is_text else "blob")
    if code == COMPRESSED_VARCHAR:
        length -= 1
    name = ("char" if is_text else "binary") if code == T.STRING else ""
    name = name or ("varchar" if is_text else "varbinary")
    return f"{name}({length // dialect.char_bytes.get(charset, 1)})"


# The server's escapes of members in COLUMN_TYPE.
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "''", "\n": "\\n", "\r": "\\r", "\0": "\\0"})


def quoted_member(member: str) -> str:
    """Quote a member as the server's catalogue does."""
    return f"'{member.translate(_ESCAPES)}'"
