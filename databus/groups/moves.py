"""Which partitions of a group went from one process to another within the last day, for people.

    moves/NAME   {"group": "billing", "generation": 0, "since": 1795834966.1, "total": 17,
                  "owners": {"host-a:4711:9f31": "0-15", …},
                  "moves": [{"at": 1795834999.2, "generation": 0, "from": "host-b:17:77aa",
                             "to": "host-a:4711:9f31", "partitions": "3,7-9"}, …], "crc": …}

A process that takes partitions writes them here a second later, many at a time: the hand-over waits
for nothing, and a process that dies within that second is left out. `owners` is who took each one
last, so that the next one knows from whom. Times are those of the processes' clocks. Moves of the
last day are kept, as many as fit; all that are later than `since` are there. Nothing is decided by
this record, so one that is damaged begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from databus.leases.checked_json import decode_checked, encode_checked
from databus.leases.records import Records, change, record_name

DAY_S = 86_400.0
MOST_BYTES = 32 << 10
_MOST_CHARS = 200  # of a process's name


@dataclass(frozen=True, slots=True)
class Move:
    """Partitions that one process took after another; `former` is "" if nobody had them before."""

    at_s: float
    generation: int
    former: str
    owner: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupMoves:
    """The moves of a group later than `since_s`; `total` counts all partitions that ever moved."""

    group: str
    since_s: float
    generation: int = 0
    total: int = 0
    owners: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Which partitions each process took last."""
    moves: tuple[Move, ...] = ()

    def taken(
        self, generation: int, process: str, partitions: Collection[int], at_s: float
    ) -> GroupMoves:
        """Return the record after a process took partitions."""
        process, new = process[:_MOST_CHARS], set(partitions)
        # The partitions of another generation have other rows.
        before = self.owners if generation == self.generation else {}
        moved = {one: numbers & new for one, numbers in before.items() if one != process}
        first = new.difference(*before.values())
        found = [(former, numbers) for former, numbers in (*moved.items(), ("", first)) if numbers]
        owners = {one: numbers - new for one, numbers in before.items() if one != process}
        owners[process] = before.get(process, frozenset()) | new
        added = (
            Move(at_s, generation, former, process, tuple(sorted(numbers)))
            for former, numbers in found
        )
        made = replace(
            self,
            generation=generation,
            total=self.total + sum(map(len, moved.values())),
            owners={one: numbers for one, numbers in owners.items() if numbers},
            moves=(*self.moves, *added),
        )
        return made._of_the_last_day(at_s)

    def within(self, since_s: float) -> tuple[Move, ...]:
        """Return the moves after a moment."""
        return tuple(one for one in self.moves if one.at_s > since_s)

    def encode(self) -> bytes:
        """Return the record, without the oldest moves if there are too many."""
        kept = self
        while len(data := kept._encoded()) > MOST_BYTES and kept.moves:
            count = 1 + len(kept.moves) // 8
            since_s = max(self.since_s, *(one.at_s for one in kept.moves[:count]))
            kept = replace(kept, moves=kept.moves[count:], since_s=since_s)
        return data

    @classmethod
    def decode(cls, data: bytes, group: str) -> GroupMoves:
        """Read a record; raise ValueError if it is damaged, or that of another group."""
        values = decode_checked(data)
        try:
            if values["group"] != group:
                raise ValueError(f"it is the record of {values['group']!r}")
            return cls(
                group,
                float(values["since"]),
                int(values["generation"]),
                int(values["total"]),
                {str(one): frozenset(_numbers(text)) for one, text in values["owners"].items()},
                tuple(map(_move, values["moves"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no record of moves: {error!r}") from error

    def _of_the_last_day(self, now_s: float) -> GroupMoves:
        moves = self.within(now_s - DAY_S)
        return replace(self, moves=moves, since_s=max(self.since_s, now_s - DAY_S))

    def _encoded(self) -> bytes:
        return encode_checked(
            {
                "group": self.group,
                "generation": self.generation,
                "since": self.since_s,
                "total": self.total,
                "owners": {one: ranges_text(numbers) for one, numbers in self.owners.items()},
                "moves": [
                    {
                        "at": one.at_s,
                        "generation": one.generation,
                        "from": one.former,
                        "to": one.owner,
                        "partitions": ranges_text(one.partitions),
                    }
                    for one in self.moves
                ],
            }
        )


def note_taken(
    records: Records, group: str, generation: int, process: str, partitions: Collection[int]
) -> None:
    """Add partitions that a process has taken. Raises LeaseError."""
    at_s = time.time()

    def noted(data: bytes | None) -> bytes:
        known = _decoded(data, group) or GroupMoves(group, at_s)
        return known.taken(generation, process, partitions, at_s).encode()

    change(records, _record(group), noted)


def read_moves(records: Records, group: str) -> GroupMoves | None:
    """Return the moves of a group, None if none are known. Raises LeaseError."""
    stored = records.read(_record(group))
    return _decoded(None if stored is None else stored.data, group)


def ranges_text(numbers: Collection[int]) -> str:
    """Return numbers as text: 3,7-9."""
    parts = []
    for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        inside = [number for _, number in run]
        parts.append(str(inside[0]) if len(inside) == 1 else f"{inside[0]}-{inside[-1]}")
    return ",".join(parts)


def _numbers(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _move(values: Any) -> Move:
    return Move(
        float(values["at"]),
        int(values["generation"]),
        str(values["from"]),
        str(values["to"]),
        tuple(_numbers(values["partitions"])),
    )


def _record(group: str) -> str:
    return f"moves/{record_name(group, group)}"


def _decoded(data: bytes | None, group: str) -> GroupMoves | None:
    try:
        return None if data is None else GroupMoves.decode(data, group)
    except ValueError:
        return None
