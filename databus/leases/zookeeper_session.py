"""A session with ZooKeeper; the home of kazoo."""

from __future__ import annotations

import logging
import threading
import time
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
from databus.schemas.errors import SettingsError

# A server that is away is told of by whoever asks it, once and with its address.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)
_ROOT = "/databus"
_SESSION_S = 10.0
_FORGET_AFTER_S = 2 * _SESSION_S
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


class ZookeeperSession:
    """A session: `zookeeper://[user:password@]host:port[,host:port…][/path]`. Thread-safe.

    The path is `/databus` without one. With a user, the session authenticates by digest, and new
    nodes are open to that user only.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
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
            logger=_kazoo_log,
            **_access(login),
        )
        self._timeout_s = timeout_s
        self._lock, self._has_served = threading.Lock(), False
        self._served_at_s = time.monotonic()
        self._live: threading.Event | None = None

    @property
    def session_id(self) -> int | None:
        """The id of the session now, which owns its ephemeral nodes; None before there is one."""
        known = self._client.client_id
        return None if known is None else int(known[0])

    def path(self, name: str) -> str:
        """Return the path of a node."""
        return f"{self._root}/{name}"

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client and wait for a limited time: a lease runs out meanwhile.

        Raises BadVersionError, NodeExistsError, NoNodeError, and LeaseError for all else.
        """
        try:
            # Not queued while there is no connection: it would be done at some time later.
            if not self._connection().wait(self._timeout_s):
                if self._client.client_state == KeeperState.AUTH_FAILED:
                    raise AuthFailedError("the login failed")
                self._forget_if_long()
                raise ConnectionLoss("no server answers, or none that has what was read before")
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
            raise LeaseError(f"{self.shown} cannot be used: {error!r}") from error
        self._has_served, self._served_at_s = True, time.monotonic()
        return answer

    def _forget_if_long(self) -> None:
        """Take a server that has less than was read before: one whose data were lost, for example.

        Others are refused by their servers, for ever. The session has long expired by then, and
        what is written is compared with what was read.
        """
        if time.monotonic() - self._served_at_s > _FORGET_AFTER_S:
            self._client.last_zxid = 0

    def close(self) -> None:
        """End the session."""
        with self._lock:
            self._client.stop()
            self._client.close()

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
