"""What a change is in a search index: a document that is put, or deleted, with a version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from databus.client.sinks.contract import Change, ChangeOp
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.formats.plain import json_bytes
from databus.client.sinks.ready.rows import key_text, whole_row
from databus.client.sinks.ready.templates import Template, part_sources
from databus.schemas.event.json import json_value

_NOT_IN_AN_INDEX = re.compile(r'[\\/*?"<>| ,#:]')
_LONGEST_ID = 512  # bytes; a longer one is refused together with all of its request


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document is."""

    index: str
    id: str
    routing: str


class Action(NamedTuple):
    """What is done with a document: lines of a bulk request, and the change that it is of."""

    lines: bytes
    change: Change


@dataclass(frozen=True, slots=True)
class Actions:
    """Makes the actions of a change."""

    index: Template
    id: Template | None  # None: the primary key
    routing: Template | None
    scn_field: str  # of a document, with the SCN of its change; "" = none

    def of(self, change: Change) -> Iterator[tuple[Place, Action]]:
        """Yield what is done, and where; raise SinkRefusedError."""
        if change.after is None:
            yield self._delete(self._place(change), change)
            return
        place = self._place(change)
        if self._has_columns and change.op is ChangeOp.UPDATE:
            # A column that is not of the primary key may have moved the document.
            old = self._place(replace(change, after=None))
            if old != place:
                yield self._delete(old, change)
        document = json_value(dict(whole_row(change)))
        if self.scn_field in document:
            problem = f"a column has the name of scn_field, {self.scn_field}"
            raise SinkRefusedError(f"{change.source}: {problem}", change)
        if self.scn_field:
            document[self.scn_field] = change.scn
        head = json_bytes({"index": _head(place, change)})
        yield place, Action(b"%s\n%s\n" % (head, json_bytes(document)), change)

    def index_of_source(self, change: Change) -> str:
        """Return the index that has all rows of the source, and no others; raise SinkRefusedError.

        For a TRUNCATE.
        """
        if not part_sources(self.index):
            raise SinkRefusedError(
                f"TRUNCATE of {change.source}: `index` does not say that one index has the rows of "
                "this table and no others",
                change,
            )
        return _index(self.index, change)

    @property
    def _has_columns(self) -> bool:
        templates = (self.index, self.id, self.routing)
        return any(one is not None and one.has_columns for one in templates)

    def _place(self, change: Change) -> Place:
        found = key_text(change) if self.id is None else self.id.fill(change)
        if not 0 < len(found.encode()) <= _LONGEST_ID:
            problem = (
                f"the id of its document has {len(found.encode())} bytes, of 1 to {_LONGEST_ID}"
            )
            raise SinkRefusedError(f"{change.source}: {problem}", change)
        routing = "" if self.routing is None else self.routing.fill(change)
        return Place(_index(self.index, change), found, routing)

    def _delete(self, place: Place, change: Change) -> tuple[Place, Action]:
        return place, Action(json_bytes({"delete": _head(place, change)}) + b"\n", change)


def _index(template: Template, change: Change) -> str:
    return _NOT_IN_AN_INDEX.sub("_", template.fill(change)).lower()


def _head(place: Place, change: Change) -> dict[str, Any]:
    # Of two actions of one transaction the later one counts: hence not a greater version alone.
    head = {"_index": place.index, "_id": place.id, "version": change.scn}
    head["version_type"] = "external_gte"
    return head | ({"routing": place.routing} if place.routing else {})
