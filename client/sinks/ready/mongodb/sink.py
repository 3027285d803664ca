"""The sink `mongodb`: each row is a document, in a collection for each table.

At least once, and harmless: a document has the SCN of its change, and the server itself leaves one
that is newer as it is. Without a position in MongoDB a document of the sink tells that it is the
MongoDB that was left. With `exactly_once` a flush is one transaction with the position in it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from databus.client.sinks.contract import MARKS, Change, ChangeOp, Opening, Position
from databus.client.sinks.ready.templates import Template
from databus.conf.extras import how_to_install

try:
    from pymongo import ReadPreference
    from pymongo.client_session import ClientSession
    from pymongo.collection import Collection
    from pymongo.errors import BulkWriteError
    from pymongo.write_concern import WriteConcern
except ImportError as error:
    raise ImportError(f"{error}: {how_to_install('mongodb')}") from error

from databus.client.sinks.ready.mongodb.actions import Action, Actions, Namespace, Place
from databus.client.sinks.ready.mongodb.collisions import Failed, Repeats
from databus.client.sinks.ready.mongodb.errors import CollisionError, is_race, sink_errors
from databus.client.sinks.ready.mongodb.identity import Identity
from databus.client.sinks.ready.mongodb.options import MongoOptions, client_of
from databus.client.sinks.ready.mongodb.positions import Document, StoredPosition
from databus.client.sinks.ready.mongodb.values import ValueRules

log = logging.getLogger(__name__)

_SEND_BYTES = 16 << 20  # of actions, which are sent earlier then
_TRIES = 10  # of an insert that another process makes at the same time


class MongoSink:
    """Puts and deletes documents; at least once, or exactly once."""

    has_position_per_source = True
    Options = MongoOptions

    def __init__(self, options: MongoOptions) -> None:
        """Raises SettingsError for the password file, and for those that the URL names."""
        self._options = options
        self._made = Actions(
            Template(options.database),
            Template(options.collection),
            Template(options.id) if options.id else None,
            options.scn_field,
            ValueRules(options.dates, options.decimals, options.json_columns),
        )
        self._client = client_of(options)
        self._actions: dict[Place, Action] = {}  # the last of each document
        self._bytes = 0
        self._stored: StoredPosition | None = None  # with exactly_once
        self._session: ClientSession | None = None  # the same
        self._identity: Identity | None = None  # without it
        self._repeats: Repeats | None = None  # the same
        self._written: set[Namespace] = set()  # have got documents since the last flush
        self._has_sent = False  # anything since then
        self._durable: Position | None = None
        self._position: Position | None = None  # behind what was written

    def open(self, opening: Opening) -> Position | None:
        """Take over from an earlier process, and return the position, if MongoDB has it.

        Without one it is made sure that this is the MongoDB that the sink left.
        """
        database, _, name = self._options.positions.partition(".")
        positions = self._client[database].get_collection(
            name,
            write_concern=WriteConcern("majority", j=True),
            read_preference=ReadPreference.PRIMARY,
        )
        if not self._options.exactly_once:
            identity = Identity(positions, opening)
            with sink_errors(f"{self._where}/{self._options.positions}"):
                identity.prove(is_first=opening.is_first)
            self._identity, self._repeats = identity, Repeats(opening, self._options.scn_field)
            return None
        self._stored = StoredPosition(positions, opening)
        self._session = self._client.start_session()
        with sink_errors(self._where):
            self._position = self._durable = self._stored.take_over(opening, self._session)
        return self._durable

    def unique_keys(self, source: str) -> Sequence[Sequence[str]]:
        """Return the fields of the unique indexes for rows of a source; raise SinkError.

        Of a collection whose name has columns of the row nothing is known.
        """
        namespace = self._made.namespace_of(source)
        if namespace is None:
            return ()
        with sink_errors(f"{self._where}/{namespace}"):
            indexes = self._collection(namespace).list_indexes()
            return tuple(tuple(one["key"]) for one in indexes if one.get("unique"))

    def write(self, changes: Sequence[Change]) -> None:
        """Collect actions; raise SinkRefusedError for a row of which there are none."""
        for change in changes:
            if change.op is ChangeOp.TRUNCATE:
                self._empty(change)
            elif change.op not in MARKS:
                for place, action in self._made.of(change):
                    self._actions[place] = action
                    self._bytes += action.size
            self._position = change.position or self._position
            is_whole = self._stored is None or change.position is not None
            if is_whole and self._bytes > _SEND_BYTES:
                self._send()

    def flush(self) -> Position | None:
        """Send what was collected, and store the position with it if it is kept there."""
        self._send()
        if self._identity is not None and self._has_sent:
            with sink_errors(f"{self._where}/{self._options.positions}"):
                self._identity.note(self._written)
            self._written, self._has_sent = set(), False
        return self._durable

    def close(self) -> None:
        """Disconnect; what was not flushed is dropped."""
        if self._session is not None:
            self._session.end_session()
        self._client.close()

    def _send(self) -> None:
        try:
            self._write_all(makes_room=False)
        except CollisionError:
            self._write_all(makes_room=True)
        puts = (at for at, one in self._actions.items() if one.document is not None)
        self._written.update(at.namespace for at in puts)
        self._has_sent = self._has_sent or bool(self._actions)
        self._actions, self._bytes = {}, 0

    def _write_all(self, *, makes_room: bool) -> None:
        if self._stored is None:
            self._put_all(None, makes_room)
        elif self._actions or self._position != self._durable:
            session = self._session
            assert session is not None
            safe = WriteConcern("majority", j=True)
            with sink_errors(self._where), session.start_transaction(write_concern=safe):
                self._stored.move(self._position, session)
                self._put_all(session, makes_room)
            self._stored.moved(self._position)
            self._durable = self._position

    def _put_all(self, session: ClientSession | None, makes_room: bool) -> None:
        """Send the actions: deletes first, which make room in unique indexes of the user's own.

        Where that is not enough, as two rows swap a value, all documents are deleted first.
        """
        actions = self._actions.items()
        deletes = [
            (place, one._replace(document=None))
            for place, one in actions
            if makes_room or one.document is None
        ]
        puts = [(place, one) for place, one in actions if one.document is not None]
        for some in (deletes, puts):
            found: defaultdict[Namespace, list[Action]] = defaultdict(list)
            for place, action in some:
                found[place.namespace].append(action)
            for namespace, of_it in found.items():
                self._put(namespace, of_it, session)

    def _put(
        self, namespace: Namespace, actions: list[Action], session: ClientSession | None
    ) -> None:
        """Send actions of a collection: the library makes requests of at most 48 MB of them."""
        collection = self._collection(namespace)
        for left in reversed(range(_TRIES)):
            changes = [one.change for one in actions]
            operations = [self._made.operation(one) for one in actions]
            with sink_errors(f"{self._where}/{namespace}", changes):
                try:
                    collection.bulk_write(operations, ordered=False, session=session)
                    return
                except BulkWriteError as error:
                    # A transaction has ended with its first error.
                    again = self._again(namespace, actions, error) if left and not session else []
                    if not again:
                        raise
                    actions = again

    def _again(
        self, namespace: Namespace, actions: Sequence[Action], error: BulkWriteError
    ) -> list[Action]:
        """Return what is to be done instead of the actions that failed; empty if any was refused.

        An `_id` that another process inserted just then is tried again. A change that is out of
        date only deletes.
        """
        found: list[Action] = []
        own = self._scns(namespace)
        for failed in error.details["writeErrors"]:
            action = actions[failed["index"]]
            if is_race(failed):
                found.append(action)
            elif self._is_outdated(namespace, action, failed, own):
                log.info(
                    "%s: the change of %s with SCN %d comes again, and a newer document of another "
                    "row has its unique value: %s is put with its next change",
                    self._where, action.id, action.change.scn, action.id,
                )  # fmt: skip
                found.append(action._replace(document=None))
            else:
                return []
        return [] if error.details["writeConcernErrors"] else found

    def _is_outdated(
        self, namespace: Namespace, action: Action, failed: Failed, own: dict[bytes, int]
    ) -> bool:
        """Return whether a unique index refuses a change that was written before."""
        # Nothing orders rows of several sources, so no lane says which of them comes first.
        if self._repeats is None or not self._made.has_collection_per_source:
            return False
        collection = self._collection(namespace)
        return self._repeats.is_outdated(collection, action, failed, own)

    def _scns(self, namespace: Namespace) -> dict[bytes, int]:
        """Return the SCN of each document of a collection that is written now, by its place."""
        return {
            place.id: one.change.scn
            for place, one in self._actions.items()
            if place.namespace == namespace
        }

    def _empty(self, change: Change) -> None:
        """Delete the documents of a source that are not newer than the TRUNCATE.

        Not in a transaction, whose time is limited. A crash on the way leaves the position before
        it, and all of it is done again.
        """
        namespace = self._made.namespace_of_source(change)
        self._send()
        with sink_errors(f"{self._where}/{namespace}"):
            older = {self._options.scn_field: {"$lte": change.scn}}
            self._collection(namespace).delete_many(older)
        self._has_sent = True

    def _collection(self, namespace: Namespace) -> Collection[Document]:
        return self._client[namespace.database][namespace.collection]

    @property
    def _where(self) -> str:
        return self._options.url.partition("?")[0].rstrip("/")
