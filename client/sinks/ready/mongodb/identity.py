"""What a sink without `exactly_once` leaves in MongoDB, to know it again: a document of its own.

It is made before anything is written, and names the collections that have got documents. A server
that was replaced, or a database that was dropped, does not have them: going on there would leave
out every document that does not change again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress

from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from databus.client.sinks.contract import Opening
from databus.client.sinks.errors import SinkError
from databus.client.sinks.ready.mongodb.actions import Namespace
from databus.client.sinks.ready.mongodb.positions import Document

_NAMES = "collections"


class Identity:
    """The document of one sink and one physical source. Errors of the library are passed on."""

    def __init__(self, collection: Collection[Document], opening: Opening) -> None:
        self._collection = collection
        # Another one than that of a position: `exactly_once` does not go on where it is absent.
        self._id = f"{opening.sink}/{opening.physical_source}/at-least-once"
        self._where = f"{collection.full_name}, {self._id!r}"

    def prove(self, *, is_first: bool) -> None:
        """Raise SinkError if this is not the MongoDB that the sink left.

        At first, when nothing was written yet, the document is made.
        """
        if is_first:
            self._begin()
            return
        held = self._held()
        missing = held - self._there({name.partition(".")[0] for name in held})
        if missing:
            raise self._dropped(sorted(missing))

    def note(self, written: Iterable[Namespace]) -> None:
        """Note collections that have got documents; raise SinkError without the document.

        Called behind the writes of a flush: MongoDB may have been replaced just before them, and
        the driver connects to any server at its address.
        """
        new = {str(one) for one in written} - self._held()
        if new:
            added = {"$addToSet": {_NAMES: {"$each": sorted(new)}}}
            if not self._collection.update_one({"_id": self._id}, added).matched_count:
                raise self._lost()

    def _begin(self) -> None:
        with suppress(DuplicateKeyError):  # another lane has made it just now
            self._collection.update_one({"_id": self._id}, {"$set": {_NAMES: []}}, upsert=True)

    def _held(self) -> set[str]:
        """Return the names that are noted; raise SinkError without the document."""
        held = self._collection.find_one({"_id": self._id})
        if held is None:
            raise self._lost()
        return set(held[_NAMES])

    def _there(self, databases: Iterable[str]) -> set[str]:
        client = self._collection.database.client
        return {
            f"{name}.{one}" for name in databases for one in client[name].list_collection_names()
        }

    def _lost(self) -> SinkError:
        return SinkError(
            f"{self._where} is not there: MongoDB is another one than the sink left, or has lost "
            "its documents, or the sink ran with exactly_once before. Under another name it begins "
            "anew"
        )

    def _dropped(self, names: list[str]) -> SinkError:
        database, collection = self._collection.database.name, self._collection.name
        return SinkError(
            f"MongoDB has lost {', '.join(names)}, which the sink has filled. Under another name "
            "it begins anew. To go on without the documents, and load them again by `databus sink "
            f'reload`, run db.getSiblingDB("{database}").getCollection("{collection}").updateOne('
            f"{{_id: {json.dumps(self._id)}}}, {{$pullAll: {{{_NAMES}: {json.dumps(names)}}}}}), "
            "then `databus sink retry`"
        )
