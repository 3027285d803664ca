"""The sink `mongodb`: each row is a document, in a collection for each table.

At least once, and harmless: a document has the SCN of its change, and the server itself leaves one
that is newer as it is. With `exactly_once` a flush is one transaction with the position in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from databus.client.sinks.contract import MARKS, Change, ChangeOp, Opening, Position
from databus.client.sinks.ready.templates import Template
from databus.conf.extras import how_to_install

try:
    from pymongo.client_session import ClientSession
    from pymongo.collection import Collection
    from pymongo.errors import BulkWriteError
    from pymongo.write_concern import WriteConcern
except ImportError as error:
    raise ImportError(f"{error}: {how_to_install('mongodb')}") from error

from databus.client.sinks.ready.mongodb.actions import Action, Actions, Namespace, Place
from databus.client.sinks.ready.mongodb.errors import CollisionError, raced, sink_errors
from databus.client.sinks.ready.mongodb.options import MongoOptions, client_of
from databus.client.sinks.ready.mongodb.positions import Document, StoredPosition
from databus.client.sinks.ready.mongodb.values import ValueRules

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
        self._durable: Position | None = None
        self._position: Position | None = None  # behind what was written

    def open(self, opening: Opening) -> Position | None:
        """Take over from an earlier process, and return the position, if MongoDB has it."""
        if not self._options.exactly_once:
            return None
        database, _, name = self._options.positions.partition(".")
        positions = self._client[database].get_collection(
            name, write_concern=WriteConcern("majority", j=True)
        )
        self._stored = StoredPosition(positions, opening)
        self._session = self._client.start_session()
        with sink_errors(self._where):
            self._position = self._durable = self._stored.take_over(opening, self._session)
        return self._durable

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
                    again = raced(error) if left and session is None else []
                    if not again:
                        raise
                    actions = [actions[index] for index in again]

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

    def _collection(self, namespace: Namespace) -> Collection[Document]:
        return self._client[namespace.database][namespace.collection]

    @property
    def _where(self) -> str:
        return self._options.url.partition("?")[0].rstrip("/")
