"""Divides the limit of open files between the daemon's own files and its connections.

The number of client connections is bounded, so that they never use up the descriptors that the
daemon needs for the database, the ring, MaxSCN and the registry.
"""

from __future__ import annotations

import logging
import resource
from pathlib import Path

from databus.schemas.errors import SettingsError

log = logging.getLogger(__name__)

LEAST_CONNECTIONS = 8
_MOST = 1 << 20  # a higher limit has no use
_OPEN = Path("/proc/self/fd")
_UNKNOWN_OPEN = 64


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """Return the limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """Return the number of open files."""
    try:
        return sum(1 for _ in _OPEN.iterdir())
    except OSError:
        return _UNKNOWN_OPEN


def room_for_connections(own_files: int) -> int:
    """Return how many connections fit beside the open files and the process's own needs."""
    return limit() - open_files() - own_files


def fit_connections(asked: int, own_files: int) -> int:
    """Return the number of connections to serve at once: `asked`, or as many as fit.

    `own_files` is the number of files that the process may still open for its own work. Raises
    SettingsError if hardly any connection fits.
    """
    room = room_for_connections(own_files)
    if room >= asked:
        return asked
    text = (
        f"this process may have {limit()} files and connections open, of which it needs "
        f"{limit() - room} itself"
    )
    advice = f"allow it {asked + limit() - room} (ulimit -n; LimitNOFILE= in a systemd unit)"
    if room < LEAST_CONNECTIONS:
        raise SettingsError(f"{text}: no room for connections; {advice}")
    log.warning(
        "%s: it serves %d connections at once, not http.max_connections = %d; %s, or set less",
        text,
        room,
        asked,
        advice,
    )
    return room
