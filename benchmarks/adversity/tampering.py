"""The effects of a bad network on the packets of a binlog dump. No I/O.

packet    length (3, little-endian), sequence number (1), payload
payload   00, then an event: timestamp (4), type (1), server (4), length (4), next (4), flags (2) …

Only events of transactions are touched: a lost heartbeat is no loss. Renumbered packets have
sequence numbers as if nothing had been done to them: what a proxy does that speaks the protocol.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

How = Literal[
    "drop", "drop-transaction", "duplicate", "swap", "flip-frame", "flip-head", "flip-body"
]
HOWS: tuple[How, ...] = ("drop", "drop-transaction", "duplicate", "swap")
FLIPS: tuple[How, ...] = ("flip-frame", "flip-head", "flip-body")

_PAYLOAD, _TYPE, _BODY = 4, 9, 24
_BEGIN = frozenset({33, 34, 162})  # the GTID events of both servers
_END = 16  # XID
_ROWS = frozenset({19, 23, 24, 25, 30, 31, 32})
_OF_TRANSACTIONS = _BEGIN | _ROWS | {_END}


def type_of(packet: bytes) -> int:
    """Return the type of the event in a packet; 0 when it holds none."""
    holds_event = len(packet) > _BODY and packet[_PAYLOAD] == 0
    return packet[_TYPE] if holds_event else 0


class Tampering:
    """Tampers once, with the `at`-th event of transactions."""

    def __init__(self, how: How, at: int, draw: random.Random, *, renumbers: bool = False) -> None:
        self.was_done = False
        self._how = how
        self._left = at
        self._draw = draw
        self._renumbers = renumbers
        self._held: bytes | None = None
        self._is_dropping = False
        self._next: int | None = None  # sequence number, once it is ours to count
        self._do: Callable[[bytes], list[bytes]] = {
            "drop": lambda _packet: [],
            "drop-transaction": self._drop_all,
            "duplicate": lambda packet: [packet, packet],
            "swap": self._hold,
        }.get(how, self._flip)

    def __call__(self, packet: bytes) -> list[bytes]:
        """Return what is sent in place of a packet."""
        return self._renumbered(packet[3], self._changed(packet))

    def _changed(self, packet: bytes) -> list[bytes]:
        kind = type_of(packet)
        if self._held is not None:
            held, self._held = self._held, None
            return [packet, held]
        if self._is_dropping:
            self._is_dropping = kind != _END
            return []
        if self.was_done or kind not in _OF_TRANSACTIONS:
            return [packet]
        self._left -= 1
        if self._left > 0 or (self._how == "drop-transaction" and kind not in _BEGIN):
            return [packet]
        self.was_done = True
        return self._do(packet)

    def _renumbered(self, number: int, packets: list[bytes]) -> list[bytes]:
        if not self._renumbers or not self.was_done:
            return packets
        if self._next is None:
            self._next = number
        found = []
        for packet in packets:
            found.append(packet[:3] + bytes([self._next & 0xFF]) + packet[4:])
            self._next += 1
        return found

    def _hold(self, packet: bytes) -> list[bytes]:
        self._held = packet
        return []

    def _drop_all(self, _packet: bytes) -> list[bytes]:
        self._is_dropping = True
        return []

    def _flip(self, packet: bytes) -> list[bytes]:
        begin, end = {"flip-frame": (0, 5), "flip-head": (5, _BODY)}.get(
            self._how, (_BODY, len(packet))
        )
        return [flipped(packet, self._draw.randrange(begin, end), self._draw)]


def flipped(data: bytes, at: int, draw: random.Random) -> bytes:
    """Return bytes with one of them changed."""
    return data[:at] + bytes([data[at] ^ draw.randrange(1, 256)]) + data[at + 1 :]
