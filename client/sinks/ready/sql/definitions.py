"""The definition of a target's table, from the columns of a source's rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import types as sql_types
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

from databus.client.sinks.contract import Change, ChangeOp
from databus.client.sql.column_types import (
    binary_text,
    data,
    decimal,
    key_data,
    key_text,
    moment,
    text,
)
from databus.client.sql.modes import (
    DELETED,
    FROM,
    ID,
    INDEX,
    OP,
    SCN,
    SOURCE,
    TIME,
    TO,
    WriteMode,
)
from databus.client.sql.names import MYSQL, check_length
from databus.client.sql.values import Convert
from databus.schemas.columns.avro_columns import AvroColumn, Kind, key_names

_LENGTH = re.compile(r"(?:var)?(?:char|binary)\w*\s*\((\d+)\)", re.IGNORECASE)
_LONGEST_KEY = 768  # characters of four bytes in a key of InnoDB
_NAME = 255
_KIND_TYPES: dict[Kind, type[TypeEngine[Any]]] = {
    Kind.BOOLEAN: sql_types.Boolean,
    Kind.INT: sql_types.Integer,
    Kind.LONG: sql_types.BigInteger,
    Kind.FLOAT: sql_types.Double,  # of a key, which is compared with doubles
    Kind.DOUBLE: sql_types.Double,
    Kind.DATE: sql_types.Date,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table has besides the columns of the source, by mode."""

    mode: WriteMode
    source_column: str = ""
    to_moment: Convert | None = None  # of the driver

    @property
    def key_extras(self) -> tuple[str, ...]:
        """Columns of the key that the source does not have."""
        if not self.mode.has_keys:
            return (SOURCE, ID)
        return (self.source_column,) if self.source_column else ()

    @property
    def extras(self) -> tuple[str, ...]:
        """All columns that the source does not have, those of the key first."""
        return self.key_extras + _EXTRAS[self.mode]

    def key_values(self, change: Change) -> tuple[Any, ...]:
        """Return the values of `key_extras`."""
        if not self.mode.has_keys:
            return (change.source, change.id)
        return (change.source,) if self.source_column else ()

    def values(self, change: Change) -> tuple[Any, ...]:
        """Return the values of `extras`."""
        return self.key_values(change) + self.marks(change)

    @property
    def versions(self) -> tuple[str, ...]:
        """Columns of the table's key that tell versions of a row apart, last."""
        return (SCN, INDEX) if self.mode is WriteMode.SCD2 else ()

    def marks(self, change: Change) -> tuple[Any, ...]:
        """Return the values of the extras that are not of the key of the source."""
        match self.mode:
            case WriteMode.MIRROR:
                return ()
            case WriteMode.SOFT_DELETE:
                return (change.op in (ChangeOp.DELETE, ChangeOp.TRUNCATE),)
            case WriteMode.SCD2:
                return (self.time(change), None, change.scn, change.index)
        return (change.op.value, change.scn, self.time(change))

    def version(self, change: Change, until: Change | None) -> tuple[Any, ...]:
        """Return the values of `extras` of a version that begins with a change; None = it is."""
        begin, _, *place = self.marks(change)
        end = None if until is None else self.time(until)
        return (*self.key_values(change), begin, end, *place)

    def time(self, change: Change) -> Any:
        """Return the time of its commit, in UTC."""
        at = datetime.fromtimestamp(change.timestamp_ns / 1e9, UTC).replace(tzinfo=None)
        return at if self.to_moment is None else self.to_moment(at)

    @property
    def marked(self) -> tuple[str, ...]:
        """The names of `marks`."""
        return _EXTRAS[self.mode]


_EXTRAS: dict[WriteMode, tuple[str, ...]] = {
    WriteMode.MIRROR: (),
    WriteMode.SOFT_DELETE: (DELETED,),
    WriteMode.LOG_UPDATE: (OP, SCN, TIME),
    WriteMode.APPEND_HISTORY: (OP, SCN, TIME),
    WriteMode.SCD2: (FROM, TO, SCN, INDEX),
}


def definition(
    name: str,
    columns: Sequence[AvroColumn],
    shape: Shape,
    dialect: sa.Dialect,
    *,
    key_length: int,
    schema: str | None = None,
) -> sa.Table:
    """Return the table; raise SettingsError for a name that is too long."""
    for one in (name, *(column.name for column in columns)):
        check_length(one, dialect)
    made = [_extra(one) for one in shape.extras]
    made += [
        sa.Column(
            column.name,
            _key_type(column, dialect, key_length)
            if shape.mode.has_keys and column.key is not None
            else _type(column, dialect),
            autoincrement=False,
        )
        for column in columns
    ]
    keys = [*shape.key_extras, *(key_names(columns) if shape.mode.has_keys else ())]
    keys += shape.versions
    return sa.Table(name, sa.MetaData(), *made, sa.PrimaryKeyConstraint(*keys), schema=schema)


def _extra(name: str) -> sa.Column[Any]:
    kinds: dict[str, TypeEngine[Any]] = {
        DELETED: sql_types.Boolean(),
        OP: binary_text(16),
        SCN: sql_types.BigInteger(),
        TIME: moment(),
        FROM: moment(),
        TO: moment(),
        INDEX: sql_types.Integer(),
    }
    return sa.Column(name, kinds.get(name, binary_text(_NAME)))


def _key_type(column: AvroColumn, dialect: sa.Dialect, key_length: int) -> TypeEngine[Any]:
    found = _LENGTH.match(column.sql_type)
    length = min(int(found[1]) if found else key_length, _LONGEST_KEY)
    if column.kind in (Kind.STRING, Kind.ANY):
        return _any(dialect) if column.kind is Kind.ANY else key_text(dialect, length)
    if column.kind is Kind.FLOAT:
        return _KIND_TYPES[column.kind]()
    return key_data(length) if column.kind is Kind.BYTES else _type(column, dialect)


def _type(column: AvroColumn, dialect: sa.Dialect) -> TypeEngine[Any]:
    match column.kind:
        case Kind.DECIMAL | Kind.WIDE_DECIMAL:
            return decimal(dialect, column.precision, column.scale)
        case Kind.TIME:
            # Beyond 24 hours, and negative.
            span = sql_types.String(20).with_variant(mysql.TIME(fsp=6), *MYSQL)
            return span.with_variant(postgresql.INTERVAL(), "postgresql")
        case Kind.DATETIME | Kind.TIMESTAMP:
            return moment()
        case Kind.FLOAT:
            single: TypeEngine[float] = sql_types.Double().with_variant(mysql.FLOAT(), *MYSQL)
            return single.with_variant(sql_types.REAL(), "postgresql")
        case Kind.BYTES:
            return data()
        case Kind.STRING:
            return text()
        case Kind.ANY:
            return _any(dialect) if dialect.name == "sqlite" else text()
    return _KIND_TYPES[column.kind]()


def _any(dialect: sa.Dialect) -> TypeEngine[Any]:
    """Return a type for values of several kinds: SQLite stores what it gets in a BLOB column."""
    return sql_types.LargeBinary() if dialect.name == "sqlite" else key_text(dialect, _NAME)
