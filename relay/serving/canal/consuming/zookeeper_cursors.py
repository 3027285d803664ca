"""Keeps cursors in ZooKeeper, so that another relay of the destination goes on with them.

The node of a cursor is a position as Canal's own servers write it, for people and for their tools,
and has the cursor itself beside it (`databus`). A write names the version that was read or written
last: a relay that was frozen, and that another one has followed, cannot move a cursor back.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from kazoo.exceptions import BadVersionError, NoNodeError

from databus.leases.errors import LeaseError
from databus.relay.serving.canal.consuming.cursor_store import CursorTakenError, Key, ids_of
from databus.relay.serving.canal.consuming.cursors import Cursor, unreadable
from databus.relay.serving.canal.consuming.zookeeper_nodes import CanalNodes, destination_path
from databus.schemas.scn import binlog_position

_POSITION = "com.alibaba.otter.canal.protocol.position.LogPosition"


class ZookeeperCursors:
    """Cursors in the nodes `destinations/DESTINATION/CLIENT/cursor`."""

    def __init__(self, nodes: CanalNodes) -> None:
        self._nodes = nodes
        self._versions: dict[Key, int] = {}
        self._written: dict[Key, bytes] = {}

    def read(self, key: Key) -> Cursor | None:
        """Return a cursor; None without one. Raises CanalError, LeaseError."""
        path = _path(key)
        found = self._nodes.get(f"{path}/cursor")
        if found is None:
            self._versions.pop(key, None)
            return None
        data, stat = found
        shown = f"{self._nodes.shown}/{path}/cursor"
        try:
            value = json.loads(data)["databus"]
        except KeyError:
            raise unreadable(
                shown, "a Canal server has written it, whose log is not known"
            ) from None
        except (ValueError, TypeError) as error:
            raise unreadable(shown, repr(error)) from error
        self._versions[key] = int(stat.version)
        return Cursor.from_json(value, *key, shown)

    def client_ids(self, destination: str) -> list[int]:
        """Return the clients that have a node, with a cursor or without; raises LeaseError."""
        return ids_of(self._nodes.children(destination_path(destination)))

    def write(self, cursor: Cursor) -> None:
        """Write a cursor, and its filter; raises CursorTakenError, LeaseError."""
        key = cursor.destination, cursor.client_id
        path, data = _path(key), json.dumps(_node_of(cursor)).encode()
        version = self._versions.get(key)
        if version is None:
            if not self._nodes.create(f"{path}/cursor", data):
                self._take_over(key, data)
            self._versions.setdefault(key, 0)
        else:
            try:
                self._versions[key] = self._nodes.set(f"{path}/cursor", data, version)
            except (BadVersionError, NoNodeError):
                self._take_over(key, data)
        self._written[key] = data
        text = cursor.filter_text.encode()
        if not self._nodes.create(f"{path}/filter", text):
            self._nodes.set(f"{path}/filter", text)

    def remove(self, key: Key) -> None:
        """Remove a client's nodes; raises LeaseError."""
        path = _path(key)
        for name in ("cursor", "filter"):
            self._nodes.delete(f"{path}/{name}")
        with suppress(LeaseError):  # the client's own node may be below it
            self._nodes.delete(path)
        self._versions.pop(key, None)
        self._written.pop(key, None)

    def forget(self, destination: str) -> None:
        """Forget the versions of a destination's cursors: another relay may write them now."""
        for key in [key for key in self._versions if key[0] == destination]:
            self._versions.pop(key, None)
            self._written.pop(key, None)

    def _take_over(self, key: Key, data: bytes) -> None:
        """Find out who has written a cursor: this process, whose answer was lost, or another one.

        Raises CursorTakenError for another one.
        """
        found = self._nodes.get(f"{_path(key)}/cursor")
        if found is None or found[0] not in (data, self._written.get(key)):
            self._versions.pop(key, None)
            raise CursorTakenError(
                f"the cursor of {key[0]}, client {key[1]}, was not written: another relay has "
                "written it, and serves the client now"
            )
        version = int(found[1].version)
        self._versions[key] = version
        if found[0] != data:
            self._versions[key] = self._nodes.set(f"{_path(key)}/cursor", data, version)


def _path(key: Key) -> str:
    destination, client_id = key
    return f"{destination_path(destination)}/{client_id}"


def _node_of(cursor: Cursor) -> dict[str, Any]:
    checkpoints = list(cursor.checkpoints.values())
    scn = max(0, checkpoints[0].window_scn) if checkpoints else 0
    at = binlog_position(scn)
    return {
        "@type": _POSITION,
        "identity": {"slaveId": -1, "sourceAddress": {"address": "", "port": 0}},
        "postion": {
            "included": False,
            "journalName": f"mysql-bin.{at.file_number:06}",
            "position": at.offset,
            "timestamp": 0,
            "gtid": "",
        },
        "databus": cursor.to_json(),
    }
