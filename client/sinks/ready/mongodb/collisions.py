"""Whether a change that a unique index refuses is out of date: then its row changes again later.

Changes that come again after a crash meet documents that are ahead of them. If an older change of A
has the unique value of B's newer document, then A has given it up in the source by that SCN, so a
later change of A is still to come. Until then A has no document: its newer one, if it is there,
stays, and an older one would hold values that others have by now. B stays as it is.

That is true of an index whose values are unique in the source. A NULL is not: MongoDB has it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import bson
from pymongo import ReadPreference
from pymongo.collection import Collection

from databus.client.sinks.contract import Change, Opening
from databus.client.sinks.ready.mongodb.actions import Action
from databus.client.sinks.ready.mongodb.errors import is_collision
from databus.client.sinks.ready.mongodb.positions import Document
from databus.schemas.checkpoint import ConsumptionMode

Failed = Mapping[str, Any]  # the error of one operation, as the server tells it


class Repeats:
    """Which changes come again, by what the sink was opened for."""

    def __init__(self, opening: Opening, scn_field: str) -> None:
        self._scn_field = scn_field
        position = opening.position
        is_online = position is not None and position.checkpoint.mode is ConsumptionMode.ONLINE
        self._passed = position.scn if position is not None and is_online else None

    def is_outdated(
        self,
        collection: Collection[Document],
        action: Action,
        failed: Failed,
        own: Mapping[bytes, int],
    ) -> bool:
        """Return whether a newer document has the value that a unique index refuses.

        `own` are the SCNs of what is written at the same time, by the BSON of `_id`: two rows of it
        with one value are no matter of time. Errors of the library are passed on.
        """
        if not is_collision(failed) or not self._may_repeat(action.change):
            return False
        # A secondary may not have it yet.
        primary = collection.with_options(read_preference=ReadPreference.PRIMARY)
        # In a transaction that is written in parts, the row has the same SCN, too.
        return any(
            scn >= action.change.scn and own.get(bson.encode({"_id": id})) != scn
            for id, scn in self._in_the_way(primary, action, failed)
        )

    def _may_repeat(self, change: Change) -> bool:
        """Return whether later changes of the row are still to come.

        Not of a dead letter, which is behind the position. Rows at rest come in the order of keys,
        so an older one meets a newer document also where the source has the value twice.
        """
        if change.transaction.phase == "snapshot":
            return False
        return self._passed is None or change.scn > self._passed

    def _in_the_way(
        self, collection: Collection[Document], action: Action, failed: Failed
    ) -> Iterator[tuple[Any, int]]:
        """Yield `_id` and SCN of the documents that have the values of the unique index.

        None for an index of fields within documents, or with a NULL: it says nothing of the source.
        """
        pattern = dict(failed.get("keyPattern") or {})
        document = action.document
        values = {} if document is None else {name: document.get(name) for name in pattern}
        if not values or None in values.values():
            return
        same: Document = {name: {"$eq": value} for name, value in values.items()}
        # One of another program has no SCN.
        same |= {"_id": {"$ne": action.id}, self._scn_field: {"$type": "long"}}
        for index in collection.list_indexes():
            if index.get("unique") and dict(index["key"]) == pattern:
                chosen = {"$and": [same, index.get("partialFilterExpression", {})]}
                found = collection.find(
                    chosen, {self._scn_field: 1}, collation=index.get("collation")
                )
                yield from ((one["_id"], one[self._scn_field]) for one in found)
