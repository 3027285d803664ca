"""The versions of the sources' schemas that servers have sent, as rows of a sink come with them.

A row has one version only. What an earlier statement did to rows at rest, such as the DEFAULT of a
new column, is in the version that it made, which may have no rows at all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from databus.client.dispatcher.data_window import DataWindow, read_of
from databus.client.sinks.rules.changes import RuleOf, schema_of
from databus.client.subscription import Bindings
from databus.schemas.columns.avro_columns import WriterSchema


class SchemaHistory:
    """Filled by the thread that reads, asked by those of the lanes."""

    def __init__(self, rule_of: RuleOf) -> None:
        self._rule_of = rule_of
        self._bindings: Bindings = {}  # the newest: a server sends more, and they are replaced
        self._known: dict[str, Collection[WriterSchema]] = {}  # as a server has sent them

    def take(self, window: DataWindow) -> None:
        """Take note of the versions that are known with a window."""
        bindings = read_of(window).bindings
        if bindings is not self._bindings:
            self._bindings = bindings
            self._known |= {one.name: one.written.values() for one in bindings.values()}

    def of(self, source: str) -> Sequence[WriterSchema]:
        """Return the versions of a source, oldest first."""
        rule = self._rule_of(source)
        listed = sorted(set(self._known.get(source, ())), key=lambda one: one.version)
        return [found for one in listed if (found := schema_of(one, rule)) is not None]
