"""How many files and connections this process may have open, and how many of them connections.

What is open to strangers is bounded here, so that the rest (the database, the
ring, MaxSCN, the registry) is never refused a descriptor because of them.
"""

from __future__ import annotations

import logging
import resource
from pathlib import Path

from databus.schemas.errors import SettingsError

log = logging.getLogger(__name__)

LEAST_CONNECTIONS = 8
_MOST = 1 << 20  # a limit above this serves nobody
_OPEN = Path("/proc/self/fd")
_UNKNOWN_OPEN = 64


def raise_limit() -> None:
    """Raise the limit of open files from the shell's to the most that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """Return how many files this process has open."""
    try:
        return sum(1 for _ in _OPEN.iterdir())
    except OSError:
        return _UNKNOWN_OPEN


def room_for_connections(own_files: int) -> int:
    """Return how many connections fit beside what is open and what the process needs itself."""
    return limit() - open_files() - own_files


def fit_connections(asked: int, own_files: int) -> int:
    """Return how many connections may be served at once: those asked for, or as many as fit.

    `own_files` is how many files the process may yet open for its own work.
    Raises SettingsError when hardly any fit.
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
