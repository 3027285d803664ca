"""Changes as bytes, from databus to the process of a sink. Pure.

They are pickled, as nothing else is as fast for rows of Python values; only the child unpickles.
Transactions and schemas, which many changes share, come once in a message.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from databus.client.sinks.contract import Change, ChangeOp, Opening, Position, TransactionInfo
from databus.schemas.checkpoint import Checkpoint

CHANGES_A_MESSAGE = 1000

Table = dict[int, int]  # the place of an object in a list, by its id()
_INFO = attrgetter(*(one.name for one in fields(TransactionInfo)))
_CHECKPOINT = attrgetter(*(one.name for one in fields(Checkpoint)))
_OPS = {op.value: op for op in ChangeOp}


def encoded(changes: Sequence[Change]) -> Iterator[bytes]:
    """Yield messages with changes, a thousand in each."""
    for start in range(0, len(changes), CHANGES_A_MESSAGE):
        infos: list[tuple[Any, ...]] = []
        places: Table = {}
        rows = []
        for one in changes[start : start + CHANGES_A_MESSAGE]:
            place = places.get(id(one.transaction))
            if place is None:
                place = places[id(one.transaction)] = len(infos)
                infos.append(_INFO(one.transaction))
            rows.append(
                (
                    one.op.value,
                    one.source,
                    _plain(one.key),
                    _plain(one.before),
                    _plain(one.after),
                    place,
                    one.scn,
                    one.timestamp_ns,
                    one.index,
                    one.is_move,
                    one.statement,
                    one.schema,
                    position_values(one.position),
                )
            )
        yield pickle.dumps((infos, rows), protocol=5)


def decoded(message: bytes) -> list[Change]:
    """Return the changes of a message, which its own parent has sent."""
    told, rows = pickle.loads(message)
    infos = [TransactionInfo(*values) for values in told]
    return [_change(values, infos) for values in rows]


def _change(values: tuple[Any, ...], infos: Sequence[TransactionInfo]) -> Change:
    op, source, key, before, after, place, *rest, position = values
    info = infos[place]
    return Change(*(_OPS[op], source, key, before, after, info, *rest, position_of(position)))


def opening_values(opening: Opening) -> tuple[Any, ...]:
    """Return an opening as plain values, without the versions of schemas."""
    position = position_values(opening.position)
    return opening.sink, opening.physical_source, position, opening.takes_over


def opening_of(values: tuple[Any, ...]) -> Opening:
    """Return the opening of plain values."""
    sink, physical, position, takes_over = values
    return Opening(sink, physical, position_of(position), takes_over)


def position_values(position: Position | None) -> tuple[Any, ...] | None:
    """Return a position as plain values."""
    if position is None:
        return None
    return position.source, _CHECKPOINT(position.checkpoint)


def position_of(values: tuple[Any, ...] | None) -> Position | None:
    """Return the position of plain values."""
    return None if values is None else Position(values[0], Checkpoint(*values[1]))


def _plain(row: Any) -> dict[str, Any] | None:
    return row if row is None or type(row) is dict else dict(row)
