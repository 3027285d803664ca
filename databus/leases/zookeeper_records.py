"""Records in nodes of ZooKeeper.

A lease is a lasting node that its owner writes again and again, not an ephemeral one, for four
reasons. An ephemeral node lives as long as a session, and kazoo's own thread keeps the session
alive, whether or not the owner's thread still does anything. One session has one time-out for all
its leases, and the server limits it to 2 to 20 of its ticks. A session that ends takes its nodes
with it, and with them the terms, which must last. And the rule of the other stores, by which a
contender measures how long a record has not changed, needs no clock of the server. So an owner
that is stopped, or cut off, is followed by another one after its `ttl_s`, as with the other
stores; the session only carries requests, and may be lost at any time.

A write names the version that was read: a stale answer of one server cannot lead to a write that
overlooks a newer term.
"""

from __future__ import annotations

from collections.abc import Callable

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from databus.leases.records import Stored
from databus.leases.zookeeper_session import ZookeeperSession

_TIMEOUT_S = 5.0


class ZookeeperRecords:
    """Records in nodes below the path of a URL; see `ZookeeperSession`."""

    poll_s = 1.0  # ZooKeeper tells of a change; this is for what is told to nobody

    def __init__(self, url: str, timeout_s: float = _TIMEOUT_S) -> None:
        """Open no connection yet; raise SettingsError for a malformed URL.

        A request is given up after `timeout_s`.
        """
        self._session = ZookeeperSession(url, timeout_s)
        self.shown = self._session.shown

    def read(self, name: str, on_change: Callable[..., None] | None = None) -> Stored | None:
        """Return a record, None if there is none; `on_change` is called at its next change."""
        call, path = self._session.call, self._session.path(name)
        try:
            data, stat = call("get", path, watch=on_change)
        except NoNodeError:
            if on_change is not None and call("exists", path, watch=on_change) is not None:
                return self.read(name, on_change)  # it was created in between
            return None
        return Stored(data, stat.version)

    def replace(self, name: str, data: bytes, before: Stored | None) -> bool:
        """Write a record if it still is what was read; return whether it was written."""
        call, path = self._session.call, self._session.path(name)
        try:
            if before is None:
                call("create", path, data, makepath=True)
            else:
                call("set", path, data, version=before.version)
        except (BadVersionError, NodeExistsError, NoNodeError):
            # The next read must not be of a server that has not seen that write yet.
            call("sync", path)
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """Return the names of the records that lie in a folder."""
        try:
            found = self._session.call("get_children", self._session.path(folder))
        except NoNodeError:
            return []
        return [f"{folder}/{name}" for name in found]

    def close(self) -> None:
        """End the session."""
        self._session.close()
