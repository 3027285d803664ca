"""What a format makes of a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from databus.client.sinks.contract import Change


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Its key is None where a change has none; then so has the message."""

    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes] = field(default_factory=dict)


# A change and the time at which it is sent, in milliseconds since 1970, to its message; None if
# the format has no message for it.
Format = Callable[[Change, int], Message | None]
