"""The queries that read one table, as long as its definition is the same. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from databus.relay.sources.mysql.scan.columns import SelectedColumn
from databus.relay.sources.mysql.scan.key_order import KeyOrder
from databus.relay.sources.mysql.tables.ddl_tokens import quote
from databus.relay.sources.mysql.tables.names import split_name
from databus.schemas.table import Table


@dataclass(frozen=True, slots=True)
class TableQueries:
    """The queries of a table, valid while its SHOW CREATE TABLE is `text`."""

    text: bytes
    source: str
    table: Table
    columns: tuple[SelectedColumn, ...]
    order: KeyOrder | None
    key: tuple[int, ...]  # the indexes of the key's columns

    def select(self, condition: str, limit: int) -> str:
        """Return the query of a chunk."""
        assert self.order is not None
        where = f" WHERE {condition}" if condition else ""
        order = f" ORDER BY {self.order.terms} LIMIT {limit}"
        return f"{self.select_all()} FORCE INDEX (PRIMARY){where}{order}"

    def select_extent(self) -> str:
        """Return the query of the smallest and the largest key, which is one integer."""
        assert self.order is not None
        key = self.order.terms
        return f"SELECT MIN({key}), MAX({key}) FROM {sql_name(self.source)}"

    def select_all(self) -> str:
        """Return the query of everything, in no order."""
        columns = ", ".join(column.expression for column in self.columns)
        return f"SELECT {columns} FROM {sql_name(self.source)}"


def sql_name(source: str) -> str:
    """Return a table's name as SQL has it."""
    return quote(*split_name(source))
