"""The tables of packs: what is packed, and which rows have changed since.

A pack is of an *epoch* of its source: `packing` has the current one, and packs of another one are
as good as deleted. So whatever makes packs wrong at once, a TRUNCATE or a new seeding, deletes one
small row in its own transaction, and the packer deletes the packs later.

Rows change after they were packed. Up to `Packing.scn` the packer has noted which ones, with
each pack; the later ones are found by the index of the rows' SCNs. An event that replaces another
has a higher SCN than the position at which that was read, so no change is missed.

Each row has a checksum, as those of `sources` have; that of a pack has one for the columns that
`outlines` reads, and one for the rest. All functions run inside the caller's transaction;
ProtocolError means damage.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4

from databus.schemas.errors import ProtocolError
from databus.schemas.event.crc import event_crc
from databus.schemas.stream.packs import PackHead

_PACKING = "select epoch, scn, version, crc from packing where src_id = ?"
_BEGIN = "insert or replace into packing (src_id, epoch, scn, version, crc) values (?, ?, ?, ?, ?)"
_END = "delete from packing"
_COLUMNS = """
src_id, until_id, after_id, epoch, row_count, size_bytes, place_crc, columns_id, head, changed, crc
"""
_PACK = f"""
select {_COLUMNS} from packs where src_id = ? and epoch = ? and until_id > ?
order by until_id limit 1
"""
_NEXT = f"""
select {_COLUMNS} from packs where (src_id, until_id) > (?, ?) order by src_id, until_id limit 1
"""
_OUTLINES = """
select src_id, until_id, after_id, epoch, row_count, size_bytes, place_crc, length(changed) / 8
from packs where src_id = ? and epoch = ? order by until_id
"""
_PACKINGS = "select src_id from packing"
_ALONE = """
select count(*) from pack_columns where id not in (select columns_id from packs)
"""
_ADD_COLUMNS = "insert into pack_columns (ids, data) values (?, ?)"
_ADD = f"insert into packs ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_CHANGE = "update packs set changed = ?, crc = ? where src_id = ? and until_id = ?"
_KIND = "select typeof({column}) from pack_columns where id = ?"
_HELD = "select coalesce(sum(size_bytes), 0) from packs"
_WITHIN = """
select src_id, until_id, columns_id from packs where src_id = ? and after_id >= ? and until_id <= ?
"""
_OUTDATED = """
select src_id, until_id, columns_id from packs where not exists (
    select 1 from packing where packing.src_id = packs.src_id and packing.epoch = packs.epoch
) limit ?
"""
_LAST = "select src_id, until_id, columns_id from packs order by until_id desc limit ?"
_HAS_OUTDATED = """
select exists (select 1 from packs where not exists (
    select 1 from packing where packing.src_id = packs.src_id and packing.epoch = packs.epoch
))
"""
_ID_BYTES = array("q").itemsize
_DELETE_COLUMNS = "delete from pack_columns where id = ?"
_DELETE = "delete from packs where src_id = ? and until_id = ?"


@dataclass(frozen=True, slots=True)
class Packing:
    """The state of a source's packs. `version`: that of their rows, as `RowsNow.version` has it."""

    epoch: str
    scn: int
    version: str


class Outline(NamedTuple):
    """A pack has rows with ids in (`after_id`, `until_id`]; `changed` of them have changed."""

    after_id: int
    until_id: int
    rows: int
    changed: int


@dataclass(frozen=True, slots=True)
class StoredPack:
    """A pack without its columns. `changed`: ids of rows that have changed, ascending."""

    columns_id: int
    head: PackHead
    changed: array[int]
    place_crc: int


def packing_of(connection: sqlite3.Connection, src_id: int) -> Packing | None:
    """Return the state of a source's packs; None when it has none."""
    row = connection.execute(_PACKING, (src_id,)).fetchone()
    if row is None:
        return None
    epoch, scn, version, crc = row
    if crc != _crc(src_id, epoch, scn, version):
        raise ProtocolError(f"the state of the packs of source {src_id} is not what was written")
    return Packing(epoch, scn, version)


def begin(connection: sqlite3.Connection, src_id: int, scn: int, version: str) -> Packing:
    """Begin a new epoch at the store's position: the packs of others are out of date."""
    return move(connection, src_id, Packing(uuid4().hex, scn, version), scn)


def move(connection: sqlite3.Connection, src_id: int, packing: Packing, scn: int) -> Packing:
    """Record up to which SCN changed rows are noted."""
    values = packing.epoch, scn, packing.version
    connection.execute(_BEGIN, (src_id, *values, _crc(src_id, *values)))
    return Packing(*values)


def end_all(connection: sqlite3.Connection) -> None:
    """End every epoch: no pack is used any more."""
    connection.execute(_END)


def pack_after(
    connection: sqlite3.Connection, src_id: int, epoch: str, row_id: int
) -> StoredPack | None:
    """Return the first pack that reaches beyond a row id."""
    row = connection.execute(_PACK, (src_id, epoch, row_id)).fetchone()
    return None if row is None else _pack_of(row)


def next_pack(connection: sqlite3.Connection, place: tuple[int, int]) -> StoredPack | None:
    """Return the first pack of any epoch after a place: a source's id, and a pack's last row id."""
    row = connection.execute(_NEXT, place).fetchone()
    return None if row is None else _pack_of(row)


def _pack_of(row: Sequence[Any]) -> StoredPack:
    *place, place_crc, columns_id, head, changed, crc = row
    _check_place(place, place_crc)
    # A flipped bit may make a value of another type of it.
    is_typed = isinstance(head, bytes) and isinstance(changed, bytes)
    if not is_typed or crc != _pack_crc(place_crc, columns_id, head, changed):
        raise _wrong(place)
    return StoredPack(columns_id, PackHead.from_json(head), array("q", changed), place_crc)


def outlines(connection: sqlite3.Connection, src_id: int, epoch: str) -> list[Outline]:
    """Return what the packs of a source have, in the order of ids."""
    found = []
    for *place, place_crc, changed in connection.execute(_OUTLINES, (src_id, epoch)):
        _check_place(place, place_crc)
        _, until_id, after_id, _, rows, _ = place
        found.append(Outline(after_id, until_id, rows, changed))
    return found


def _check_place(place: Sequence[Any], place_crc: int) -> None:
    if place_crc != _crc(*place):
        raise _wrong(place)


def _wrong(place: Sequence[Any]) -> ProtocolError:
    src_id, until_id, *_ = place
    return ProtocolError(
        f"the pack of source {src_id} up to row {until_id} is not what was written"
    )


def sources_of(connection: sqlite3.Connection) -> list[int]:
    """Return the ids of the sources that have packs; their states are not checked."""
    return [src_id for (src_id,) in connection.execute(_PACKINGS)]


def check_columns_owned(connection: sqlite3.Connection) -> None:
    """Raise ProtocolError if there are columns that no pack has."""
    (alone,) = connection.execute(_ALONE).fetchone()
    if alone:
        raise ProtocolError(f"{alone} columns are in no pack")


def ids_of(connection: sqlite3.Connection, pack: StoredPack) -> Sequence[int]:
    """Return the ids of a pack's rows, ascending."""
    head = pack.head
    if _has_every_id(head):
        return range(head.after_id + 1, head.until_id + 1)
    ids = array("q", _blob(connection, "ids", pack))
    if event_crc(memoryview(ids).cast("B")) != head.ids_crc:
        raise ProtocolError(
            f"the ids of the pack up to row {head.until_id} are not what was written"
        )
    return ids


def frame_of(connection: sqlite3.Connection, pack: StoredPack) -> bytes:
    """Return the frame of a pack's columns, which the caller checks."""
    return _blob(connection, "data", pack)


def _blob(connection: sqlite3.Connection, column: str, pack: StoredPack) -> bytes:
    row = connection.execute(_KIND.format(column=column), (pack.columns_id,)).fetchone()
    if row != ("blob",):
        raise ProtocolError(f"the pack up to row {pack.head.until_id} has no columns")
    # A select of the value would move each of its pages through SQLite's cache, and others out of
    # it, which costs several times the reading.
    with connection.blobopen("pack_columns", column, pack.columns_id, readonly=True) as blob:
        return blob.read()


def add(
    connection: sqlite3.Connection,
    epoch: str,
    head: PackHead,
    ids: array[int],
    changed: array[int],
    frame: bytes,
) -> None:
    """Add a pack. Where it is, there must be no other."""
    held_ids = b"" if _has_every_id(head) else ids.tobytes()
    columns_id = connection.execute(_ADD_COLUMNS, (held_ids, frame)).lastrowid
    assert columns_id is not None
    header, noted = head.to_json(), changed.tobytes()
    sizes = head.rows, size_bytes(head)
    place = head.src_id, head.until_id, head.after_id, epoch, *sizes
    place_crc = _crc(*place)
    crc = _pack_crc(place_crc, columns_id, header, noted)
    connection.execute(_ADD, (*place, place_crc, columns_id, header, noted, crc))


def size_bytes(head: PackHead) -> int:
    """Return what a pack counts for: the bytes of its frame and of its rows' ids."""
    return head.frame_bytes + (0 if _has_every_id(head) else _ID_BYTES * head.rows)


def _has_every_id(head: PackHead) -> bool:
    """Whether there is a row of each id: then none is stored."""
    return head.until_id - head.after_id == head.rows


class Noted(NamedTuple):
    """What is stored when changed rows of a pack are noted."""

    changed: bytes
    crc: int
    src_id: int
    until_id: int


def noted(pack: StoredPack, ids: Iterable[int]) -> Noted:
    """Return what to store for a pack of which these rows have changed, too."""
    changed = array("q", sorted({*pack.changed, *ids})).tobytes()
    crc = _pack_crc(pack.place_crc, pack.columns_id, pack.head.to_json(), changed)
    return Noted(changed, crc, pack.head.src_id, pack.head.until_id)


def change(connection: sqlite3.Connection, packs: Iterable[Noted]) -> None:
    """Note rows of packs that have changed."""
    connection.executemany(_CHANGE, packs)


def held_bytes(connection: sqlite3.Connection) -> int:
    """Return the bytes of all packs, those that are out of date included."""
    held: int = connection.execute(_HELD).fetchone()[0]
    return held


def delete_within(
    connection: sqlite3.Connection, src_id: int, after_id: int, until_id: int
) -> None:
    """Delete the packs of a range of ids."""
    _delete(connection, connection.execute(_WITHIN, (src_id, after_id, until_id)).fetchall())


def has_outdated(connection: sqlite3.Connection) -> bool:
    """Return whether there is a pack that is out of date."""
    return bool(connection.execute(_HAS_OUTDATED).fetchone()[0])


def delete_outdated(connection: sqlite3.Connection, limit: int) -> int:
    """Delete some packs that are out of date; return their number."""
    return _delete(connection, connection.execute(_OUTDATED, (limit,)).fetchall())


def delete_last(connection: sqlite3.Connection, limit: int) -> int:
    """Delete some packs, those of the highest ids first; return their number."""
    return _delete(connection, connection.execute(_LAST, (limit,)).fetchall())


def _delete(connection: sqlite3.Connection, found: Sequence[tuple[int, int, int]]) -> int:
    connection.executemany(_DELETE_COLUMNS, [(columns_id,) for *_, columns_id in found])
    connection.executemany(_DELETE, [(src_id, until_id) for src_id, until_id, _ in found])
    return len(found)


def _crc(*values: str | int) -> int:
    return event_crc(repr(values).encode())


def _pack_crc(place_crc: int, columns_id: int, head: bytes, changed: bytes) -> int:
    numbers = repr((place_crc, columns_id, len(head))).encode()
    return event_crc(b"".join((numbers, head, changed)))
