"""The replica id that the relay shows the server, and two of one id noticed.

A server drops the older of two streams with one id, so two relays that share
an id would throw each other out for ever. The relay looks for its id among the
registered replicas before it asks for the log. Its own last connection may
still be listed: a server notices a broken one only as it writes to it, so a
clash must last before it is believed.
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

CLASH_GRACE_S = 8.0
_FORGET_S = 60.0
_EVICTIONS = 3
_EVICTION_WINDOW_S = 60.0

_instances = itertools.count()


def replica_id(settings: PhysicalSourceSettings) -> int:
    """Return the configured id, or one of this machine, process and source.

    Ids below a billion are left to people.
    """
    if settings.server_id:
        return settings.server_id
    who = f"{settings.name}@{socket.gethostname()}/{os.getpid()}/{next(_instances)}"
    return 1 << 30 | crc32(who.encode()) & 0x3FFFFFFF


def replica_host(settings: PhysicalSourceSettings) -> str:
    """Return what SHOW REPLICAS shows for this relay; the same for each of its connections."""
    return f"databus:{settings.name[:20]}:{os.getpid()}@{socket.gethostname()}"[:60]


@dataclass
class ReplicaClashes:
    """What is remembered of one id, across connections. Any thread may call."""

    _seen_s: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    _evicted_at_s: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_listed(self, server_id: int, host: str, replicas: Iterable[tuple[int, str]]) -> bool:
        """Say whether somebody else is registered under the id."""
        return any(number == server_id and other != host for number, other in replicas)

    def is_lasting(self, server: str, server_id: int, is_listed: bool, now_s: float) -> bool:
        """Say whether a clash has been seen for too long to be an old connection."""
        with self._lock:
            key = (server, server_id)
            first_s, last_s = self._seen_s.pop(key, (now_s, now_s))
            if not is_listed:
                return False
            if now_s - last_s > _FORGET_S:
                first_s = now_s  # another story
            self._seen_s[key] = first_s, now_s
            return now_s - first_s >= CLASH_GRACE_S

    def evicted(self, server: str, server_id: int, now_s: float) -> bool:
        """Note that the server dropped us for another of this id; say whether it keeps doing so."""
        with self._lock:
            times = self._evicted_at_s.setdefault((server, server_id), [])
            times[:] = [t for t in times if now_s - t < _EVICTION_WINDOW_S] + [now_s]
            return len(times) >= _EVICTIONS


# Shared by all sources of the process: each reconnect makes a new source object.
CLASHES = ReplicaClashes()


def clash_text(server_id: int) -> str:
    """Say what to do about two replicas of one id."""
    return (
        f"another replica uses server_id {server_id}; give this physical source a server_id of "
        "its own"
    )
