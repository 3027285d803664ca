"""What a change is in MongoDB: a document that is put, or deleted, unless a newer one is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import bson
from bson import Int64
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, UpdateOne

from databus.client.sinks.contract import Change, ChangeOp, Row
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.ready.mongodb.values import ValueRules
from databus.client.sinks.ready.rows import whole_row
from databus.client.sinks.ready.templates import Template, part_sources

Operation = UpdateOne | DeleteOne

_LARGEST_BYTES = 16 << 20  # of a document
# A table of this name would overwrite users and settings of the server.
_OF_THE_SERVER = frozenset({"admin", "config", "local"})
_NOT_IN_A_DATABASE = frozenset('/\\. "$*<>:|?\0')
_LONGEST_DATABASE = 63  # bytes
_LONGEST_NAMESPACE = 255
_NOT_BSON = (BSONError, ValueError, OverflowError, RecursionError)


class Namespace(NamedTuple):
    """A collection of a database."""

    database: str
    collection: str

    def __str__(self) -> str:
        return f"{self.database}.{self.collection}"


class Place(NamedTuple):
    """Where a document is: `id` is the BSON of its `_id`."""

    namespace: Namespace
    id: bytes


class Action(NamedTuple):
    """What is done with a document: without one it is deleted."""

    id: Any
    document: RawBSONDocument | None
    change: Change

    @property
    def size(self) -> int:
        """About its bytes in a request."""
        return 200 + (0 if self.document is None else len(self.document.raw))


@dataclass(frozen=True, slots=True)
class Actions:
    """Makes the actions of a change."""

    database: Template
    collection: Template
    id: Template | None  # None: the primary key
    scn_field: str  # of a document, with the SCN of its change
    rules: ValueRules

    def of(self, change: Change) -> Iterator[tuple[Place, Action]]:
        """Yield what is done, and where; raise SinkRefusedError."""
        try:
            yield from self._actions(change)
        except _NOT_BSON as error:
            raise SinkRefusedError(
                f"{change.source}: {error or 'it is no BSON'}", change
            ) from error

    def operation(self, action: Action) -> Operation:
        """Return what the server does at once, and not if the document is of a newer change."""
        scn = Int64(action.change.scn)
        # An `_id` with names that begin with a `$` would be taken for an operator.
        at = {"_id": {"$eq": action.id}}
        if action.document is None:
            return DeleteOne({**at, self.scn_field: {"$not": {"$gt": scn}}})
        is_newer = {"$gt": [f"${self.scn_field}", scn]}
        # A filter by SCN instead would insert the document a second time, for an error.
        chosen = {"$cond": [is_newer, "$$ROOT", {"$literal": action.document}]}
        return UpdateOne(at, [{"$replaceWith": chosen}], upsert=True)

    def namespace_of_source(self, change: Change) -> Namespace:
        """Return the collection that has all rows of the source, and no others.

        For a TRUNCATE. Raises SinkRefusedError.
        """
        if not self.has_collection_per_source:
            raise SinkRefusedError(
                f"TRUNCATE of {change.source}: `database` and `collection` do not say that one "
                "collection has the rows of this table and no others",
                change,
            )
        return self._namespace(change)

    @property
    def has_collection_per_source(self) -> bool:
        """Whether one collection has all rows of a source, and no others."""
        return part_sources(self.database, self.collection)

    def namespace_of(self, source: str) -> Namespace | None:
        """Return where all rows of a source are; None if that depends on them, or cannot be."""
        if self.database.has_columns or self.collection.has_columns:
            return None
        found = Namespace(self.database.of_source(source), self.collection.of_source(source))
        return None if _problem(found) else found

    def _actions(self, change: Change) -> Iterator[tuple[Place, Action]]:
        if change.after is None:
            yield self._delete(change)
            return
        found = self._put(change, whole_row(change))
        if self._has_columns and change.op is ChangeOp.UPDATE:
            # A column that is not of the primary key may have moved the document.
            old = self._delete(replace(change, after=None))
            if old[0] != found[0]:
                yield old
        yield found

    def _delete(self, change: Change) -> tuple[Place, Action]:
        namespace, key = self._namespace(change), self._id(change)
        return Place(namespace, bson.encode({"_id": key})), Action(key, None, change)

    def _put(self, change: Change, row: Row) -> tuple[Place, Action]:
        namespace, key = self._namespace(change), self._id(change)
        values = self.rules.values_of(row, change.schema)
        if values.get("_id", key) != key:
            problem = "a column has the name _id: `rename` gives it another one"
            raise SinkRefusedError(f"{change.source}: {problem}", change)
        if self.scn_field in values:
            problem = f"a column has the name of scn_field, {self.scn_field}"
            raise SinkRefusedError(f"{change.source}: {problem}", change)
        raw = bson.encode({"_id": key, **values, self.scn_field: Int64(change.scn)})
        if len(raw) > _LARGEST_BYTES:
            problem = f"its document has {len(raw)} bytes, of at most {_LARGEST_BYTES}"
            raise SinkRefusedError(f"{change.source}: {problem}", change)
        place = Place(namespace, bson.encode({"_id": key}))
        return place, Action(key, RawBSONDocument(raw), change)

    def _id(self, change: Change) -> Any:
        """Return the value of one key column, or a document of several, in the order of names.

        The order counts in MongoDB, and an ALTER may change that of the columns.
        """
        if self.id is not None:
            return self.id.fill(change)
        values = self.rules.values_of(change.key, change.schema)
        if len(values) == 1:
            return next(iter(values.values()))
        return {name: values[name] for name in sorted(values)}

    def _namespace(self, change: Change) -> Namespace:
        found = Namespace(self.database.fill(change), self.collection.fill(change))
        problem = _problem(found)
        if problem:
            raise SinkRefusedError(f"{change.source}: {problem}", change)
        return found

    @property
    def _has_columns(self) -> bool:
        templates = (self.database, self.collection, self.id)
        return any(one is not None and one.has_columns for one in templates)


def _problem(found: Namespace) -> str:
    """Return what is wrong with the names; empty if nothing is."""
    database, collection = found
    if database.lower() in _OF_THE_SERVER:
        return f"the database {database} is the server's own: set the option `database`"
    size = len(database.encode())
    if not 0 < size <= _LONGEST_DATABASE or set(database) & _NOT_IN_A_DATABASE:
        return f"{database!r} is no name of a database in MongoDB: set the option `database`"
    is_bad = not collection or set(collection) & {"$", "\0"} or collection[0] == "."
    if is_bad or collection.startswith("system.") or len(str(found).encode()) > _LONGEST_NAMESPACE:
        return f"{collection!r} is no name of a collection in MongoDB: set the option `collection`"
    return ""
