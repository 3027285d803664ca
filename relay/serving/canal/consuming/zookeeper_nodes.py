"""The nodes of Canal in ZooKeeper, below `/otter/canal`, as stock clients and servers have them.

They are open to everybody, as Canal's are: its clients know no login, and write some of them.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from databus.leases.zookeeper_session import ZookeeperSession

ROOT = "/otter/canal"
_TIMEOUT_S = 4.0


class CanalNodes:
    """A session with ZooKeeper. Blocks; thread-safe. Methods raise LeaseError."""

    def __init__(self, url: str) -> None:
        """`url` is that of a coordinator, of whose servers it is; raises SettingsError."""
        parts = urlsplit(url)
        self._session = ZookeeperSession(f"{parts.scheme}://{parts.netloc}{ROOT}", _TIMEOUT_S)
        self.shown = self._session.shown

    @property
    def session_id(self) -> int | None:
        """The owner of ephemeral nodes that this process makes."""
        return self._session.session_id

    def get(self, name: str) -> tuple[bytes, Any] | None:
        """Return content and state of a node; None if there is none."""
        try:
            data, stat = self._session.call("get", self._session.path(name))
        except NoNodeError:
            return None
        return data, stat

    def children(self, name: str) -> list[str]:
        """Return the names of the nodes below a node; none if it is not there."""
        try:
            found: list[str] = self._session.call("get_children", self._session.path(name))
        except NoNodeError:
            return []
        return found

    def create(self, name: str, data: bytes = b"", *, ephemeral: bool = False) -> bool:
        """Make a node, and those above it; return False if it is there."""
        try:
            self._session.call(
                "create",
                self._session.path(name),
                data,
                acl=OPEN_ACL_UNSAFE,
                ephemeral=ephemeral,
                makepath=True,
            )
        except NodeExistsError:
            return False
        return True

    def set(self, name: str, data: bytes, version: int = -1) -> int:
        """Write a node; return its version. Raises BadVersionError, NoNodeError."""
        found = self._session.call("set", self._session.path(name), data, version=version)
        return int(found.version)

    def delete(self, name: str, version: int = -1) -> None:
        """Remove a node, if it is there; raises BadVersionError."""
        try:
            self._session.call("delete", self._session.path(name), version=version)
        except NoNodeError:
            return

    def close(self) -> None:
        """End the session; its ephemeral nodes go with it."""
        self._session.close()


def destination_path(destination: str) -> str:
    """Return the path of a destination's nodes."""
    return f"destinations/{destination}"
