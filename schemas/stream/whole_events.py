"""Whether bytes are whole version 2 events, both CRCs of each right: before they are sent on.

The rules are `event_v2.decode`'s. Where `row_cutter` was built it goes ahead, and what
it stops at is decoded here, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable

from databus.schemas.errors import ProtocolError
from databus.schemas.event.v2 import decode

pass_whole: Callable[[bytes, int], tuple[int, int]] | None
try:
    from databus.schemas.stream import _row_cutter as row_cutter
except ImportError:  # not built
    pass_whole = None
else:
    pass_whole = row_cutter.pass_whole


def count_events(data: object) -> int:
    """Return how many events these bytes are; raises ProtocolError unless each is whole."""
    if not isinstance(data, bytes):
        raise ProtocolError(f"{type(data).__name__} where an event's bytes should be")
    at = count = 0
    while True:
        if pass_whole is not None:
            at, passed = pass_whole(data, at)
            count += passed
        if at == len(data):
            return count
        _, at = decode(data, at)
        count += 1


def check_events(data: object, count: int) -> None:
    """Raise ProtocolError unless these bytes are so many whole events."""
    found = count_events(data)
    if found != count:
        raise ProtocolError(f"{found} events where {count} should be")
