"""A table's columns, as a source saw them at one moment."""

from __future__ import annotations

from dataclasses import dataclass, replace

# In a `sql_type`: one that the database's catalogue cannot show.
UNKNOWN_CHARACTER = "\ufffd"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    `sql_type` is the declared type in the source's own words, lower case, with
    its arguments (`decimal(10,2)`, `bigint unsigned`, `enum('a','b')`);
    `position` counts from 0; `key_position` is the place in the primary key,
    from 0, or None. `avro_type` is the JSON text of the Avro type of a value that
    is not null; without it, the table's dialect says which type belongs to `sql_type`.
    `mask` says what a relay puts in place of the values (`hash:KEY`, `redact`, `truncate:8`), and
    is empty if they are the database's.
    """

    name: str
    sql_type: str
    position: int
    nullable: bool = True
    key_position: int | None = None
    avro_type: str | None = None
    mask: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A source's name (`shop.orders`), its columns in order, and whose types they are.

    `table` is the table's name in its database if the source has a name of its own, and else
    empty. Source kinds leave it empty: to them the source is the table.
    `dialect` says how `sql_type` is to be read: "mysql", "sqlite", or any other word when
    every column has its `avro_type`.
    `left_out` are columns of the database's table that a relay does not capture; `*` stands for
    all that are not listed.
    Equal tables have equal schemas, so a table may be used as a cache key.
    """

    source: str
    columns: tuple[Column, ...]
    dialect: str = "mysql"
    table: str = ""
    left_out: tuple[str, ...] = ()

    def named(self, source: str) -> Table:
        """Return the table as that of a source, which may have a name of its own."""
        return self if source == self.source else replace(self, source=source, table=self.source)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The primary key's columns in key order; empty when there is no key."""
        keyed = [c for c in self.columns if c.key_position is not None]
        return tuple(sorted(keyed, key=lambda c: c.key_position or 0))
