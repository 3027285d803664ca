"""What the capturing process and a serving process tell each other, over a socket pair.

A message is a value of one of the classes below, pickled, behind its length in 4 bytes. Both ends
are processes of one program and one user that share the pair since one started the other, and
nothing is kept: so neither versions nor strangers come into it.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from databus.conf.settings import RelaySettings
from databus.registry.version import StoredVersion
from databus.relay.captured_spans import SpansContent
from databus.relay.catalog import Catalog
from databus.relay.monitoring.clients import ClientNews
from databus.relay.sources.epochs import Epoch

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class SourceState:
    """What a serving process cannot know of a physical source by its ring.

    It is valid while the shared revision is `revision`. `is_served`: its windows may be served at
    all. `passed`: see `Span`. Windows that begin before `doubted_until` are checked again.
    """

    revision: int
    is_served: bool
    spans: SpansContent
    epochs: tuple[Epoch, ...] = ()
    passed: tuple[tuple[int, int], ...] = ()
    doubted_until: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a serving process."""

    settings: RelaySettings
    catalog: Catalog
    is_verbose: bool
    number: int
    most_connections: int
    most_of_one: int


@dataclass(frozen=True, slots=True)
class State:
    """The state of all physical sources that are usable, and all versions of schemas, if new."""

    sources: Mapping[str, SourceState]
    versions: tuple[StoredVersion, ...] | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """Accept no connection any more, answer held requests, and end."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a serving process has done since the last report, and what it has open now."""

    open_connections: int = 0
    turned_away: Mapping[str, int] = field(default_factory=dict)
    stream_requests: int = 0
    stream_bytes: int = 0
    held_requests: int = 0
    waiting: Mapping[str, int] = field(default_factory=dict)
    clients: tuple[ClientNews, ...] = ()


def encode(message: object) -> bytes:
    """Return the bytes of a message."""
    data = pickle.dumps(message)
    return _LENGTH.pack(len(data)) + data


def receive(channel: socket.socket) -> object:
    """Return the next message of a socket that blocks; raises EOFError at the end."""
    head = channel.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    return pickle.loads(channel.recv(length, socket.MSG_WAITALL))


async def read_message(reader: asyncio.StreamReader) -> object:
    """Return the next message; raises asyncio.IncompleteReadError at the end."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))
