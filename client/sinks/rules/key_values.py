"""Values of keys, so that those which a database may take for equal are equal here."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable
from typing import Any

from databus.client.sinks.contract import Row


def lane_of_key(source: str, key: Row, lanes: int) -> int:
    """Return the lane of a key: in this process always the same, also for an equal key."""
    return hash((source, *map(folded, key.values()))) % lanes


def folded(value: Any) -> Hashable:
    """Return what is equal, and has one hash, for values that a database may take for equal.

    Most collations compare without case, accents and trailing spaces: 'a' and 'A' are then one key,
    whose changes must stay in one lane.
    """
    if isinstance(value, str):
        plain = unicodedata.normalize("NFKD", value.casefold())
        return "".join(one for one in plain if not unicodedata.combining(one)).rstrip()
    return value if isinstance(value, Hashable) and not isinstance(value, tuple) else repr(value)
