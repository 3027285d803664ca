"""The position of a sink, a document of its own: it moves in the transaction that writes the rows.

It names the process that writes (`owner`), the one before it (`replaced`), and the `session` of its
transactions: MongoDB keeps the transaction of a process that was killed for a minute, unless
somebody ends it.
"""

from __future__ import annotations

import os
import socket
from typing import Any
from uuid import uuid4

from pymongo import ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from databus.client.sinks.contract import Opening, Position
from databus.client.sinks.errors import SinkError, SinkUnavailableError

Document = dict[str, Any]

# As it is shown to whoever is replaced by it.
_PROCESS = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex}"


class StoredPosition:
    """The position of one sink and one physical source. Errors of the library are passed on."""

    def __init__(self, collection: Collection[Document], opening: Opening) -> None:
        self._collection = collection
        self._id = f"{opening.sink}/{opening.physical_source}"
        self._where = f"{collection.full_name}, {self._id!r}"
        self._process = _PROCESS
        self._stored: str | None = None

    def take_over(self, opening: Opening, session: ClientSession) -> Position | None:
        """Become the owner, and return the position; raise SinkError.

        `session` is that of the transactions to come.
        """
        held = self._collection.find_one({"_id": self._id})
        if held is None and not opening.is_first:
            raise self._lost()
        owner: str | None = held["owner"] if held else None
        if held is not None:
            is_back = owner != self._process and held["replaced"] == self._process
            if is_back and not opening.takes_over:
                raise self._replaced_by(owner)
            self._collection.database.client.admin.command("killSessions", [held["session"]])
        self._stored = self._own(owner, session)["position"]
        return None if self._stored is None else Position.from_json(self._stored)

    def move(self, position: Position | None, session: ClientSession) -> None:
        """Store a position in a transaction; raise SinkError if another process has done so."""
        text = None if position is None else position.to_json()
        mine = {"_id": self._id, "owner": self._process, "position": self._stored}
        # Also where it stays: so no other process can take over before the commit.
        counted = {"$set": {"position": text}, "$inc": {"flushes": 1}}
        if self._collection.update_one(mine, counted, session=session).matched_count:
            return
        held = self._collection.find_one({"_id": self._id}, session=session)
        if held is None:
            raise self._lost()
        if held["owner"] != self._process:
            raise self._replaced_by(held["owner"])
        raise SinkUnavailableError(f"{self._where}: MongoDB has another position than before")

    def moved(self, position: Position | None) -> None:
        """Note that the transaction was committed."""
        self._stored = None if position is None else position.to_json()

    def _own(self, owner: str | None, session: ClientSession) -> Document:
        """Write that this process is the owner, unless another one than `owner` is by now."""
        is_new = owner is None
        mine: Document = {"owner": self._process, "session": dict(session.session_id)}
        change: Document = {"$set": mine}
        if owner != self._process:
            mine["replaced"] = owner
        if is_new:
            change["$setOnInsert"] = {"position": None}
        try:
            held = self._collection.find_one_and_update(
                {"_id": self._id, "owner": owner},
                change,
                upsert=is_new,
                return_document=ReturnDocument.AFTER,
            )
        except DuplicateKeyError:
            held = None
        if held is None:
            raise SinkUnavailableError(f"{self._where}: another process opens it just now")
        return held

    def _replaced_by(self, owner: object) -> SinkError:
        return SinkError(
            f"{self._where}: another process writes it: {owner}: stop one of them, or give one "
            "another name; `databus sink retry` has this one go on, and the other one stops"
        )

    def _lost(self) -> SinkError:
        return SinkError(
            f"{self._where} is not there: MongoDB has lost the position, and maybe documents with "
            "it, or the sink ran without exactly_once before. Under another name it begins anew"
        )
