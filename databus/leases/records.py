"""Small records by name, each replaced as a whole by whoever read it last.

A store needs nothing but this to keep leases, and positions that are written under them. The
three kinds of store are `file_records`, `sql_records` and `zookeeper_records`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple, Protocol

from databus.leases.errors import LeaseUnavailableError

_UNREADABLE = re.compile(r"[^A-Za-z0-9_.-]+")
_READABLE_CHARS = 60
_TRIES = 20  # more than contenders that write between a read and a write of ours, one after another


class Stored(NamedTuple):
    """A record as it was read; `version` differs between any two writes of a record."""

    data: bytes
    version: object


class Records(Protocol):
    """A store of records. Thread-safe.

    Names are of letters, digits and `-_.`, with `/` between folders. All methods raise LeaseError,
    and LeaseUnavailableError after a few seconds if the store cannot be reached.
    """

    shown: str
    """The store's URL without a password, for errors."""
    poll_s: float
    """How often it is worth looking whether a record has changed."""

    def read(self, name: str, on_change: Callable[..., None] | None = None) -> Stored | None:
        """Return a record, None if there is none.

        `on_change` is called, with any arguments, at the record's next change by a store that can
        tell; it may be called without a change, or not at all.
        """
        ...

    def replace(self, name: str, data: bytes, before: Stored | None) -> bool:
        """Write a record durably if it still is what was read; return whether it was written.

        After an error it may have been written all the same.
        """
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of the records that lie in a folder, in no order."""
        ...

    def close(self) -> None:
        """Close connections."""


def change(records: Records, name: str, changed: Callable[[bytes | None], bytes]) -> None:
    """Replace a record by what `changed` makes of it, which may raise to refuse.

    `changed` is called again whenever somebody else has written in between.
    """
    for _ in range(_TRIES):
        stored = records.read(name)
        data = changed(None if stored is None else stored.data)
        if records.replace(name, data, stored):
            return
    raise LeaseUnavailableError(records.shown, f"record {name} changes all the time")


def record_name(readable: str, identity: str) -> str:
    """Return a name that no other identity has: a part for people, and a digest.

    It is the same in every kind of store, however long the identity and whatever its characters.
    """
    prefix = _UNREADABLE.sub("_", readable)[:_READABLE_CHARS].strip(".")
    return f"{prefix}-{sha256(identity.encode()).hexdigest()}"
