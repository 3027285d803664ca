"""The list of servers in ZooKeeper: an ephemeral node each, which goes with its process.

Here an ephemeral node is right, where it is not for a lease (see `leases/zookeeper_records.py`):
nothing is written because of it, and a server that is listed a moment too long is only tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kazoo.exceptions import NodeExistsError, NoNodeError

from databus.leases.zookeeper_session import ZookeeperSession
from databus.servers.entry import ServerEntry, decode_entry

log = logging.getLogger(__name__)

_FOLDER = "servers"
# A server that is shut down while ZooKeeper is away must not wait long for it.
_TIMEOUT_S = 2.0


class ZookeeperDirectory:
    """The list of servers in the nodes below `servers`."""

    poll_s = 5.0  # ZooKeeper tells who comes and goes; this is for numbers, and for lost watches

    def __init__(self, url: str, timeout_s: float = _TIMEOUT_S) -> None:
        """Open no connection yet; raise SettingsError for a malformed URL."""
        self._session = ZookeeperSession(url, timeout_s)
        self.shown = self._session.shown

    def put(self, entry: ServerEntry) -> None:
        """Write the node of this process."""
        path = self._session.path(f"{_FOLDER}/{entry.instance}")
        try:
            self._session.call("set", path, entry.encode())
        except NoNodeError:  # the first time, and after a session has ended
            try:
                self._session.call("create", path, entry.encode(), ephemeral=True, makepath=True)
            except NodeExistsError:
                return  # of a request that was answered too late; it is written the next time

    def remove(self, instance: str) -> None:
        """Remove the node of this process."""
        try:
            self._session.call("delete", self._session.path(f"{_FOLDER}/{instance}"))
        except NoNodeError:
            return

    def entries(self, on_change: Callable[..., None] | None = None) -> list[ServerEntry]:
        """Return the servers that are there; `on_change` is called when one comes or goes."""
        call, folder = self._session.call, self._session.path(_FOLDER)
        try:
            names = call("get_children", folder, watch=on_change)
        except NoNodeError:
            if on_change is not None and call("exists", folder, watch=on_change) is not None:
                return self.entries(on_change)  # it was created in between
            return []
        found = (self._entry(f"{folder}/{name}") for name in names)
        return [entry for entry in found if entry is not None]

    def close(self) -> None:
        """End the session, and with it the node."""
        self._session.close()

    def _entry(self, path: str) -> ServerEntry | None:
        try:
            data, _ = self._session.call("get", path)
        except NoNodeError:
            return None  # it has just gone
        try:
            return decode_entry(data)
        except ValueError as error:
            log.warning("%s: the node %s is ignored: %s", self.shown, path, error)
            return None
