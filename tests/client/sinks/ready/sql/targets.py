"""Databases to write to, and rows of a source with the schema that a relay makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from databus.client.sinks.contract import Change, ChangeOp, Opening, Position, TransactionInfo
from databus.client.sinks.ready.sql.sink import SqlSink
from databus.client.sql.names import quoted
from databus.conf.loading import build_settings
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, shape_id, with_change
from databus.schemas.table_schema import avro_schema

DIALECTS = ("sqlite", "postgresql", "mariadb", "mysql")
OPENING = Opening("copy", "shop")


@dataclass(frozen=True)
class Target:
    """A database of one test."""

    url: str
    folder: Path

    @property
    def options(self) -> dict[str, Any]:
        """The options that name it: the password is in a file."""
        url = make_url(self.url)
        if url.password is None:
            return {"url": self.url}
        file = self.folder / "password"
        file.write_text(str(url.password))
        file.chmod(0o600)
        shown = url._replace(password=None).render_as_string(hide_password=False)
        return {"url": shown, "password_file": str(file)}

    @property
    def dialect(self) -> str:
        return make_url(self.url).get_backend_name()

    def sink(self, **options: Any) -> SqlSink:
        """Return a sink of its own process, as far as it knows; not open."""
        given = {**self.options, **options}
        return SqlSink(build_settings(given, SqlSink.Options, "options of sql", None))

    @contextmanager
    def opened(self, **options: Any) -> Iterator[SqlSink]:
        """Yield an open sink."""
        sink = self.sink(**options)
        try:
            sink.open(OPENING)
            yield sink
        finally:
            sink.close()

    @contextmanager
    def connection(self) -> Iterator[sa.Connection]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            yield connection

    def run(self, *statements: str) -> None:
        with self.connection() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connection() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query)]

    def table(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return rows in the order of all their columns."""
        with self.connection() as connection:
            dialect = connection.dialect
            names = ", ".join(quoted(dialect, one) for one in columns) or "*"
            text = f"SELECT {names} FROM {quoted(dialect, name)}"
            doubled = text.replace("%", "%%") if dialect.paramstyle != "qmark" else text
            found = connection.exec_driver_sql(doubled)
            return sorted((tuple(row) for row in found), key=repr)

    def columns(self, name: str) -> list[str]:
        with self.connection() as connection:
            return [one["name"] for one in sa.inspect(connection).get_columns(name)]

    def quoted(self, name: str) -> str:
        engine = sa.create_engine(self.url)
        return quoted(engine.dialect, name)


@dataclass
class Source:
    """A table of a source: `columns` are name → SQL type, the first `keys` of them the key.

    A type that ends with `not null` is of a column that is never NULL.
    """

    columns: dict[str, str]
    name: str = "shop.t"
    keys: int = 1
    dialect: str = "mysql"
    version: int = 1
    text: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        made = [
            Column(
                name,
                kind.removesuffix(" not null"),
                at,
                at >= self.keys and not kind.endswith(" not null"),
                at if at < self.keys else None,
            )
            for at, (name, kind) in enumerate(self.columns.items())
        ]
        self.text = self.text or avro_schema(Table(self.name, tuple(made), self.dialect))

    @cached_property
    def schema(self) -> WriterSchema:
        """The one object that all rows have, as those of a client do."""
        return WriterSchema(self.name, 1, self.version, self.text)

    def altered(self, columns: dict[str, str], **change: Any) -> Source:
        """Return the table after an ALTER; `change` says what became of rows at rest."""
        plain = Source(columns, self.name, self.keys, self.dialect, self.version + 1)
        what = TableChange(self.version * 100, shape_id(self.text), **change)
        return replace(plain, text=with_change(plain.text, what))

    def made(self, op: str, *values: Any, scn: int = 1, index: int = 0, **more: Any) -> Change:
        """Return a change of the row with these values."""
        row = dict(zip(self.columns, values, strict=False))
        key = {name: row[name] for name in list(self.columns)[: self.keys]} if row else {}
        kind = ChangeOp(op)
        is_gone = kind in (ChangeOp.DELETE, ChangeOp.TRUNCATE)
        before = row if kind is ChangeOp.DELETE else None
        given: dict[str, Any] = {"index": index, "position": Position("shop", Checkpoint.at(scn))}
        schema = None if kind is ChangeOp.TRUNCATE else self.schema
        return Change(
            kind, self.name, key or row, before, None if is_gone else row,
            TransactionInfo(scn, scn), scn, scn * 1000, **(given | more), schema=schema,
        )  # fmt: skip

    def insert(self, *values: Any, **more: Any) -> Change:
        return self.made("insert", *values, **more)

    def update(self, *values: Any, **more: Any) -> Change:
        return self.made("update", *values, **more)

    def delete(self, *values: Any, **more: Any) -> Change:
        return self.made("delete", *values, **more)


def write(target: Target, changes: Sequence[Change], **options: Any) -> Position | None:
    """Write changes in one flush of a sink of their own."""
    with target.opened(**options) as sink:
        sink.write(changes)
        return sink.flush()
