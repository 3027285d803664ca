"""Chooses the relay's replica id, and detects another replica with the same id.

A server drops the older of two streams with one id, so two relays that share an id would
disconnect each other for ever. The relay looks for its id among the registered replicas
before it requests the log. Its own last connection may still be listed, because a server
notices a broken connection only when it writes to it; so only a lasting clash is an error.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from zlib import crc32

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.schemas.errors import SourceError, SourceStoppedError, SourceUnavailableError

CLASH_GRACE_S = 8.0
_FORGET_S = 60.0
_EVICTIONS = 3
_EVICTION_WINDOW_S = 60.0

_instances = itertools.count()


def replica_id(settings: PhysicalSourceSettings) -> int:
    """Return the configured id, or one derived from machine, process and source.

    Derived ids are at least a billion; smaller ones are left for configuration.
    """
    if settings.server_id:
        return settings.server_id
    who = f"{settings.name}@{socket.gethostname()}/{os.getpid()}/{next(_instances)}"
    return 1 << 30 | crc32(who.encode()) & 0x3FFFFFFF


def replica_host(settings: PhysicalSourceSettings) -> str:
    """Return the host that SHOW REPLICAS shows for all connections of this relay."""
    return f"databus:{settings.name[:20]}:{os.getpid()}@{socket.gethostname()}"[:60]


@dataclass
class ReplicaClashes:
    """Remembers clashes of replica ids across connections. Any thread may call."""

    _seen_s: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    _evicted_at_s: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_listed(self, server_id: int, host: str, replicas: Iterable[tuple[int, str]]) -> bool:
        """Return whether another replica is registered under the id."""
        return any(number == server_id and other != host for number, other in replicas)

    def is_lasting(self, server: str, server_id: int, is_listed: bool, now_s: float) -> bool:
        """Return whether a clash has lasted too long to be an old connection."""
        with self._lock:
            key = (server, server_id)
            first_s, last_s = self._seen_s.pop(key, (now_s, now_s))
            if not is_listed:
                return False
            if now_s - last_s > _FORGET_S:
                first_s = now_s  # a new clash
            self._seen_s[key] = first_s, now_s
            return now_s - first_s >= CLASH_GRACE_S

    def evicted(self, server: str, server_id: int, now_s: float) -> bool:
        """Record a disconnect caused by another replica with this id; return whether it recurs."""
        with self._lock:
            times = self._evicted_at_s.setdefault((server, server_id), [])
            times[:] = [t for t in times if now_s - t < _EVICTION_WINDOW_S] + [now_s]
            return len(times) >= _EVICTIONS


# Shared by all sources of the process, because each reconnect makes a new source object.
CLASHES = ReplicaClashes()


def clash_text(server_id: int) -> str:
    """Return the message about two replicas with one id."""
    return (
        f"another replica uses server_id {server_id}; give this physical source a server_id of "
        "its own"
    )


def check_replica_id(
    settings: PhysicalSourceSettings,
    scn: int,
    server_id: int,
    server: str,
    catalog: ServerCatalog,
    now_s: float,
) -> None:
    """Raise SourceError if another replica has the id: SourceStoppedError once that lasts."""
    is_listed = CLASHES.is_listed(server_id, replica_host(settings), catalog.replicas())
    if CLASHES.is_lasting(server, server_id, is_listed, now_s):
        raise SourceStoppedError(settings.name, scn, clash_text(server_id))
    # It may be the relay's own last connection, which the server has not noticed to be broken.
    if is_listed:
        raise SourceUnavailableError(f"source {settings.name}: {clash_text(server_id)}")


def evicted(source: str, scn: int, server_id: int, server: str, now_s: float) -> SourceError:
    """Return the error of a stream that ended because another replica has the id."""
    if CLASHES.evicted(server, server_id, now_s):
        return SourceStoppedError(source, scn, clash_text(server_id))
    return SourceUnavailableError(f"source {source}: {clash_text(server_id)}")
