"""A private MongoDB: a replica set of one, on loopback. Its data outlive a kill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from databus.demo.processes import free_port
from tests.client.sinks.private_server import PrivateServer

HOST = "127.0.0.1"
SET = "rs"
_ITS_OWN = ("admin", "config", "local")
_IS_INITIATED = 23


class PrivateMongo(PrivateServer):
    """One server and its files; a context manager. `arguments` are more of mongod's."""

    TITLE = "MongoDB"

    def __init__(
        self, program: Path, *arguments: str, is_set: bool = True, query: str = ""
    ) -> None:
        super().__init__()
        self.port = free_port()
        self._program = program
        self._is_set = is_set
        self._query = query
        self._arguments = arguments

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self._url(f"replicaSet={SET}" if self._is_set else "")

    def _set(self) -> dict[str, Any]:
        members = [{"_id": 0, "host": f"{HOST}:{self.port}"}]
        # After a start it would be ten seconds without a primary.
        return {"_id": SET, "members": members, "settings": {"electionTimeoutMillis": 300}}

    def _url(self, option: str) -> str:
        query = "&".join(filter(None, (option, self._query)))
        return f"mongodb://{HOST}:{self.port}/{'?' if query else ''}{query}"

    def client(self, url: str = "", **settings: Any) -> MongoClient[dict[str, Any]]:
        """Return a client, which is to be closed."""
        return MongoClient(url or self.url, tz_aware=True, **settings)

    def clear(self) -> None:
        """Drop all databases but the server's own."""
        with self.client() as client:
            for name in client.list_database_names():
                if name not in _ITS_OWN:
                    client.drop_database(name)

    @property
    def program(self) -> str:
        """The server."""
        return str(self._program)

    def command(self) -> Sequence[str]:
        """Return the command of the server."""
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        given = ["--dbpath", str(data), "--bind_ip", HOST, "--port", str(self.port)]
        given += ["--nounixsocket", "--quiet", "--wiredTigerCacheSizeGB", "0.25"]
        given += ["--setParameter", "diagnosticDataCollectionEnabled=false"]
        given += ["--setParameter", "enableTestCommands=1"]
        if self._is_set:
            given += ["--replSet", SET, "--oplogSize", "64"]
        return ["mongod", *given, *self._arguments]

    def serves(self) -> bool:
        """Whether it can be written to: the first time it becomes a replica set."""
        direct = self._url("directConnection=true")
        with self.client(direct, serverSelectionTimeoutMS=500) as client:
            try:
                if client.admin.command("hello")["isWritablePrimary"]:
                    return True
                client.admin.command("replSetInitiate", self._set())
            except OperationFailure as error:
                if error.code != _IS_INITIATED:
                    raise
            except PyMongoError:
                pass  # it is still starting
        return False
