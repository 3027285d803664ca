"""Checks that a store's packs are what was written: a part of the check of its file."""

from __future__ import annotations

from collections.abc import Iterator

from databus.bootstrap.store.packs import table
from databus.bootstrap.store.reads import StoreReading
from databus.schemas.stream.packs import check_frame

_BEFORE_ALL = (-1, -1)


def check_packs(store: StoreReading) -> Iterator[int]:
    """Check pack by pack, each in a transaction of its own; yield the bytes of each.

    Raises StoreDamagedError.
    """
    connection = store.file.connection
    with store.file.reading("checking packs"):
        for src_id in table.sources_of(connection):
            table.packing_of(connection, src_id)
    place = _BEFORE_ALL
    while True:
        with store.file.reading("checking packs"):
            pack = table.next_pack(connection, place)
            if pack is None:
                break
            table.ids_of(connection, pack)
            frame = table.frame_of(connection, pack)
            check_frame(pack.head, frame)
        place = pack.head.src_id, pack.head.until_id
        yield len(frame)
    with store.file.reading("checking packs"):
        table.check_columns_owned(connection)
