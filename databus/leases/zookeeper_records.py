"""Records in nodes of ZooKeeper; the home of kazoo.

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

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from databus.leases.errors import LeaseError, LeaseUnavailableError, refusal
from databus.leases.records import Stored
from databus.schemas.errors import SettingsError

_ROOT = "/databus"
_TIMEOUT_S = 5.0
_SESSION_S = 10.0
_REFUSED = (AuthFailedError, NoAuthError)
_ADVICE = (
    "give the user and password in the URL that made its nodes, or another path; `getAcl` of "
    "ZooKeeper's client shows whose a node is"
)
_UNAVAILABLE = (
    ConnectionDropped,
    ConnectionLoss,
    KazooTimeoutError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)


class ZookeeperRecords:
    """Records in nodes: `zookeeper://[user:password@]host:port[,host:port…][/path]`.

    The path is `/databus` without one. With a user, the session authenticates by digest, and new
    nodes are open to that user only.
    """

    poll_s = 1.0  # ZooKeeper tells of a change; this is for what is told to nobody

    def __init__(self, url: str, timeout_s: float = _TIMEOUT_S) -> None:
        """Open no connection yet; raise SettingsError for a malformed URL.

        A request is given up after `timeout_s`.
        """
        parts = urlsplit(url)
        login, _, hosts = parts.netloc.rpartition("@")
        if not hosts or parts.query or parts.fragment:
            raise SettingsError(f"{url.split('@')[-1]!r}: give zookeeper://host:port,…/path")
        self.shown = f"zookeeper://{hosts}{parts.path}"
        self._root = parts.path.rstrip("/") or _ROOT
        self._client = KazooClient(
            hosts,
            timeout=_SESSION_S,
            # The delay grows; by default up to a minute, in which every lease would run out.
            connection_retry=KazooRetry(max_tries=-1, max_delay=1.0),
            **_access(login),
        )
        self._timeout_s = timeout_s
        self._lock, self._has_served = threading.Lock(), False
        self._live: threading.Event | None = None

    def read(self, name: str, on_change: Callable[..., None] | None = None) -> Stored | None:
        """Return a record, None if there is none; `on_change` is called at its next change."""
        path = self._path(name)
        try:
            data, stat = self._call("get", path, watch=on_change)
        except NoNodeError:
            if on_change is not None and self._call("exists", path, watch=on_change) is not None:
                return self.read(name, on_change)  # it was created in between
            return None
        return Stored(data, stat.version)

    def replace(self, name: str, data: bytes, before: Stored | None) -> bool:
        """Write a record if it still is what was read; return whether it was written."""
        path = self._path(name)
        try:
            if before is None:
                self._call("create", path, data, makepath=True)
            else:
                self._call("set", path, data, version=before.version)
        except (BadVersionError, NodeExistsError, NoNodeError):
            # The next read must not be of a server that has not seen that write yet.
            self._call("sync", path)
            return False
        return True

    def close(self) -> None:
        """End the session."""
        with self._lock:
            self._client.stop()
            self._client.close()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client and wait for a limited time: a lease runs out meanwhile."""
        try:
            # Not queued while there is no connection: it would be done at some time later.
            if not self._connection().wait(self._timeout_s):
                if self._client.client_state == KeeperState.AUTH_FAILED:
                    raise AuthFailedError("the login failed")
                raise ConnectionLoss("no server answers")
            request = getattr(self._client, f"{method}_async")(*args, **options)
            answer = request.get(timeout=self._timeout_s)
        except (BadVersionError, NodeExistsError, NoNodeError):
            self._has_served = True
            raise
        except _REFUSED as error:
            served = self._has_served
            raise refusal(self.shown, repr(error), _ADVICE, has_served=served) from error
        except _UNAVAILABLE as error:
            raise LeaseUnavailableError(self.shown, repr(error)) from error
        except KazooException as error:
            raise LeaseError(f"{self.shown} cannot keep leases: {error!r}") from error
        self._has_served = True
        return answer

    def _connection(self) -> threading.Event:
        """Return the event that is set while there is a connection; begin to connect, for ever."""
        with self._lock:
            if self._live is None:
                self._live = self._client.start_async()
            return self._live


def _access(login: str) -> dict[str, Any]:
    if not login:
        return {}
    user, _, password = (unquote(part) for part in login.partition(":"))
    acl = make_digest_acl(user, password, all=True)
    return {"auth_data": [("digest", f"{user}:{password}")], "default_acl": [acl]}
