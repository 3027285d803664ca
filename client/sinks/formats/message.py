"""What a format makes of a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from databus.client.sinks.contract import Change


class Message(NamedTuple):
    """One message. Its key is None where a change has none."""

    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes] = MappingProxyType({})


class AvroPart(NamedTuple):
    """A key or a value in Avro, before the id of its schema in a registry is known."""

    schema: str
    data: bytes


class AvroMessage(NamedTuple):
    """One message in Avro. A value that is None says that the row is gone."""

    key: AvroPart | None
    value: AvroPart | None


# A change and the time at which it is sent, in milliseconds since 1970, to its message; None if
# the format has no message for it.
Format = Callable[[Change, int], Message | AvroMessage | None]
